"""What every write mode's rule answers, and append, the simplest of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ingestion.declaration.spec import StreamSpec
from ingestion.kafka.offsets import TopicPartition
from ingestion.verify.coverage import Coverage
from ingestion.verify.fold.classify import Classifiers
from ingestion.verify.read.record import Place, Row, RowChange, text_of
from ingestion.verify.read.spill import SpillStore, SpillTable
from ingestion.verify.verdict import Difference


class FoldContext(NamedTuple):
    """What a rule works with: the declaration, and where its state is kept."""

    spec: StreamSpec
    classifiers: Classifiers
    store: SpillStore
    coverage: Coverage


@dataclass(kw_only=True, slots=True)
class Recount:
    """What a batch's records became, counted again.

    Attributes:
        is_replay: Whether earlier batches have read the same records.
        overlap: Records that a replay leaves out, since the quarantine holds them.
        exploded: Rows beyond the first of their record.
        dispositions: Dispositions of the winners that leave no doubt.
        doubtful: Winners whose disposition depends on what can no longer be seen.
        clashes: Keys whose records have no order.
        extra: Counts that are no disposition, by name.
    """

    is_replay: bool = False
    records: Counter[TopicPartition] = field(default_factory=Counter)
    ignored: int = 0
    filtered: int = 0
    quarantined: int = 0
    overlap: int = 0
    exploded: int = 0
    superseded: int = 0
    dispositions: Counter[str] = field(default_factory=Counter)
    doubtful: int = 0
    clashes: list[Difference] = field(default_factory=list)
    extra: Counter[str] = field(default_factory=Counter)


class Rule:
    """Turns the good records of a stream, batch by batch, into the rows that must be there."""

    def __init__(self, context: FoldContext) -> None:
        # The columns to compare, without the system's.
        self.columns: tuple[str, ...] = tuple(column.name for column in context.spec.columns)
        self._classifier, self._coverage = context.classifiers.today, context.coverage
        self._rows: SpillTable[RowChange] = context.store.table("rows")

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Take some of a batch's good records."""
        raise NotImplementedError

    def settle(self, recount: Recount) -> None:
        """End the batch: give each record that has none yet a disposition."""

    def rows(self) -> SpillTable[RowChange]:
        """Return what must be in the table, by ``key_of`` of the rows; deleted rows too."""
        return self._rows

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

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Keep each record, and count it as inserted unless it was there."""
        rows = {text_of(change.place): change for change in changes}
        there = self._rows.get(rows) if recount.is_replay else {}
        self._rows.put({place: row for place, row in rows.items() if place not in there})
        recount.dispositions["unchanged"] += len(there)
        recount.dispositions["inserted"] += len(changes) - len(there)
