"""Delta tables, in a folder or a store."""
