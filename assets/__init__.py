"""Dagster's part: every declared stream as an asset, with its checks, job and sensor."""
