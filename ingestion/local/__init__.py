"""What a laptop needs to try everything: the jars, an embedded Kafka, the demo."""
