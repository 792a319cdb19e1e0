"""The commands of ``oncelake``, one module each, and their output for people and programs."""
