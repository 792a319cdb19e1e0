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
from collections.abc import Iterable, Iterator, Mapping
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
    """One attempt at a batch."""

    seq: int
    name: int | None

    @classmethod
    def of(cls, row: Mapping[str, Any], columns: Columns = ROWS) -> Attempt:
        """Read the attempt that a row names."""
        return cls(row[columns[0]], row[columns[1]])

    def as_sql(self) -> str:
        """Tell its rows, in the SQL of every engine."""
        return " AND ".join(f"{name} = {value}" for name, value in zip(ROWS, self, strict=True))

    def as_filter(self, columns: Columns) -> pc.Expression:
        """Tell its rows, or its marks, for Arrow."""
        seq, name = (pc.field(column) for column in columns)
        return (seq == self.seq) & (name.is_null() if self.name is None else name == self.name)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftovers:
    """Attempts that have left rows, or marks, in a table, and that no commit names.

    Attributes:
        columns: Which columns hold seq and name.
    """

    columns: Columns
    attempts: frozenset[Attempt]

    def __bool__(self) -> bool:
        return bool(self.attempts)

    def of_failed(self, committed: Attempts) -> Leftovers:
        """Keep those that can commit no more, since their seq is another's."""
        failed = frozenset(each for each in self.attempts if each.seq <= committed.last)
        return Leftovers(columns=self.columns, attempts=failed)

    def as_filter(self) -> pc.Expression:
        """Tell their rows, for Arrow."""
        return pc.field(self.columns[1]).isin(self._names) if self else pc.scalar(False)

    def as_sql(self, alias: str = "") -> str:
        """Tell their rows, in the SQL of every engine; ``alias`` names the table, with a dot."""
        if not self:
            return "FALSE"
        names = ", ".join(map(str, self._names))
        return f'coalesce({alias}"{self.columns[1]}", {_NOBODY}) IN ({names})'

    @property
    def _names(self) -> list[int]:
        return sorted(each.name for each in self.attempts if each.name is not None)


def find_leftovers(
    path: Location,
    committed: Attempts,
    columns: Columns = ROWS,
    *,
    snapshot: DeltaTable | None = None,
) -> Leftovers:
    """Find the attempts in a side table that are not to be believed."""
    found = _attempts_in(path, snapshot or read_delta(path), columns)
    others = frozenset(each for each in found if not committed.has_committed(each))
    return Leftovers(columns=columns, attempts=others)


def _attempts_in(path: Location, snapshot: DeltaTable, columns: Columns) -> Iterator[Attempt]:
    """Yield the attempts that have rows in a table: by its files' statistics, where these tell."""
    seq, name = columns
    unclear = []
    for file in pa.table(snapshot.get_add_actions(flatten=True)).to_pylist():
        rows, unset = file["num_records"], file.get(f"null_count.{seq}")
        first, last = file.get(f"min.{seq}"), file.get(f"max.{seq}")
        if rows is not None and unset == rows:
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
        named = rows.to_table(columns=list(columns)).group_by(list(columns)).aggregate([])
        for row in named.to_pylist():
            if row[columns[0]] is not None:
                yield Attempt.of(row, columns)


def _is_one(file: Mapping[str, Any], name: str) -> bool:
    return file.get(f"max.{name}") is not None and file[f"min.{name}"] == file[f"max.{name}"]
