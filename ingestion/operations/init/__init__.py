"""A first declaration for a topic that nobody has declared yet, proposed from its last records."""
