"""The rows that a table had when it was adopted, which no record of the topic tells of.

Where they can be read as they were, they are the state before the first batch, and each is proven.
Else those that are left are compared with the digest that the first note has of all of them, if no
record has replaced or deleted any; or they are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.declaration.spec import ALTERED, StreamSpec
from oncelake.ingestion.errors import counted
from oncelake.ingestion.tables.table import RewindableTable, SinkTable
from oncelake.ingestion.verify.certificate import digest_of, digest_rows
from oncelake.ingestion.verify.coverage import ADOPTED, Coverage
from oncelake.ingestion.verify.fold.rule import Rule
from oncelake.ingestion.verify.read.record import SYSTEM_COLUMNS, Row, RowChange
from oncelake.ingestion.verify.read.snapshot import rows_in
from oncelake.ingestion.verify.verdict import Difference


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
        note = coverage.adopted
        assert note is not None
        assert note.adopted is not None, "the first note says what was found"
        self._spec, self._table, self._coverage, self._scratch = spec, table, coverage, scratch
        self._note, self._found = note, note.adopted
        self.left = self.compared = 0
        self.limits: list[str] = []
        declared = (each.declaration or {} for each in coverage.batches.values())
        # Columns have other names since, or are gone.
        self._is_altered = any(any(each.get(ALTERED, {}).values()) for each in declared)

    def seed(self, rule: Rule, names: Sequence[str]) -> Iterator[Difference]:
        """Let a rule begin with the rows as they were, if they can be read; compare the digest."""
        version = self._readable_version()
        if version is None or not self._spec.keys:
            return
        yield from self._differing(version)
        for rows in rows_in(self._table.scan(names, version)):
            placed = (self._placed(row, names) for row in rows)
            changes = (RowChange(rule.key_of(r), rule.place_of(r), r, ADOPTED) for r in placed)
            rule.rows().put({change.key: change for change in changes})
        self._coverage.knows_adopted = True

    def take(self, rows: list[Row], names: Sequence[str]) -> list[Row]:
        """Count those among rows of the table; return rows, each with a place of its own.

        Without keys these rows are none that can be told apart, and are left out.
        """
        if not (left := sum(row[-1] is None for row in rows)):
            return rows
        self.left += left
        if not self._spec.keys:
            return [row for row in rows if row[-1] is not None]
        return [self._placed(row, names) for row in rows]

    def differences(self, version: int) -> Iterator[Difference]:
        """Compare what is left as a whole, as of the version that is proven."""
        rows, kinds = self._found["rows"], {b.kind for b in self._coverage.batches.values()}
        through, may_lack = self._coverage.accepted_through, self._spec.keys or "erase" in kinds
        if not through and (self.left > rows or (self.left < rows and not may_lack)):
            due, found = f"{rows:,}", f"{self.left:,}"
            what = "rows are of no record, and not as many as were adopted"
            yield Difference("rows", what, expected=due, found=found)
        elif self._coverage.knows_adopted:
            return
        elif (self.left == rows and not self._is_altered) and not (
            through and [*self._differing(version)]
        ):
            self.compared = self.left
            yield from self._differing(version)
        else:
            self.limits.append(
                f"{self.left:,} of {counted(rows, 'adopted row')} are left; that they are as they "
                "were is no longer provable, as no version holds them all"
            )

    def __str__(self) -> str:
        """Say what was adopted, what is left, and from where on the topic counts."""
        begins = ", ".join(f"{part.at} offset {part.start}" for part in self._note.ranges)
        rows = counted(self._found["rows"], "row")
        return f"adopted: {rows}, {self.left:,} of which are left; records count from {begins}"

    def _readable_version(self) -> int | None:
        """Return a version that has the rows as they were adopted, if any can be read."""
        if not isinstance(self._table, RewindableTable) or self._is_altered:
            return None
        points, at = self._table.restorable(), self._note.delta_version
        return next((whole for commit, whole, _ in points if commit.version == at), None)

    def _differing(self, version: int) -> Iterator[Difference]:
        """Compare the digest of the rows of no record, as of a version, with the note's."""
        columns = parse_columns(", ".join(self._found["columns"]))
        batches = self._table.scan([*(each.name for each in columns), "_seq"], version)
        rows = (each.filter(each.column("_seq").is_null()) for each in batches)
        found = digest_of(digest_rows(rows, columns, self._spec.keys, self._scratch))
        if found != (self._found["rows"], self._found["digest"]):
            what = "the rows of no record are not those that were adopted, by their digest"
            yield Difference("rows", what)

    def _placed(self, row: Row, names: Sequence[str]) -> Row:
        """Give a row of no record a place before all; a declared order decides where it has it."""
        if row[-1] is not None:
            return row
        order = [row[names.index(name)] for name in self._spec.sequence_by]
        epoch = int(bool(order) and None not in order)
        return (*row[: -len(SYSTEM_COLUMNS)], "", -1, -1, row[-3], epoch, ADOPTED)
