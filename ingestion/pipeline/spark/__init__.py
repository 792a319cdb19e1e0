"""Spark for a run: its session, a cluster, stores, and what its errors mean."""
