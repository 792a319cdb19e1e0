"""The same mode, folded a second time, by the proof."""

from __future__ import annotations

from collections.abc import Sequence

from oncelake.ingestion.verify.fold.rule import AppendRule, FoldContext, Recount
from oncelake.ingestion.verify.read.record import RowChange, text_of
from oncelake.ingestion.verify.read.spill import SpillTable


class LatestBatch(AppendRule):
    """Remembers the records of the newest batch that had any."""

    def __init__(self, context: FoldContext) -> None:
        """Begin with an empty table."""
        super().__init__(context)
        self._batch: SpillTable[RowChange] = context.store.table("batch")

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Keep each record of the batch."""
        self._batch.put({text_of(change.place): change for change in changes})
        recount.dispositions["inserted"] += len(changes)

    def settle(self, recount: Recount) -> None:
        """Let the batch replace the one before."""
        if len(self._batch):
            self._rows.clear()
        for chunk in self._batch.chunks():
            self._rows.put(chunk)
        self._batch.clear()
