"""Where streams stand, and how far they lag behind."""
