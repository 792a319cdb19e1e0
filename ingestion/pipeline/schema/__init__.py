"""Columns of a stream and its table: their types, and how a table comes to have them."""
