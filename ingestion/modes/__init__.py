"""How records become rows: one file a write mode."""
