"""Entries of Delta tables in catalogs: what they say, and who writes them when."""
