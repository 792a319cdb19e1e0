"""The sources of the proof: the topic, the tables and their logs."""
