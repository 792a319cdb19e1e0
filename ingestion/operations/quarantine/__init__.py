"""The quarantine: what waits in it, and how it is sent in again."""
