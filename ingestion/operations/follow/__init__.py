"""Streams that are followed: turns that end only when somebody ends them."""
