"""The engine: Kafka topics into Delta tables, each record once, with books that balance."""
