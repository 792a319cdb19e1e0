"""Append: every good record is a row, told apart by where it lies in Kafka."""

from __future__ import annotations

from collections.abc import Sequence

from ingestion.verify.fold.modes import Means
from ingestion.verify.fold.recount import Recount
from ingestion.verify.read.record import Place, Row, RowChange, text_of
from ingestion.verify.read.spill import SpillTable


class AppendRule:
    """Remembers every record."""

    def __init__(self, means: Means) -> None:
        """Begin with an empty table."""
        self.columns = tuple(column.name for column in means.spec.columns)
        self._judge = means.judge
        self._rows: SpillTable[RowChange] = means.memory.shelf("rows")

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Keep each record, and count it as inserted."""
        self._rows.put({text_of(change.place): change for change in changes})
        recount.fates["inserted"] += len(changes)

    def settle(self, recount: Recount) -> None:
        """Nothing is left to be decided."""

    def rows(self) -> SpillTable[RowChange]:
        """Return every record, by its place."""
        return self._rows

    def key_of(self, row: Row) -> str:
        """Return the text of the place."""
        return text_of(self.place_of(row))

    def place_of(self, row: Row) -> Place:
        """Return epoch, topic, partition and offset."""
        return self._judge.place_of(row)

    def outranks(self, one: Place, other: Place) -> bool:
        """No record wins over another."""
        return False

    def limits(self) -> Sequence[str]:
        """Every column is proven."""
        return ()


RULE = AppendRule
