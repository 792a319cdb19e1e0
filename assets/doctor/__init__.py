"""Dagster's part of ``oncelake doctor``, which runs as ``python -m assets.doctor``."""
