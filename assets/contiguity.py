"""Whether the ledger's ranges follow one another; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from ingestion.kafka.offsets import Offsets, Range, TopicPartition
from ingestion.lake.ledger import LedgerRow

_Read = tuple[int, Range]


def breaks(
    rows: Iterable[LedgerRow], *, epoch: int, reached: Offsets
) -> Iterator[tuple[TopicPartition, str]]:
    """Say where the ranges of an epoch leave a hole or overlap, by partition.

    Args:
        rows: The ledger of one table, by seq.
        epoch: Life of the stream's identity; offsets of another mean other records.
        reached: The table's next offsets, where the last range of each partition must end.
    """
    for at, reads in sorted(_by_partition(rows, epoch).items()):
        for (before, earlier), (seq, later) in pairwise(reads):
            if not later.follows(earlier):
                what = "a hole" if later.start > earlier.end else "an overlap"
                low, high = sorted((earlier.end, later.start))
                yield at, f"{what} [{low}, {high}) between batch {before} and batch {seq}"
        seq, last = reads[-1]
        if last.end != reached.get(at):
            yield (
                at,
                f"batch {seq} ends at {last.end}, the table's next offset is {reached.get(at)}",
            )


def _by_partition(rows: Iterable[LedgerRow], epoch: int) -> dict[TopicPartition, list[_Read]]:
    """Return seq and range of everything that moved offsets."""
    found: dict[TopicPartition, list[_Read]] = {}
    for row in rows:
        if row.epoch == epoch and row.kind in {"ingest", "accept"}:
            for range_ in (counted.range for counted in row.ranges if len(counted.range)):
                found.setdefault(range_.topic_partition, []).append((row.seq, range_))
    return found
