"""The same mode, folded a second time, by the proof."""

from __future__ import annotations

from collections.abc import Sequence

from ingestion.proof.memory import Shelf
from ingestion.proof.modes import Means
from ingestion.proof.modes.append import Append
from ingestion.proof.record import Change, text_of
from ingestion.proof.recount import Recount


class LatestBatch(Append):
    """Remembers the records of the newest batch that had any."""

    def __init__(self, means: Means) -> None:
        """Begin with an empty table."""
        super().__init__(means)
        self._batch: Shelf[Change] = means.memory.shelf("batch")

    def take(self, changes: Sequence[Change], recount: Recount) -> None:
        """Keep each record of the batch."""
        self._batch.put({text_of(change.place): change for change in changes})
        recount.fates["inserted"] += len(changes)

    def settle(self, recount: Recount) -> None:
        """Let the batch replace the one before."""
        if len(self._batch):
            self._rows.clear()
        for chunk in self._batch.chunks():
            self._rows.put(chunk)
        self._batch.clear()


RULE = LatestBatch
