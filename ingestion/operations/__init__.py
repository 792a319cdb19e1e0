"""What a person decides: one file an operation."""
