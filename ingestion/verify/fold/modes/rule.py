"""What every write mode's rule answers, and append, the simplest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingestion.declaration.spec import StreamSpec
from ingestion.verify.coverage import Coverage
from ingestion.verify.fold.classify import Classifiers
from ingestion.verify.fold.recount import Recount
from ingestion.verify.read.record import Place, Row, RowChange, text_of
from ingestion.verify.read.spill import SpillStore, SpillTable


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldContext:
    """What a rule works with: the declaration, and where its state is kept."""

    spec: StreamSpec
    classifiers: Classifiers
    store: SpillStore
    coverage: Coverage


class Rule:
    """Turns the good records of a stream, batch by batch, into the rows that must be there."""

    def __init__(self, context: FoldContext) -> None:
        # The columns to compare, without the system's.
        self.columns: tuple[str, ...] = tuple(column.name for column in context.spec.columns)
        self._classifier, self._coverage = context.classifiers.today, context.coverage

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Take some of a batch's good records."""
        raise NotImplementedError

    def settle(self, recount: Recount) -> None:
        """End the batch: give each record that has none yet a disposition."""

    def rows(self) -> SpillTable[RowChange]:
        """Return what must be in the table, by ``key_of`` of the rows; deleted rows too.

        Raises:
            UnprovableError: some of what decides it is gone from Kafka.
        """
        raise NotImplementedError

    def key_of(self, row: Row) -> str:
        """Return the text that identifies a row: its place, unless a mode has keys."""
        return text_of(self.place_of(row))

    def place_of(self, row: Row) -> Place:
        """Return the place of the record that a row comes from."""
        return self._classifier.place_of(row)

    def outranks(self, one: Place, other: Place) -> bool:
        """Tell whether a record at ``one``, if there is any, would have won over ``other``."""
        return False

    def limits(self) -> Sequence[str]:
        """Say what is not proven of a row that is equal."""
        return ()

    @property
    def _is_partial(self) -> bool:
        return self._coverage.is_partial or self._coverage.epoch > 1


class AppendRule(Rule):
    """Remembers every record: each is a row, told apart by its place in Kafka."""

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
