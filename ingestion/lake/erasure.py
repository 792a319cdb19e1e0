"""The ledger's row of an erased key: a digest, and how far the topic was read then.

A truncate of the source is one of all keys, up to its own offset. The key itself is nowhere.
Records before those offsets are left out when they are read again, also into a new table, which
takes the erasures over before it reads; later ones are new, and come in as any other. A digest of a
key that can be guessed can be tried, so the salt makes every erasure different, and no more.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from oncelake.ingestion.delta.commits import delete_rows
from oncelake.ingestion.delta.files import is_delta, open_rows
from oncelake.ingestion.kafka.offsets import Offsets, Range
from oncelake.ingestion.lake.ledger import LedgerRow, standing_rows
from oncelake.ingestion.storage.location import Location


@dataclass(frozen=True, kw_only=True, slots=True)
class Digest:
    """The values of some columns, unreadable; of none, which all rows have in common."""

    columns: tuple[str, ...]
    salt: str
    digest: str

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Digest:
        """Digest values, with a salt of their own."""
        salt = secrets.token_hex(16)
        return cls(columns=tuple(values), salt=salt, digest=_digest(salt, values.values()))

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Digest:
        """Read what ``as_row`` wrote."""
        return cls(columns=tuple(row["columns"]), salt=row["salt"], digest=row["digest"])

    def as_row(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return {**asdict(self), "columns": list(self.columns)}

    def is_of(self, values: Iterable[Any]) -> bool:
        """Tell whether it was made of these values, in the order of the columns.

        Spark returns a moment in the zone of this process, and without saying so.
        """
        given = list(values)
        in_utc = [v.astimezone(dt.UTC) if isinstance(v, dt.datetime) else v for v in given]
        return self.digest in {_digest(self.salt, given), _digest(self.salt, in_utc)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Erasure:
    """One erase.

    Attributes:
        until: Offsets that had been read by then.
        is_complete: Whether it came to its end.
    """

    seq: int
    epoch: int
    digest: Digest
    until: Offsets
    is_complete: bool

    @property
    def is_truncate(self) -> bool:
        """Tell whether it was of all keys, up to a truncate of the source."""
        return not self.digest.columns

    def is_behind(self, at: Offsets, epoch: int) -> bool:
        """Tell whether it was a truncate of an epoch, and these offsets are none behind it."""
        known = all(offset <= self.until.get(part, -1) for part, offset in at.items())
        return self.is_truncate and self.epoch == epoch and known

    def may_leave_out(self, epoch: int, ranges: Sequence[Range]) -> bool:
        """Tell whether some records of an epoch, those of no range or of these, were read by then.

        Of an earlier epoch all were.
        """
        before = (each.start < self.until.get(each.topic_partition, 0) for each in ranges)
        return epoch < self.epoch or (epoch == self.epoch and (not ranges or any(before)))


# The count of an erase that came to its end.
COMPLETE = "erase_complete"
# The count of an erase that did an earlier one again, before that one's seq.
COMPLETES = "erase_completes."


def erasures(rows: Sequence[LedgerRow]) -> tuple[Erasure, ...]:
    """Return every erase of a table, and the truncates that stand, by its ledger rows."""
    standing = {row.seq for row in standing_rows(rows)}
    return tuple(
        Erasure(
            seq=row.seq,
            epoch=row.epoch,
            digest=Digest.of_row(row.erased),
            until=Offsets.from_json(row.erased["until"]),
            is_complete=row.kind == "truncate" or COMPLETE in row.counts,
        )
        for row in rows
        if row.erased is not None and (row.kind == "erase" or row.seq in standing)
    )


def said_of(values: Mapping[str, Any], reached: Offsets) -> dict[str, Any]:
    """Return what the commit of an erase says of it, and the ledger keeps."""
    return {**Digest.of(values).as_row(), "until": reached.to_json()}


def finish_erasures(tombstones: Location, rows: Sequence[LedgerRow]) -> None:
    """Forget the deletes of keys whose erase died behind its commit.

    A record that comes now is not older than them: to the table its key is new.
    """
    for erasure in unfinished(rows):
        if is_delta(tombstones):
            columns = list(erasure.digest.columns)
            keys = open_rows(tombstones).to_table(columns=columns)
            keys = keys.group_by(columns).aggregate([])
            erased = [erasure.digest.is_of(key.values()) for key in keys.to_pylist()]
            if any(erased):
                delete_rows(tombstones, keys.filter(pa.array(erased)), before=erasure.seq)


def unfinished(rows: Sequence[LedgerRow]) -> tuple[Erasure, ...]:
    """Return the erasures that died before their end, and were not done again."""
    begun = [each for each in erasures(rows) if not each.is_complete]
    return tuple(
        each for each in begun if not any(f"{COMPLETES}{each.seq}" in row.counts for row in rows)
    )


def _digest(salt: str, values: Iterable[Any]) -> str:
    same = list(map(_normal, values))
    return hashlib.sha256(f"{salt} {same!r}".encode()).hexdigest()


def _normal(value: Any) -> Any:
    """Return a value in one form: a moment in UTC, and bytes as such."""
    if isinstance(value, bytearray):
        return bytes(value)
    is_moment = isinstance(value, dt.datetime) and value.tzinfo
    return value.astimezone(dt.UTC) if is_moment else value
