"""What Kafka Connect's converters write: values whose meaning is in the schema's names."""
