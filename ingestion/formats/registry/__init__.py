"""Values by the schemas of a registry: their framing, and the columns that these give."""
