"""What is in a table's log: our own commits, and what others did between them.

The Delta commit of the data table is the one truth about offsets. Each commit of ours carries a
``txn`` action (``oncelake:<stream>``, seq) and, in ``userMetadata``, a note that says why it exists
and how far it read. This page reads them back, without Spark, so that a sensor can too.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from ingestion.notes import Note, app_id
from ingestion.offsets import Offsets, TopicPartition


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """One version of a table's log.

    Attributes:
        version: Delta version.
        timestamp_ms: When it was committed, by the writer's clock.
        operation: Delta's word for it, such as ``MERGE``.
        metrics: Delta's operation metrics, as numbers.
        txns: Version that each application recorded in it.
        note: Our note, or ``None`` when the commit is somebody else's.
    """

    version: int
    timestamp_ms: int
    operation: str
    metrics: Mapping[str, int]
    txns: Mapping[str, int]
    note: Note | None

    @property
    def committed_at(self) -> dt.datetime:
        """When it was committed, UTC."""
        return dt.datetime.fromtimestamp(self.timestamp_ms / 1000, dt.UTC)


class TableLog:
    """The log of one Delta table on a file system, read without Spark."""

    def __init__(self, path: Path) -> None:
        """Take the table's folder; nothing is read yet."""
        self.path = path

    @property
    def exists(self) -> bool:
        """Tell whether there is a Delta table here, as against nothing or stray files."""
        return DeltaTable.is_deltatable(str(self.path))

    def file_count(self) -> int:
        """Count the table's data files; 0 means that it has no row."""
        return len(DeltaTable(self.path).file_uris())

    def versions(self) -> list[int]:
        """List the versions whose commit file is still in the log, newest first."""
        names = (at.stem for at in (self.path / "_delta_log").glob("*.json"))
        return sorted(
            (int(name) for name in names if len(name) == 20 and name.isdigit()), reverse=True
        )

    def read(self, version: int) -> Commit:
        """Read one commit.

        Raises:
            FileNotFoundError: the log does not hold that version, or no longer.
        """
        actions = self._actions(version)
        made: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        metrics = made.get("operationMetrics") or {}
        return Commit(
            version=version,
            timestamp_ms=int(made.get("timestamp", 0)),
            operation=made.get("operation", ""),
            metrics={name: int(value) for name, value in metrics.items() if str(value).isdigit()},
            txns={a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a},
            note=Note.from_json(made.get("userMetadata")),
        )

    def newest_first(self, *, down_to: int = 0) -> Iterator[Commit]:
        """Walk the commits that are still in the log, from the newest to version ``down_to``."""
        return (self.read(version) for version in self.versions() if version >= down_to)

    def find(self, stream: str, seq: int, *, after: int = -1) -> Commit | None:
        """Find the commit that carries a stream's seq, looking only beyond version ``after``."""
        commits = self.newest_first(down_to=after + 1)
        return next((each for each in commits if each.txns.get(app_id(stream)) == seq), None)

    def since_our_newest(self, stream: str) -> tuple[Commit | None, tuple[Commit, ...]]:
        """Return our newest commit that is still in the log, and what others did after it."""
        others: list[Commit] = []
        for commit in self.newest_first():
            if commit.note is not None and app_id(stream) in commit.txns:
                return commit, tuple(others)
            others.append(commit)
        return None, tuple(others)

    def last_seq(self, stream: str) -> int | None:
        """Return the highest seq that the table has recorded for a stream, or ``None``.

        It survives the commit files: Delta's checkpoints keep it.
        """
        version: int | None = DeltaTable(self.path).transaction_version(app_id(stream))
        return version

    def row_count(self) -> int:
        """Count the table's rows, from the statistics of its files."""
        return int(DeltaTable(self.path).count())

    def highest_offsets(self) -> Offsets:
        """Return the offset after the highest ``_offset`` in the rows, a partition.

        A lower bound of what was read: the newest records may have been deletes, or in quarantine.
        """
        dataset = DeltaTable(self.path).to_pyarrow_dataset()
        highest: dict[TopicPartition, int] = {}
        for batch in dataset.to_batches(columns=["_topic", "_partition", "_offset"]):
            for topic, partition, offset in zip(
                *(batch.column(i).to_pylist() for i in range(3)), strict=True
            ):
                at = TopicPartition(topic, partition)
                highest[at] = max(highest.get(at, 0), offset + 1)
        return Offsets(highest)

    def table_id(self) -> str:
        """Return the id that Delta gave the table when it was made."""
        return str(DeltaTable(self.path).metadata().id)

    def _actions(self, version: int) -> list[dict[str, Any]]:
        text = (self.path / "_delta_log" / f"{version:020d}.json").read_text("utf-8")
        return [json.loads(line) for line in text.splitlines() if line.strip()]
