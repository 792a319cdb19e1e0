"""The skin: every declared stream as a Dagster asset, with its checks, job and sensor."""
