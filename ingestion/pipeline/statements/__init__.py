"""Declared statements: translated for DuckDB, evaluated in workers or by Spark."""
