"""The gate: what is judged of a batch before its commit, and keeps it from being published."""
