"""The outcome of a proof: what holds, what does not, and what is not proven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Literal

from oncelake.ingestion.declaration.sinks import named_version
from oncelake.ingestion.errors import counted
from oncelake.ingestion.kafka.offsets import Range

Part = Literal["ledger", "dispositions", "quarantine", "tombstones", "rows"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as the topic, or the log, says: ``what`` is a sentence without its end.

    ``key`` has the row's key columns by name; topic, partition and offset are the record's.
    """

    part: Part
    what: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    _: KW_ONLY
    key: dict[str, str] | None = None
    seq: int | None = None
    expected: str | None = None
    found: str | None = None

    def __str__(self) -> str:
        """Say it in one line."""
        named = ", ".join(f"{name}={value}" for name, value in (self.key or {}).items())
        where = f"{self.topic}-{self.partition} offset {self.offset}" if self.topic else ""
        batch = f"batch {self.seq}" if self.seq is not None else ""
        about = " · ".join(filter(None, (f"key ({named})" if named else "", where, batch)))
        both = (("expected", self.expected), ("found", self.found))
        sides = ", ".join(f"{name} {side}" for name, side in both if side is not None)
        return ": ".join(filter(None, (about, self.what, sides)))


class DifferenceLog:
    """The differences found: all are counted, the first are kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.counts: Counter[str] = Counter()
        self.kept: list[Difference] = []

    def add(self, differences: Iterable[Difference]) -> None:
        """Count differences, and keep the first."""
        for difference in differences:
            self.counts[difference.part] += 1
            if len(self.kept) < self._limit:
                self.kept.append(difference)


def shown(value: object) -> str:
    """Write a value for people: in full where it is short."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The outcome of a proof.

    Attributes:
        seq: The last batch that was proven; 0 before the first.
        proven: The offsets that were read again, one range a partition.
        batches: How many batches were counted again.
        commits: How many commits of ours were compared with the ledger.
        quarantined: How many records belong in quarantine.
        differences: What is wrong: the first of them; ``difference_count`` counts all, by part.
        limits: What is no longer covered, or what a person accepted; it is no fault.
        obstacles: What this proof does not understand; then nothing is proven.
        memory: What the proof has gone on from, or why it was begun anew.
        record_by_record: Why the records were not decoded and folded all at once, if they were not.
        seconds: How long the proof took.
        adopted: Of an adopted table, which rows are of no record, and where records begin.
        routes: Of a stream with siblings, the records that all of them have read, and whose they
            are; empty where they have read none together.
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
    sink: str = "delta"
    memory: str | None = None
    record_by_record: str | None = None
    seconds: float = 0.0
    routes: Mapping[str, int] | None = None
    adopted: str | None = None

    @property
    def equation(self) -> str | None:
        """Say whose the records are that a stream and its siblings have read, in one line."""
        if self.routes is None:
            return None
        if not self.routes:
            return "routes: all tables of the file have read no offsets together, by these routes"
        (_, records), *others = self.routes.items()
        terms = " + ".join(f"{name} {count:,}" for name, count in others if count)
        return f"routes: {counted(records, 'record')} = {terms}"

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
        """Say it in one line."""
        version = named_version(self.sink, self.delta_version)
        about = f"{self.stream} through batch {self.seq} ({version})"
        if self.total:
            parts = ", ".join(f"{name} {n:,}" for name, n in self.difference_count.items())
            return f"{about}: FAILED: {counted(self.total, 'difference')} ({parts})"
        if self.obstacles:
            return f"{about}: not proven: {'; '.join(self.obstacles)}"
        names = ("records", "batches", "commits", "rows", "quarantined")
        counts = " · ".join(f"{name} {getattr(self, name):,}" for name in names)
        return f"{about}: proven: {counts}"

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        counts = {"total": self.total, **self.difference_count}
        return {**asdict(self), "holds": self.holds, "difference_count": counts}
