"""The name by which the tests of other folders know ``tests.trials.kills``."""

from __future__ import annotations

from tests.trials.kills import run_to_its_end

__all__ = ["run_to_its_end"]
