"""The engines that run the queries of a batch: Spark, or DuckDB in this process."""
