"""Rules that a declaration must meet, and how their violations read."""
