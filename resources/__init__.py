"""What the assets work with, as Dagster resources over the engine's settings."""
