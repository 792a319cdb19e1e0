"""The commands of ``oncelake``, one module a command, and how they speak to people and programs."""
