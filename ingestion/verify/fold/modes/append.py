"""Append: every good record is a row, told apart by where it lies in Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from ingestion.verify.fold.modes import FoldContext, Rule
from ingestion.verify.fold.recount import Recount
from ingestion.verify.read.record import RowChange, text_of
from ingestion.verify.read.spill import SpillTable


class AppendRule(Rule):
    """Remembers every record."""

    def __init__(self, context: FoldContext) -> None:
        super().__init__(context)
        self._rows: SpillTable[RowChange] = context.store.table("rows")

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Keep each record, and count it as inserted."""
        self._rows.put({text_of(change.place): change for change in changes})
        recount.dispositions["inserted"] += len(changes)

    def rows(self) -> SpillTable[RowChange]:
        """Return every record, by its place."""
        return self._rows


RULE = AppendRule
