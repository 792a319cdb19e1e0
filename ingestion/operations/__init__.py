"""The operations: one file each."""
