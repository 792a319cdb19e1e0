"""The name by which the tests of other folders know ``tests.trials.failpoints``."""

from __future__ import annotations

from tests.trials.failpoints import PlannedCrash, PlannedError, crashing_at

__all__ = ["PlannedCrash", "PlannedError", "crashing_at"]
