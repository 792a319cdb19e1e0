"""Which attempt at a batch counts: the one that the data commit of its seq names.

What a batch leaves beside the table is written before that commit, by an attempt that may die, or
that may sleep while another host takes its stream over. So each row there, and each mark of a
redrive, names its attempt, and is believed only where a commit does. An attempt changes no row but
its own. What others have left is removed once their seq is another's, and no earlier: until then
they may live, and commit. Where no lock tells that they do not, a run that finds some takes that
seq first, by a commit without rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ingestion.sinks.commit_metadata import REWOUND_TO, CommitMetadata
from ingestion.sinks.delta.files import open_rows, read_delta
from ingestion.storage.location import Location

if TYPE_CHECKING:
    from ingestion.lake.ledger import LedgerRow

# Where a row names an attempt: its seq, its name.
Columns = tuple[str, str]
# The one that wrote the row, and the one that has marked it.
ROWS: Final[Columns] = ("_seq", "_attempt")
MARKS: Final[Columns] = ("redriven_seq", "redriven_attempt")
# Beyond every batch.
EVER: Final = 2**63 - 1
# The name of whoever committed a batch that a rewind has undone.
_NOBODY: Final = -1
# Whole in JSON, wherever that is read.
_BITS: Final = 53


class Attempt(NamedTuple):
    """One attempt at a batch; an earlier version gave it no name."""

    seq: int
    name: int | None

    @classmethod
    def of(cls, row: Mapping[str, Any], columns: Columns = ROWS) -> Attempt:
        """Read the attempt that a row names; a table of an earlier version has no names."""
        return cls(row[columns[0]], row.get(columns[1]))

    def as_sql(self) -> str:
        """Tell its rows, in the SQL of every engine."""
        return " AND ".join(f"{name} = {value}" for name, value in zip(ROWS, self, strict=True))

    def as_filter(self, columns: Columns, there: Collection[str]) -> pc.Expression:
        """Tell its rows, or its marks, for Arrow, in a table that has the columns ``there``."""
        seq, name = (pc.field(column) for column in columns)
        is_of = seq == self.seq
        if columns[1] not in there:
            return is_of & pc.scalar(self.name is None)
        return is_of & (name.is_null() if self.name is None else name == self.name)


def new_name() -> int:
    """Name an attempt as no other is named."""
    return secrets.randbits(_BITS)


def attempt_of(batch: LedgerRow | CommitMetadata) -> Attempt:
    """Return the attempt that a commit, or its row in the ledger, is of."""
    return Attempt(batch.seq, batch.attempt)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempts:
    """Which attempt has committed each batch of a table.

    Attributes:
        last: The newest batch.
        by_seq: Their names; a batch of which nothing tells any more is not here, and what it left
            beside the table is believed.
    """

    last: int
    by_seq: Mapping[int, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[LedgerRow], *, last: int) -> Attempts:
        """Return what the rows of a ledger say, by seq, of a table that stands at ``last``."""
        return cls(last=last).after(*rows)

    def after(self, *batches: LedgerRow | CommitMetadata) -> Attempts:
        """Add batches, in the order of their seqs."""
        by_seq, last = dict(self.by_seq), self.last
        for batch in batches:
            if batch.kind == "rewind":
                undone = range(batch.counts[REWOUND_TO] + 1, batch.seq)
                by_seq.update(dict.fromkeys(undone, _NOBODY))
            by_seq[batch.seq] = batch.attempt
            last = max(last, batch.seq)
        return Attempts(last=last, by_seq=by_seq)

    def has_committed(self, attempt: Attempt) -> bool:
        """Tell whether an attempt is the one that committed its batch, which stands."""
        known = self.by_seq.get(attempt.seq, attempt.name)
        return attempt.seq <= self.last and known == attempt.name

    @property
    def first_named(self) -> int:
        """The first batch that has a name; those before it are of an earlier version."""
        named = (seq for seq, name in self.by_seq.items() if name is not None)
        return min(named, default=self.last + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftovers:
    """Attempts that have left rows, or marks, in a table, and that no commit names.

    Attributes:
        columns: Which columns hold seq and name.
        has_names: Whether the table has the second, as one of an earlier version may not.
    """

    columns: Columns
    has_names: bool
    attempts: frozenset[Attempt]

    def __bool__(self) -> bool:
        return bool(self.attempts)

    def of_failed(self, committed: Attempts) -> Leftovers:
        """Keep those that can commit no more, since their seq is another's."""
        failed = frozenset(each for each in self.attempts if each.seq <= committed.last)
        return Leftovers(columns=self.columns, has_names=self.has_names, attempts=failed)

    def as_filter(self) -> pc.Expression:
        """Tell their rows, for Arrow."""
        if not self:
            return pc.scalar(False)
        seq, name = (pc.field(column) for column in self.columns)
        if not self.has_names:
            return seq.isin(self._seqs)
        return name.isin(self._names) | (name.is_null() & seq.isin(self._seqs))

    def as_sql(self, alias: str = "") -> str:
        """Tell their rows, in the SQL of every engine; ``alias`` names the table, with a dot."""
        seq, name = (f'{alias}"{column}"' for column in self.columns)
        parts = []
        if self._names:
            parts.append(f"coalesce({name}, {_NOBODY}) IN ({', '.join(map(str, self._names))})")
        if self._seqs:
            of_no_name = f"{name} IS NULL AND " if self.has_names else ""
            parts.append(f"({of_no_name}{seq} IN ({', '.join(map(str, self._seqs))}))")
        return f"({' OR '.join(parts)})" if parts else "FALSE"

    @property
    def _names(self) -> list[int]:
        return sorted(each.name for each in self.attempts if each.name is not None)

    @property
    def _seqs(self) -> list[int]:
        return sorted(each.seq for each in self.attempts if each.name is None)


def find_leftovers(
    path: Location,
    committed: Attempts,
    columns: Columns = ROWS,
    *,
    snapshot: DeltaTable | None = None,
) -> Leftovers:
    """Find the attempts in a side table that are not to be believed."""
    snapshot = snapshot or read_delta(path)
    there = {field.name for field in snapshot.schema().fields}
    found: Iterable[Attempt] = ()
    if columns[0] in there:
        found = _attempts_in(path, snapshot, columns, since=committed.first_named)
    return Leftovers(
        columns=columns,
        has_names=columns[1] in there,
        attempts=frozenset(each for each in found if not committed.has_committed(each)),
    )


def _attempts_in(
    path: Location, snapshot: DeltaTable, columns: Columns, *, since: int
) -> Iterator[Attempt]:
    """Yield the attempts that have rows in a table: by its files' statistics, where these tell.

    Files that hold nothing since the first batch that has a name are passed over.
    """
    seq, name = columns
    unclear = []
    for file in pa.table(snapshot.get_add_actions(flatten=True)).to_pylist():
        rows, unset = file["num_records"], file.get(f"null_count.{seq}")
        first, last = file.get(f"min.{seq}"), file.get(f"max.{seq}")
        if (rows is not None and unset == rows) or (last is not None and last < since):
            continue
        is_one_batch = last is not None and first == last and unset == 0
        if is_one_batch and file.get(f"null_count.{name}") == rows:
            yield Attempt(last, None)
        elif is_one_batch and file.get(f"null_count.{name}") == 0 and _is_one(file, name):
            yield Attempt(last, file[f"max.{name}"])
        else:
            unclear.append(unquote(file["path"]))
    if unclear:
        rows = open_rows(path, snapshot=snapshot, only=set(unclear))
        names = [name for name in columns if name in rows.schema.names]
        for row in rows.to_table(columns=names).group_by(names).aggregate([]).to_pylist():
            if row[columns[0]] is not None:
                yield Attempt.of(row, columns)


def _is_one(file: Mapping[str, Any], name: str) -> bool:
    return file.get(f"max.{name}") is not None and file[f"min.{name}"] == file[f"max.{name}"]
