"""Messages that a topic may really hold, and what must become of each."""
