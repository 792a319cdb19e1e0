"""The demo: real flights through the embedded Kafka into a lake."""
