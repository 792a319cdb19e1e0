"""Upkeep of tables and of what is kept beside them."""
