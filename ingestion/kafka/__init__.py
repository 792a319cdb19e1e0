"""The Kafka cluster: its topics, offsets, records, transactions, and the schema registry."""
