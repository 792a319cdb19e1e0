"""The resources of the assets, over the engine's settings."""
