"""Jobs and ops beside the materializations."""
