"""An erase of keys, and the keys that it is asked for."""
