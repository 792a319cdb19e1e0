"""Batches as the ledger has them, and commits as the table's log has them.

Both are read here a second time: by delta-rs and as plain JSON, into shapes of their own that
refuse nothing, since what is wrong must be reported and not raised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable

from ingestion.kafka.offsets import TopicPartition
from ingestion.lake.table_log import open_dataset


class OffsetRange(NamedTuple):
    """Offsets of one partition, end exclusive, and how many of them hold a record."""

    at: TopicPartition
    start: int
    end: int
    records: int
    gaps: int

    @property
    def span(self) -> int:
        """How many offsets there are."""
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        """Write it as mathematics does."""
        return f"{self.at} [{self.start}, {self.end})"

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> OffsetRange:
        """Read one as ledger and commits write it."""
        at = TopicPartition(row["topic"], row["partition"])
        return cls(at, row["start"], row["end"], row["records"], row["gaps"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One row of the ledger."""

    table_id: str
    seq: int
    kind: str
    epoch: int
    run_id: str
    delta_version: int
    ranges: tuple[OffsetRange, ...]
    counts: Mapping[str, int]
    balanced: bool
    accepted: str | None
    columns: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedCommit:
    """One version of a table's log.

    Attributes:
        txn: The version that it records for our application id, if any.
        metadata: What a commit of ours says of itself.
    """

    version: int
    txn: int | None
    metadata: Mapping[str, Any] | None

    @property
    def is_ours(self) -> bool:
        """Tell whether the stream's engine made it."""
        return self.txn is not None or self.metadata is not None

    @property
    def seq(self) -> int:
        """Number of its batch; -1 when it is not ours."""
        return int((self.metadata or {}).get("seq", -1 if self.txn is None else self.txn))

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """What it says that it read."""
        return tuple(map(OffsetRange.of_row, (self.metadata or {}).get("ranges", ())))


def read_ledger(path: Path) -> tuple[Batch, ...]:
    """Read every row of a ledger, by seq; none when there is no ledger."""
    if not DeltaTable.is_deltatable(str(path)):
        return ()
    rows = open_dataset(DeltaTable(path)).to_table().to_pylist(maps_as_pydicts="lossy")
    names = Batch.__dataclass_fields__
    batches = (
        Batch(
            **{
                **{name: row[name] for name in names if name in row},
                "columns": json.loads(row.get("identity") or "{}").get("columns", ""),
                "ranges": tuple(map(OffsetRange.of_row, row["ranges"] or ())),
                "counts": row["counts"] or {},
            }
        )
        for row in rows
    )
    return tuple(sorted(batches, key=lambda batch: batch.seq))


def read_log(path: Path, stream: str, *, through: int) -> tuple[LoggedCommit, ...]:
    """Read the commits that are still in a table's log, oldest first, up to a version."""
    files = sorted((path / "_delta_log").glob("*.json"))
    numbered = ((int(file.stem), file) for file in files if file.stem.isdigit())
    return tuple(_commit(n, file, stream) for n, file in numbered if n <= through)


def _commit(version: int, file: Path, stream: str) -> LoggedCommit:
    with file.open(encoding="utf-8") as lines:
        # A commit's other actions are about files, which may be many.
        actions = [json.loads(n) for n in lines if n.startswith(('{"commitInfo"', '{"txn"'))]
    made: Mapping[str, Any] = {}
    txn = None
    for action in actions:
        made = action.get("commitInfo", made)
        if (mark := action.get("txn", {})).get("appId") == f"oncelake:{stream}":
            txn = mark["version"]
    return LoggedCommit(version=version, txn=txn, metadata=_metadata(made.get("userMetadata")))


def _metadata(text: str | None) -> Mapping[str, Any] | None:
    try:
        metadata = json.loads(text or "")
    except ValueError:
        return None
    return metadata if isinstance(metadata, dict) and "oncelake" in metadata else None
