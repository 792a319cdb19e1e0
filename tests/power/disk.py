"""The name by which the tests of other folders know ``tests.trials.power``."""

from __future__ import annotations

from tests.trials.power import mounted_disk

__all__ = ["mounted_disk"]
