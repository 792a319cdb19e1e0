"""One batch on its way from Kafka into one commit."""
