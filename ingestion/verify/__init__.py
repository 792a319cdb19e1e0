"""The second opinion: what a stream's tables must hold, worked out from the topic by other means.

Nothing here decodes, de-duplicates, merges or reads commits with the engine's code, and nothing
here starts Spark: the topic is read by confluent-kafka, the tables by delta-rs, predicates are
evaluated by DuckDB, and the fold is plain Python. ``ingestion.verify.verify`` is the page that puts
it together.
"""
