"""The declaration: the fields of a stream's file, their types and their rules.

Nothing here imports Spark or connects to Kafka.
"""
