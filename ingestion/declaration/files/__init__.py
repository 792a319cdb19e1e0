"""Files with declarations: read as YAML, drafted, and made streams."""
