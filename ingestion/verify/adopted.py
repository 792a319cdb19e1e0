"""The rows that a table had when it was adopted, which no record of the topic tells of.

Where they can be read as they were, they are the state before the first batch, and each is proven.
Else those that are left are compared with the digest that the first note has of all of them, if no
record has replaced or deleted any; or they are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.declaration.spec import ALTERED, StreamSpec
from oncelake.ingestion.errors import counted
from oncelake.ingestion.tables.table import RewindableTable, SinkTable
from oncelake.ingestion.verify.certificate import digest_of
from oncelake.ingestion.verify.coverage import ADOPTED, Coverage
from oncelake.ingestion.verify.fold.rule import Rule
from oncelake.ingestion.verify.read.record import SYSTEM_COLUMNS, Row, RowChange
from oncelake.ingestion.verify.read.snapshot import rows_in
from oncelake.ingestion.verify.verdict import Difference

_OWN: Final = len(SYSTEM_COLUMNS)


class AdoptedRows:
    """The rows of an adopted table that are of no record.

    Attributes:
        left: How many of them the table still has.
        compared: How many of these are proven by the digest alone.
        limits: What is not proven of them.
    """

    def __init__(
        self, spec: StreamSpec, table: SinkTable, coverage: Coverage, *, scratch: Path
    ) -> None:
        """Take the note by which the table was adopted."""
        assert coverage.adopted is not None
        assert coverage.adopted.adopted is not None, "the first note says what was found"
        self._spec, self._table, self._coverage = spec, table, coverage
        self._note, self._found = coverage.adopted, coverage.adopted.adopted
        self._columns = parse_columns(", ".join(self._found["columns"]))
        self._scratch = scratch
        self.left = self.compared = 0
        self.limits: list[str] = []

    def seed(self, rule: Rule, names: Sequence[str]) -> Iterator[Difference]:
        """Let a rule begin with the rows as they were, if they can be read; compare the digest."""
        version = self._readable_version()
        if version is None or not self._spec.keys:
            return
        if digest := self._differing(version):
            yield Difference("rows", "version of the adoption: " + digest)
        for rows in rows_in(self._table.scan(names, version)):
            changes = (self._change(rule, self._placed(row, names)) for row in rows)
            rule.begin({change.key: change for change in changes})
        self._coverage.knows_adopted = True

    def take(self, rows: Sequence[Row], names: Sequence[str]) -> Sequence[Row]:
        """Count those among rows of the table; return rows, each with a place of its own.

        Without keys these rows are none that can be told apart, and are left out.
        """
        left = sum(row[-1] is None for row in rows)
        self.left += left
        if left and not self._spec.keys:
            return [row for row in rows if row[-1] is not None]
        return [self._placed(row, names) for row in rows] if left else rows

    def differences(self, version: int) -> Iterator[Difference]:
        """Compare what is left as a whole, as of the version that is proven."""
        rows, batches = self._found["rows"], self._coverage.batches.values()
        may_lack = self._spec.keys or any(each.kind in ("erase", "truncate") for each in batches)
        if self.left > rows or not (self.left == rows or may_lack):
            what = "are of no record, and not as many as were adopted"
            found = f"{self.left:,}"
            yield Difference("rows", f"rows {what}", expected=f"{rows:,}", found=found)
        elif self._coverage.knows_adopted:
            return
        elif self.left == rows and not self._is_altered:
            self.compared = self.left
            if what := self._differing(version):
                yield Difference("rows", what)
        else:
            self.limits.append(
                f"{self.left:,} of {counted(rows, 'adopted row')} are left; that they are as they "
                "were is no longer provable, as no version holds them all"
            )

    def __str__(self) -> str:
        """Say what was adopted, what is left, and from where on the topic counts."""
        begins = ", ".join(f"{part.at} offset {part.start}" for part in self._note.ranges)
        return (
            f"adopted: {counted(self._found['rows'], 'row')} of version {self._found['version']}, "
            f"{self.left:,} of which are left; records count from {begins}"
        )

    @property
    def _is_altered(self) -> bool:
        """Tell whether columns have other names since, or are gone."""
        notes = (each.declaration or {} for each in self._coverage.batches.values())
        return any(
            note[ALTERED]["renamed"] or note[ALTERED]["dropped"]
            for note in notes
            if ALTERED in note
        )

    def _readable_version(self) -> int | None:
        """Return a version that has the rows as they were adopted, if any can be read."""
        if not isinstance(self._table, RewindableTable) or self._is_altered:
            return None
        points = self._table.restorable()
        return next(
            (v for commit, v, _ in points if commit.version == self._note.delta_version), None
        )

    def _differing(self, version: int) -> str:
        """Say that the rows of no record have another digest than those that were adopted."""
        names = [column.name for column in self._columns]
        rows = map(_of_no_record, self._table.scan([*names, "_seq"], version))
        found = digest_of(rows, self._columns, self._spec.keys, self._scratch)
        if found == (self._found["rows"], self._found["digest"]):
            return ""
        return "the rows of no record are not those that were adopted, by their digest"

    def _placed(self, row: Row, names: Sequence[str]) -> Row:
        """Give a row of no record a place before all; a declared order decides where it has it."""
        if row[-1] is not None:
            return row
        topic, partition, offset, sent, _, _ = row[-_OWN:]
        order = [row[names.index(name)] for name in self._spec.sequence_by]
        epoch = int(bool(order) and None not in order)
        place = (topic or "", _or_none(partition), _or_none(offset))
        return (*row[:-_OWN], *place, sent, epoch, ADOPTED)

    def _change(self, rule: Rule, row: Row) -> RowChange:
        return RowChange(key=rule.key_of(row), place=rule.place_of(row), row=row, seq=ADOPTED)


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _of_no_record(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(batch.column("_seq").is_null())
