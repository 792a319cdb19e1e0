"""What came out of a proof: what holds, what does not, and what could not be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingestion.kafka.offsets import Range
from ingestion.verify.difference import Difference


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What came out of a proof.

    Attributes:
        stream: The stream's name.
        table: Folder of its table.
        delta_version: The version that was proven.
        seq: The last batch that was proven; 0 before the first.
        epoch: Life of the stream's identity at that batch.
        proven: The offsets that were read again, one range a partition.
        records: How many records they held.
        batches: How many batches were counted again.
        commits: How many commits of ours were held against the ledger.
        rows: How many rows were compared.
        quarantined: How many records belong in quarantine.
        differences: What is wrong: the first of them.
        difference_count: How many there are of each part of the proof.
        limits: What could not be seen any more, or a person accepted; it is no fault.
        obstacles: What this proof does not understand; nothing may be taken for proven.
    """

    stream: str
    table: str
    delta_version: int
    seq: int
    epoch: int
    proven: tuple[Range, ...]
    records: int
    batches: int
    commits: int
    rows: int
    quarantined: int
    differences: tuple[Difference, ...]
    difference_count: Mapping[str, int]
    limits: tuple[str, ...]
    obstacles: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Tell whether everything that could be proven holds."""
        return not self.total and not self.obstacles

    @property
    def total(self) -> int:
        """How many differences there are."""
        return sum(self.difference_count.values())

    @property
    def headline(self) -> str:
        """Say what came out, in one line."""
        about = f"{self.stream} through batch {self.seq} (Delta version {self.delta_version})"
        if self.total:
            parts = ", ".join(f"{name} {n:,}" for name, n in self.difference_count.items())
            return f"{about}: FAILED: differences {self.total:,} ({parts})"
        if self.obstacles:
            return f"{about}: not proven: {'; '.join(self.obstacles)}"
        return f"{about}: proven: " + " · ".join(
            f"{name} {getattr(self, name):,}" for name in _COUNTS
        )

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "stream": self.stream,
            "holds": self.holds,
            "table": self.table,
            "delta_version": self.delta_version,
            "seq": self.seq,
            "epoch": self.epoch,
            "proven": [
                {"topic": r.topic, "partition": r.partition, "start": r.start, "end": r.end}
                for r in self.proven
            ],
            **{name: getattr(self, name) for name in _COUNTS},
            "difference_count": {"total": self.total, **self.difference_count},
            "differences": [each.as_row() for each in self.differences],
            "limits": list(self.limits),
            "obstacles": list(self.obstacles),
        }


_COUNTS = ("records", "batches", "commits", "rows", "quarantined")
