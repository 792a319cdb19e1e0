"""What the rows of a table must be, folded from the records in plain Python."""
