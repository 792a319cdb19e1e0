"""Kafka Connect's converters: values whose meaning is in the schema's names."""
