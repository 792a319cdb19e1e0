"""The proof: what a stream's tables must hold, computed from the topic by other means.

Nothing here decodes, de-duplicates or merges with the engine's code, and nothing here starts Spark:
the topic is read by confluent-kafka, predicates are evaluated by DuckDB, and the fold is plain
Python. Rows are read as their sink's own ``scan`` reads them: by delta-rs, which may have written
them, or by code of the sink. Delta's commits are read apart from ``DeltaLog``, other notes by the
sink's log. ``ingestion.verify.verify`` calls all of it.
"""
