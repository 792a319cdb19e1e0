"""A table's history: rewound, read again, rebuilt, archived."""
