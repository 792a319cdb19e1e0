"""The jars and the embedded Kafka, for trying everything on one machine."""
