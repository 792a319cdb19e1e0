"""What the table of every sink has: its interface, its commits and their notes, Arrow types."""
