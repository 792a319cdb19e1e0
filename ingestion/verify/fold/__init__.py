"""The expected rows of a table, folded from the records in plain Python."""
