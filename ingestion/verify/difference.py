"""What a proof finds wrong, one by one, and the limit to how much of it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Part = Literal["ledger", "dispositions", "quarantine", "rows"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing that is not as the topic, or the log, says.

    Attributes:
        part: What was being proven.
        what: What is wrong, in a sentence without its end.
        key: The row's key columns, by name.
        topic: Topic of the record that tells.
        partition: Its partition.
        offset: Its offset.
        seq: The batch.
        expected: What should be there.
        found: What is there.
    """

    part: Part
    what: str
    key: dict[str, str] | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
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

    def as_row(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


class DifferenceLog:
    """The differences found: all are counted, the first are kept."""

    def __init__(self, limit: int) -> None:
        """Take how many to keep."""
        self._limit = limit
        self.counts: Counter[str] = Counter()
        self.kept: list[Difference] = []

    def add(self, found: Iterable[Difference]) -> None:
        """Take differences."""
        for each in found:
            self.counts[each.part] += 1
            if len(self.kept) < self._limit:
                self.kept.append(each)

    @property
    def total(self) -> int:
        """How many there are, kept or not."""
        return self.counts.total()


def shown(value: object) -> str:
    """Write a value for people: in full where it is short."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
