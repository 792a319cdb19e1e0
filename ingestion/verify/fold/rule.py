"""The interface of a write mode's rule, and append, the simplest of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.verify.coverage import Coverage
from oncelake.ingestion.verify.fold.classify import Classifiers
from oncelake.ingestion.verify.read.record import Place, Record, Row, RowChange, text_of
from oncelake.ingestion.verify.read.snapshot import Batch
from oncelake.ingestion.verify.read.spill import SpillStore, SpillTable
from oncelake.ingestion.verify.verdict import Difference


class FoldContext(NamedTuple):
    """The context of a rule: the declaration, and where its state is kept."""

    spec: StreamSpec
    classifiers: Classifiers
    store: SpillStore
    coverage: Coverage


@dataclass(kw_only=True, slots=True)
class Recount:
    """The counts of a batch, counted again.

    Attributes:
        is_replay: Whether earlier batches have read the same records.
        counts: Of what is no winner, by the names of the ledger's counts; overlap are the records
            that a replay leaves out, since the quarantine holds them.
        dispositions: Dispositions of the winners that leave no doubt.
        doubtful: Winners whose disposition depends on what can no longer be seen.
        doubtful_left: Those among them that count only where they find a row.
        clashes: Keys whose records have no order, and record types that one table cannot hold.
        extra: Counts that are no disposition, by name.
        undeclared: Rows, at least, of records whose schema has fields that no column names.
    """

    is_replay: bool = False
    records: Counter[TopicPartition] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    dispositions: Counter[str] = field(default_factory=Counter)
    doubtful: int = 0
    doubtful_left: int = 0
    clashes: list[Difference] = field(default_factory=list)
    extra: Counter[str] = field(default_factory=Counter)
    undeclared: int = 0


@dataclass(slots=True)
class Settled:
    """The outcomes of changes of a batch that only all of them together decide.

    Attributes:
        changes: Those that are left, of streams whose updates leave columns out.
        bad: Records that belong in quarantine.
        spared: How many moves take no row; less than none where such a record is bad.
        taken_back: Rows beyond the first of records that are bad.
        no_ends: Records of moves that take no row from their key, or are bad.
        kept: Columns that were left out of changes.
    """

    changes: list[RowChange] = field(default_factory=list)
    bad: list[tuple[Record, str]] = field(default_factory=list)
    spared: int = 0
    taken_back: int = 0
    no_ends: list[RowChange] = field(default_factory=list)
    kept: int = 0


# Of a record that says so: its epoch, partition and offset.
Truncate = tuple[int, TopicPartition, int]


class Erased:
    """A key that was erased, by the digest that is left of it; or all that was before a truncate.

    Attributes:
        truncate: Which it was; ``None`` of a key.
    """

    def __init__(self, batch: Batch, columns: Sequence[str]) -> None:
        """Take what a batch says; ``columns`` are those of a row, in order."""
        assert batch.erased is not None, "an erase says what it erased"
        self._salt, self._digest = batch.erased["salt"], batch.erased["digest"]
        self._at = [columns.index(name) for name in batch.erased["columns"]]
        self._epoch, self._until = batch.epoch, json.loads(batch.erased["until"])
        self.truncate: Truncate | None = None
        if not self._at:
            ((topic, until),) = self._until.items()
            ((partition, offset),) = until.items()
            self.truncate = batch.epoch, TopicPartition(topic, int(partition)), offset

    def is_of(self, change: RowChange) -> bool:
        """Tell whether a change is of the key."""
        if self.truncate:
            return self.was_read(change)
        text = change.key
        if change.row is not None:
            text = text_of(change.row[i] for i in self._at)
        return self.is_key(text)

    def is_key(self, text: str) -> bool:
        """Tell whether a key, by ``text_of``, is the one that was erased."""
        return sha256(f"{self._salt} {text}".encode()).hexdigest() == str(self._digest)

    def is_of_any(self, changes: Iterable[RowChange]) -> bool:
        """Tell whether the changes of a key, in their order, left a row that is gone."""
        return all(map(self.is_of, changes)) if self.truncate else any(map(self.is_of, changes))

    def was_read(self, change: RowChange) -> bool:
        """Tell whether a change's record had been read by then."""
        epoch, at = change.place[0], change.at
        until = self._until.get(at.topic, {}).get(str(at.partition), 0)
        return bool(epoch < self._epoch or (epoch == self._epoch and change.offset < until))


# What is known of a key: its changes, in the order of arrival or of time.
Events = tuple[RowChange, ...]


def add_events(table: SpillTable[Events], changes: Sequence[RowChange]) -> None:
    """Keep changes behind those that a table has of their keys."""
    known = {key: list(old) for key, old in table.get({c.key for c in changes}).items()}
    for change in changes:
        known.setdefault(change.key, []).append(change)
    table.put({key: tuple(events) for key, events in known.items()})


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

    def newest_of(self, keys: Collection[str]) -> Mapping[str, RowChange]:
        """Return the change by which each key has its row or has none, where one is known."""
        return {}

    def settle(self, recount: Recount) -> None:
        """End the batch: give each record that has none yet a disposition."""

    def erase(self, erased: Erased) -> None:
        """Forget the rows of a key, or of all."""
        self._rows.remove_where(erased.is_of)

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
    """Remembers every record: each is a row, identified by its place in Kafka."""

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Keep each record, and count it as inserted unless it was there."""
        rows = {text_of(change.place): change for change in changes}
        there = self._rows.get(rows) if recount.is_replay else {}
        self._rows.put({place: row for place, row in rows.items() if place not in there})
        recount.dispositions.update({"unchanged": len(there)} if there else {})
        recount.dispositions["inserted"] += len(changes) - len(there)
