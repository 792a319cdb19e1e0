"""Insert only: the oldest record of a key is its row."""

from __future__ import annotations

from ingestion.verify.fold.modes.upsert import UpsertRule
from ingestion.verify.read.record import Place


class InsertOnlyRule(UpsertRule):
    """Remembers the oldest record of each key."""

    def outranks(self, one: Place, other: Place) -> bool:
        """The older one wins."""
        return one < other


RULE = InsertOnlyRule
