"""Offsets that hold no record, and the proof that they hold none.

Transaction markers, aborted records and compacted records leave offsets empty, lawfully. A source
that skips a record leaves the same trace. So a gap is never a remainder: a query finds each missing
offset in the copy, and a second client reads it again, before anything is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from oncelake.ingestion.errors import RecordsMissedError, counted
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.pipeline.counts import BatchCounts

# Beyond so many holes in a batch, asking costs more than the batch; ``verify`` does it instead.
ASKED_AT_MOST = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Gaps:
    """The offsets of a batch that hold no record.

    Attributes:
        holes: Each run of them.
        proven: Whether the second client has found every one of them empty.
    """

    holes: tuple[Range, ...]
    proven: bool

    def within(self, part: Range) -> int:
        """Count the gaps that lie in a range."""
        return sum(
            max(0, min(hole.end, part.end) - max(hole.start, part.start))
            for hole in self.holes
            if hole.topic_partition == part.topic_partition
        )


def find_gaps(
    engine: Engine,
    planned: Sequence[Range],
    counts: BatchCounts,
    *,
    kafka: Kafka,
    policy: Literal["auto", "always", "never"],
) -> Gaps:
    """Find every offset that was planned and not read, and prove it empty.

    Raises:
        RecordsMissedError: an offset that Spark passed over holds a record.
        DependencyError: Kafka stopped answering before the proof was complete.
    """
    without_records = [r for r in planned if len(r) and r.topic_partition not in counts.partitions]
    holes = [*without_records, *_holes_between(engine, planned, counts)]
    left = []
    if policy == "always" or (policy == "auto" and len(holes) <= ASKED_AT_MOST):
        # Retention may have passed a hole since Spark read over it. Spark found it empty while it
        # was there, so the records that were read are kept, and the gap is marked as unproven.
        earliest = kafka.earliest({hole.topic_partition for hole in holes})
        left = [hole for hole in holes if hole.start >= earliest[hole.topic_partition]]
    if missed := list(kafka.records_in(left)):
        first = ", ".join(f"{at} offset {offset}" for at, offset in missed[:5])
        raise RecordsMissedError(
            f"Spark did not deliver {counted(len(missed), 'record')} that Kafka holds: {first}. "
            "Nothing was committed. Next: run the same command again; if it stays, report it with "
            "these offsets"
        )
    return Gaps(holes=tuple(holes), proven=left == holes)


def _holes_between(engine: Engine, planned: Sequence[Range], counts: BatchCounts) -> list[Range]:
    """Find the missing offsets of the partitions that have records, but not one an offset."""
    at = counts.partitions
    holed = [r for r in planned if (p := r.topic_partition) in at and not at[p].fills(r)]
    if not holed:
        return []
    # An offset on either side of a range shows what is missing at its ends.
    fences = (
        f"SELECT {sql.text(r.topic)}, {r.partition}, CAST({at} AS BIGINT)"
        for r in holed
        for at in (r.start - 1, r.end)
    )
    is_holed = " OR ".join(
        f"(_topic = {sql.text(r.topic)} AND _partition = {r.partition})" for r in holed
    )
    missing = engine.rows(f"""
        WITH offsets AS (
            SELECT _topic, _partition, _offset FROM batch WHERE _index = 0 AND ({is_holed})
            UNION ALL {" UNION ALL ".join(fences)}
        ),
        pairs AS (
            SELECT *,
                lag(_offset) OVER (PARTITION BY _topic, _partition ORDER BY _offset) AS _before
            FROM offsets
        )
        SELECT _topic, _partition, _before, _offset FROM pairs WHERE _offset - _before > 1
        ORDER BY _topic, _partition, _offset
    """)
    return [
        Range(
            topic=row["_topic"],
            partition=row["_partition"],
            start=row["_before"] + 1,
            end=row["_offset"],
        )
        for row in missing
    ]
