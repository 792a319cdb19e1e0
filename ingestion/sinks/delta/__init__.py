"""The sink of Delta tables, in the lake."""
