"""Topics of Kafka, written by transactions."""
