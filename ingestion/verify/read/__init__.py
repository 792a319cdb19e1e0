"""What the proof reads: the topic, the tables and their logs."""
