"""Whether the table holds the rows that follow from the topic, and no other, column by column."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from oncelake.ingestion.declaration.modes import EXTRA_COLUMN, INDEX_COLUMN
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import counted
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.verify.compare.promises import excluding
from oncelake.ingestion.verify.coverage import ADOPTED, Coverage
from oncelake.ingestion.verify.fold.rule import Rule
from oncelake.ingestion.verify.read.record import (
    SYSTEM_COLUMNS,
    UNSEEN,
    Place,
    Row,
    RowChange,
    at_of,
    offset_of,
    ranked,
    text_of,
)
from oncelake.ingestion.verify.read.snapshot import rows_through
from oncelake.ingestion.verify.read.spill import SpillTable
from oncelake.ingestion.verify.verdict import Difference, shown


def values_equal(one: Any, other: Any) -> bool:
    """Compare values of columns; not a number equals itself, as it does in a table."""
    if one == other:
        return True
    if isinstance(one, float) and isinstance(other, float):
        return math.isnan(one) and math.isnan(other)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(map(values_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return all(values_equal(value, other[name]) for name, value in one.items())
    return False


def compared_columns(spec: StreamSpec, rule: Rule) -> list[str]:
    """Return the columns of the table that are compared."""
    added = [EXTRA_COLUMN] if spec.extra_fields == "keep" else []
    added += [INDEX_COLUMN] if spec.explode else []
    return [*rule.columns, *added, *SYSTEM_COLUMNS]


# Reads the engine's tombstones, in chunks.
Tombstones = Callable[[], Iterable[Sequence[RowChange]]]


class RowsProof:
    """Compares a table's rows with those that the rule of its mode expects, and counts them."""

    def __init__(
        self,
        spec: StreamSpec,
        rule: Rule,
        newest: SpillTable[RowChange],
        coverage: Coverage,
        *,
        truncates: Mapping[tuple[int, TopicPartition], int],
    ) -> None:
        """Take what must be there, and the last truncates of the source, by epoch and partition."""
        self.names = compared_columns(spec, rule)
        self._spec, self._rule, self._newest, self.coverage = spec, rule, newest, coverage
        self._truncates = truncates
        self._excluded = excluding(spec, self.names, coverage.batches)
        self.compared = self.unseen = self.explained = self.accepted = self.partly = 0

    def differences(self, rows: Sequence[Row]) -> Iterator[Difference]:
        """Compare some rows, each by ``names``."""
        keys = [self._rule.key_of(row) for row in rows]
        met = self._newest.find(set(keys))
        known = self._newest.get(keys)
        for key, row in zip(keys, rows, strict=True):
            if key in met:
                yield self._difference(row, "is in the table more than once")
            else:
                yield from self._compared(row, known.get(key))
            met.add(key)
        for row in self._excluded(rows):
            yield self._difference(row, "is in the table, and `where` excludes it")

    def missing(self, tombstones: Tombstones) -> Iterator[Difference]:
        """Name the rows that no call of ``differences`` has seen."""
        for chunk in self._newest.chunks(unfound=True):
            living = {key: change for key, change in chunk.items() if change.row is not None}
            remembered = tombstones() if self.coverage.may_lack_rows else ()
            explained = deletes_that_explain(remembered, self.coverage, living)
            for key, change in living.items():
                if self.coverage.is_accepted(change.seq):
                    self.accepted += 1
                elif key in explained:
                    self.explained += 1
                elif change.row is not None:
                    self.compared += 1
                    yield self._difference(change.row, "is missing from the table")

    def limits(self) -> Iterator[str]:
        """Name the rows that could not be compared, a sentence each."""
        if self.unseen:
            yield (
                f"{counted(self.unseen, 'row comes', 'rows come')} from records that Kafka no "
                "longer holds, or that no known batch has read; no newer record of the key is "
                "there, and the values were not compared"
            )
        if self.partly:
            yield (
                f"{counted(self.partly, 'row keeps', 'rows keep')} columns that only records had "
                "which Kafka no longer holds; those columns were not compared"
            )
        if self.explained:
            yield (
                f"{counted(self.explained, 'row is', 'rows are')} missing that a delete may have "
                "removed which Kafka no longer holds; the engine has stored a delete for each"
            )
        if self.accepted:
            rows = counted(self.accepted, "row differs", "rows differ")
            yield f"{rows} in what a person has accepted"

    def _compared(self, row: Row, change: RowChange | None) -> Iterator[Difference]:
        place, seq = self._rule.place_of(row), row[-1]
        if seq is None:
            yield self._difference(row, "is in the table, and of no batch")
            return
        is_beaten = change is not None and self._rule.outranks(change.place, place)
        if seq == ADOPTED and self.coverage.is_unseen and not is_beaten:
            # All that is known: no record of its key would have replaced it.
            return
        if change and change.place == place:
            change = self._as_replayed(change, seq)
        expected = change.row if change else None
        is_accepted = self.coverage.is_accepted(change.seq if change else seq)
        if is_accepted and not (expected and not self._differing(row, expected)):
            self.accepted += 1
        elif change is not None and expected is not None and change.place == place:
            self.compared += 1
            yield from self._unequal(row, expected)
        elif not self.coverage.covers_record(place, seq) and (
            change is None or self._rule.outranks(place, change.place)
        ):
            self.unseen += 1
            if not self.coverage.has_read(place, seq):
                yield self._difference(row, "is in the table, and no batch has read its record")
            elif self._is_truncated(place):
                yield self._difference(row, "is in the table, and a truncate came behind it")
        else:
            self.compared += 1
            yield self._unlike(row, change)

    def _is_truncated(self, place: Place) -> bool:
        """Tell whether a row was before a truncate of the source, whoever still has its record."""
        of_partition = self._truncates.get((place[0], at_of(place)), 0)
        is_older = any(place[0] < epoch for epoch, _ in self._truncates)
        return is_older or offset_of(place) < of_partition

    def _as_replayed(self, change: RowChange, seq: int) -> RowChange:
        """Expect the row under the seq of the replay that wrote it again, as it was not there.

        What a person has accepted was what that replay met; its own rows must be right.
        """
        may_be_altered = self.coverage.is_accepted(change.seq)
        if change.row and may_be_altered and self.coverage.has_replayed(change.place, seq):
            return change._replace(row=(*change.row[:-1], seq), seq=seq)
        return change

    def _unequal(self, row: Row, expected: Row) -> Iterator[Difference]:
        if row == expected:
            return
        self.partly += UNSEEN in expected
        for name, is_, due in self._differing(row, expected):
            yield self._difference(row, f"column {name} differs", shown(due), shown(is_))

    def _differing(self, row: Row, expected: Row) -> list[tuple[str, Any, Any]]:
        """Return name, found and expected value of the columns that the proof knows otherwise."""
        columns = zip(self.names, row, expected, strict=True)
        return [c for c in columns if c[2] is not UNSEEN and not values_equal(c[1], c[2])]

    def _unlike(self, row: Row, change: RowChange | None) -> Difference:
        what, due = "is not the row of its newest record", f"the record at {change}"
        if change is None:
            what, due = "is in the table, and no record of the topic says so", "no row"
        elif change.row is None:
            what, due = f"is in the table, and {change} deleted it", "no row"
        return self._difference(row, what, due, shown(row))

    def _difference(
        self, row: Row, what: str, expected: str | None = None, found: str | None = None
    ) -> Difference:
        values = dict(zip(self.names, row, strict=True))
        key = {name: str(values[name]) for name in self._spec.keys}
        at, seq = row[-len(SYSTEM_COLUMNS) :][:3], row[-1]
        return Difference("rows", what, *at, key=key, seq=seq, expected=expected, found=found)


def tombstones_of(
    path: Location, spec: StreamSpec, coverage: Coverage
) -> Iterator[list[RowChange]]:
    """Read the engine's tombstones in chunks; nothing when there are none.

    A row may be missing because of a delete that Kafka no longer holds. Then the engine must have
    stored that delete; where it has not, nothing explains why the row is missing.
    """
    element = () if spec.explode else (0,)
    # A key column may be one of the order's, too.
    columns = list(dict.fromkeys([*spec.keys, *spec.order_columns, "_epoch", "_seq"]))
    for rows in rows_through(coverage.last_seq, path, columns):
        changes = []
        for delete in (dict(zip(columns, row, strict=True)) for row in rows):
            key = text_of(delete[name] for name in spec.keys)
            order = (ranked(delete[name]) for name in spec.order_columns)
            place = (delete["_epoch"], *order, *element)
            changes.append(RowChange(key=key, place=place, row=None, seq=delete["_seq"]))
        yield changes


def deletes_that_explain(
    tombstones: Iterable[Sequence[RowChange]], coverage: Coverage, living: dict[str, RowChange]
) -> set[str]:
    """Return the keys of ``living`` after which a stored delete comes.

    A delete that is covered explains nothing: the proof would have read it.
    """
    return {
        delete.key
        for chunk in tombstones
        for delete in chunk
        if (change := living.get(delete.key)) is not None
        and delete.place > change.place
        and not coverage.covers_record(delete.place, delete.seq)
    }
