"""The note of a commit of ours: why it exists, how far it read, and what it names beside it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from oncelake.ingestion.kafka.last_record import LastRecords, of_rows, rows_of
from oncelake.ingestion.kafka.offsets import Offsets, Range
from oncelake.ingestion.tables.format import known, marks, refuse_newer

Kind = Literal[
    "ingest", "replay", "redrive", "accept", "rewind", "schema", "erase", "truncate", "adopt"
]

# Only these move offsets.
MOVING: Final[frozenset[Kind]] = frozenset({"ingest", "accept", "rewind", "adopt"})
# The count of a rewind that names the batch to whose state it went back.
REWOUND_TO: Final = "rewound_to"
# The table's constraints on the rows of a batch, beside the fields of the declaration.
CONSTRAINTS: Final = "constraints"

SideName = Literal["quarantine", "tombstones"]
# What a commit names files of: rows of the side tables, and the records of the quarantine that a
# redrive has sent in.
SideFileName = SideName | Literal["redriven"]


class DamagedMetadataError(ValueError):
    """A commit's metadata of ours is not as it was written."""


def app_id(stream: str) -> str:
    """Return the application id under which a stream's commits are fenced."""
    return f"oncelake:{stream}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The meaning of a stream's offsets and order; when it changes, a new epoch must begin.

    Attributes:
        topic_ids: KIP-516 id of each topic.
        order: Columns of ``sequence_by``.
        rule: How records become rows, as ``StreamSpec.rule`` says it.
    """

    cluster_id: str
    topic_ids: Mapping[str, str]
    keys: tuple[str, ...]
    order: tuple[str, ...]
    rule: str = "upsert"

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Identity:
        """Read what ``as_row`` wrote."""
        return _IDENTITY.validate_python(row)

    def as_row(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return {**asdict(self), "topic_ids": dict(self.topic_ids)}


_IDENTITY = TypeAdapter(Identity)
UNKNOWN = Identity(cluster_id="", topic_ids={}, keys=(), order=())


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedRange:
    """A range, and what the batch found in it.

    Attributes:
        gaps: Offsets in it that hold no record.
    """

    range: Range
    records: int
    gaps: int

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> CountedRange:
        """Read what ``as_row`` wrote."""
        place = {name: row[name] for name in ("topic", "partition", "start", "end")}
        return cls(range=Range(**place), records=row["records"], gaps=row["gaps"])

    def as_row(self) -> dict[str, Any]:
        """Return the fields by the names that ledger, metadata and ``--json`` use."""
        return {**asdict(self.range), "records": self.records, "gaps": self.gaps}


def ranges_at(offsets: Offsets) -> tuple[CountedRange, ...]:
    """Return an empty range of each partition: so the ledger, too, knows where a stream goes on."""
    empty = (
        Range(topic=at.topic, partition=at.partition, start=n, end=n) for at, n in offsets.items()
    )
    return tuple(CountedRange(range=each, records=0, gaps=0) for each in empty)


@dataclass(frozen=True, kw_only=True, slots=True)
class SideFile:
    """A file of Parquet beside the table, which counts once a commit names it.

    Attributes:
        path: Its name in the folder of the side table.
        rows: How many were read back from it.
        size: In bytes.
        checksum: CRC-32 of all of it.
    """

    path: str
    rows: int
    size: int
    checksum: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitMetadata:
    """The note of a commit of ours, in ``userMetadata``.

    Attributes:
        columns: The declared columns, as the user wrote them.
        declaration: What else of the declaration decides what a record says, by field: see
            ``ingestion.declaration.spec.meaning``; ``None`` of a table that is opened.
        next: Next offset of every partition after this commit.
        last: The last record that was read of each partition, where one was.
        counts: The counts known before the commit.
        reason: Why a person decided so, where one did.
        accepts: Seqs whose red verdict this commit accepts.
        erased: What was erased, of an erase or a truncate: see ``ingestion.lake.erasure``.
        side: The files that it adds to the side tables: see ``ingestion.lake.side_tables``.
        adopted: What was found in a table that somebody else had filled: see
            ``ingestion.operations.audit.adopt``.
    """

    kind: Kind
    seq: int
    run_id: str
    epoch: int
    identity: Identity
    columns: str
    next: Offsets
    last: LastRecords = field(default_factory=dict)
    ranges: tuple[CountedRange, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None
    accepts: tuple[int, ...] = ()
    erased: Mapping[str, Any] | None = None
    declaration: Mapping[str, Any] | None = None
    side: Mapping[SideFileName, SideFile] = field(default_factory=dict)
    adopted: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """Write the metadata as ``userMetadata`` holds it, with a checksum over all of it."""
        said = {
            **marks(),
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "identity": self.identity.as_row(),
            "ranges": [counted.as_row() for counted in self.ranges],
            "next": json.loads(self.next.to_json()),
            "last": rows_of(self.last),
            "counts": dict(self.counts),
            "side": {name: asdict(file) for name, file in self.side.items()} or None,
        }
        for name in ("erased", "declaration", "side", "adopted"):
            if said[name] is None:
                del said[name]
        return json.dumps({**said, "check": _checksum(said)})

    @classmethod
    def from_json(cls, text: str | None, stream: str, where: object) -> CommitMetadata | None:
        """Read a commit's metadata; ``None`` for a commit that is not ours.

        Args:
            text: The note, if there is any.
            stream: Whose table it is.
            where: The table, for people.

        Raises:
            DamagedMetadataError: it is ours, and not as it was written.
            NewerFormatError: a newer version wrote it.
        """
        try:
            raw = json.loads(text or "")
        except ValueError:
            return None
        if not isinstance(raw, dict) or "oncelake" not in raw:
            return None
        said = {name: value for name, value in raw.items() if name != "check"}
        if raw.get("check") != _checksum(said):
            raise DamagedMetadataError("the metadata in it does not match its own checksum")
        refuse_newer(stream, where, raw)
        read = {
            "identity": Identity.of_row(raw["identity"]),
            "ranges": tuple(map(CountedRange.of_row, raw["ranges"])),
            "next": Offsets.from_json(json.dumps(raw["next"])),
            "last": of_rows(raw["last"]),
            "accepts": tuple(raw["accepts"]),
            "side": {
                name: SideFile(**known(SideFile, file))
                for name, file in raw.get("side", {}).items()
            },
        }
        return cls(**known(cls, raw) | read)


def _checksum(said: Mapping[str, Any]) -> int:
    """Sum up a commit's metadata, so that a flipped digit in it cannot be taken for an offset."""
    return zlib.crc32(json.dumps(said, sort_keys=True).encode())
