"""Delta's file format, in a folder or a store: opens, reads, commits to, and cleans a table."""
