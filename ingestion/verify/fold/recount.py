"""A batch's books, counted again from its records, and compared with those of the ledger; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingestion.kafka.offsets import TopicPartition
from ingestion.verify.read.delta_log import Batch
from ingestion.verify.verdict import Difference


@dataclass(kw_only=True, slots=True)
class Recount:
    """What a batch's records became, counted again.

    Attributes:
        exploded: Rows beyond the first of their record.
        superseded: Good records that lost to another of their key.
        dispositions: Dispositions of the winners that leave no doubt.
        doubtful: Winners whose disposition depends on what can no longer be seen.
        clashes: Keys whose records have no order.
        extra: Counts that are no disposition, by name.
    """

    records: Counter[TopicPartition] = field(default_factory=Counter)
    ignored: int = 0
    filtered: int = 0
    quarantined: int = 0
    exploded: int = 0
    superseded: int = 0
    dispositions: Counter[str] = field(default_factory=Counter)
    doubtful: int = 0
    clashes: list[Difference] = field(default_factory=list)
    extra: Counter[str] = field(default_factory=Counter)


def miscounts(batch: Batch, recount: Recount) -> Iterator[Difference]:
    """Compare the counts of a batch that is covered as a whole with those of its records."""
    counts, ranges = batch.counts, [part for part in batch.ranges if part.span]
    for part in ranges:
        records = recount.records[part.at]
        pairs = (("records", records, part.records), ("gaps", part.span - records, part.gaps))
        for name, expected, found in pairs:
            if expected != found:
                yield _miscount(batch, f"{name} in {part}", expected, found)
    span, overlap = sum(part.span for part in ranges), counts.get("overlap", 0)
    # Ranges are what was new; offsets, read and gaps count what was read again as well.
    again, read = counts.get("offsets", 0) - span, recount.records.total()
    # A redrive reads no offsets, so that nothing can be missing between them.
    in_ranges = 0 if batch.kind == "redrive" else read
    expected_counts = {
        "offsets": span + again * bool(overlap),
        "read": read + overlap,
        "gaps": span - in_ranges + (again - overlap) * bool(overlap),
        "ignored": recount.ignored,
        "filtered": recount.filtered,
        "quarantined": recount.quarantined,
        "superseded": recount.superseded,
        "exploded": recount.exploded,
    }
    if not recount.doubtful:
        expected_counts |= recount.extra
    for name, expected in expected_counts.items():
        if expected != counts.get(name, 0):
            yield _miscount(batch, name, expected, counts.get(name, 0))
    yield from _miscounted_winners(batch, recount)


def _miscounted_winners(batch: Batch, recount: Recount) -> Iterator[Difference]:
    left_alone = ("deleted_absent", "stale", "unchanged")
    split: list[tuple[str, ...]] = [("inserted",), ("updated",), ("deleted",)]
    # A row healed after a crash knows how many winners were left alone, and not why.
    split += [left_alone] if batch.counts.get("derived") else [(name,) for name in left_alone]
    total = 0
    for names in split:
        found = sum(batch.counts.get(name, 0) for name in names)
        least = sum(recount.dispositions[name] for name in names)
        total += found
        if not least <= found <= least + recount.doubtful:
            yield _miscount(batch, " + ".join(names), least, found)
    winners = recount.dispositions.total() + recount.doubtful
    if total != winners:
        yield _miscount(batch, "winners accounted for", winners, total)


def _miscount(batch: Batch, name: str, expected: int, found: int) -> Difference:
    what = f"{name}, counted again"
    return Difference("dispositions", what, seq=batch.seq, expected=str(expected), found=str(found))
