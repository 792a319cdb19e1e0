"""How bytes become typed columns: one file, or folder, a format."""
