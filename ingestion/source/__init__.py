"""The records of ranges, whatever brings them: Spark's Kafka source, or librdkafka."""
