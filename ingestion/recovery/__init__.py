"""Where the table stands, what a crash left, and where the next run starts."""
