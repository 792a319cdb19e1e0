"""The interface of every sink's table: commits, notes, Arrow types."""
