"""The books: every offset and every record accounted for, exactly, or the batch is red.

    offsets in ranges = records read + gaps
    records read      = inserted + updated + deleted + deleted_absent + superseded + stale
                        + unchanged + ignored + filtered + quarantined + overlap
                        + routed_elsewhere + unrouted - exploded
    rows of this seq  = inserted + updated

`exploded` are the rows beyond the first of their record: elements of an array, and the row that an
update ends since it gives it another key. A redrive reads no offsets: its first line is 0 = 0, and
`records read` is what it sent in.

Each count is measured where the design says, and the two sides of each line apart, so that the
lines can fail. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oncelake.ingestion.errors import counted

# Of a stream whose topic fills several tables: records of its siblings, and of nobody.
ROUTED: Final = ("routed_elsewhere", "unrouted")
DISPOSITIONS: Final = (
    "inserted",
    "updated",
    "deleted",
    "deleted_absent",
    "superseded",
    "stale",
    "unchanged",
    "ignored",
    "filtered",
    "quarantined",
    "overlap",
    *ROUTED,
)
COUNTS: Final = ("offsets", "read", "gaps", *DISPOSITIONS)


def imbalances(
    counts: Mapping[str, int], *, rows_of_seq: int, rows_expected: int, kind: str = "ingest"
) -> tuple[str, ...]:
    """Return one sentence for each line of a batch's books that does not balance.

    Args:
        counts: The counts by name; one that is absent is 0.
        rows_of_seq: Rows that carry the batch's seq, read from the table it wrote.
        rows_expected: Rows that it was decided to write.
        kind: Why the commit exists. A redrive reads no offsets, and its first line is
            ``offsets in ranges = gaps = 0``.
    """
    of = {name: counts.get(name, 0) for name in (*COUNTS, "exploded")}
    accounted = sum(of[name] for name in DISPOSITIONS)
    problems = []
    from_offsets = 0 if kind == "redrive" else of["read"]
    if of["offsets"] != from_offsets + of["gaps"] or (kind == "redrive" and of["offsets"]):
        problems.append(
            f"offsets in ranges {of['offsets']} ≠ records read {from_offsets} + gaps {of['gaps']}"
        )
    if of["read"] + of["exploded"] != accounted:
        each = ", ".join(f"{name} {of[name]}" for name in DISPOSITIONS if of[name])
        rows = f" + exploded {of['exploded']}" if of["exploded"] else ""
        problems.append(f"records read {of['read']}{rows} ≠ {accounted} accounted for ({each})")
    if rows_of_seq != rows_expected:
        found = f"the table holds {counted(rows_of_seq, 'row')} of this batch"
        problems.append(f"{found}, expected {rows_expected}")
    problems += [f"{name} is {count}" for name, count in counts.items() if count < 0]
    return tuple(problems)
