"""What may stand beside a format's ``type`` in a declaration: one model a format that has any."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """Frozen, and strict about unknown keys, as everything a person writes must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def uses_registry(self) -> bool:
        """Whether records name their schema by its id in a registry."""
        return False


class NoOptions(Options):
    """Nothing may stand beside ``type``."""


class RegistryOptions(Options):
    """Nothing may stand beside ``type``: the registry knows the rest."""

    @property
    def uses_registry(self) -> bool:
        """Whether records name their schema by its id in a registry."""
        return True
