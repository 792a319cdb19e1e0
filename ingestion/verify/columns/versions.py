"""The fold of all batches where every record is a version of its key (scd2).

A version is valid until the next event of its key, whichever batch that came with. What a batch has
done is read from the events of its keys as it left them, in their order: a delete ends the version
before it, and a new event closes an older version before it, unless that one ended at the same
moment before. Where the events of a key came in their order, all batches share one such line; a key
with a late event has a line for each of its batches.

Where columns are tracked, an event that has those of the event before it begins no version. There,
a line with a late event is compared with what it was without the events of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import duckdb

from oncelake.ingestion.verify.columns.events import version_digest
from oncelake.ingestion.verify.columns.fold import TOUCHED
from oncelake.ingestion.verify.fold.rule import Recount

# A place that is read again is no other event; the first reading counts.
_READINGS: Final = "CREATE TEMP TABLE readings AS SELECT *, {again} AS again FROM events"
_AGAIN: Final = "row_number() OVER (PARTITION BY k, o0, tp, off ORDER BY seq) > 1"
_LINES: Final = """
WITH once AS (SELECT * EXCLUDE (again) FROM readings WHERE NOT again),
late AS (
    SELECT DISTINCT k FROM (
        SELECT k, lag(seq) OVER (PARTITION BY k ORDER BY o0, tp, off) > seq AS is_late FROM once
    ) WHERE is_late
),
batches AS (SELECT DISTINCT k, seq AS batch FROM once SEMI JOIN late USING (k)),
lines AS (
    SELECT *, seq AS batch, 0 AS line FROM once ANTI JOIN late USING (k)
    UNION ALL BY NAME
    SELECT once.*, batch, batch AS line FROM once JOIN batches USING (k) WHERE seq <= batch
)
"""
_COUNTS: Final = f"""{_LINES},
events_in_line AS (
    SELECT *, lag(seq) OVER line AS seq_before, lag(gone) OVER line AS gone_before,
        first_value(CASE WHEN seq < batch THEN o0 END IGNORE NULLS) OVER (
            line ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ) AS older_end
    FROM lines WINDOW line AS (PARTITION BY k, line ORDER BY o0, tp, off)
)
SELECT batch, count(*) FILTER (NOT gone) AS inserted,
    count(*) FILTER (gone AND NOT gone_before) AS deleted,
    count(*) FILTER (gone AND coalesce(gone_before, TRUE)) AS deleted_absent,
    count(*) FILTER (
        NOT gone_before AND seq_before < batch AND older_end IS DISTINCT FROM o0
    ) AS closed
FROM events_in_line WHERE seq = batch GROUP BY batch
"""
# The events of a line, and whether each begins or ends a version.
_SHOWN: Final = """
SELECT *, gone OR coalesce(gone_before, TRUE) OR t IS DISTINCT FROM t_before AS is_shown FROM (
    SELECT *, lag(gone) OVER line AS gone_before, lag(t) OVER line AS t_before
    FROM ({events}) WINDOW line AS (PARTITION BY {line} ORDER BY o0, tp, off)
)
"""
_ENDED: Final = f"""
SELECT *, lead(o0) OVER line AS ended, lag(gone) OVER line AS end_before,
    lag(seq) OVER line AS seq_before
FROM ({_SHOWN.format(events="{events}", line="k, line")})
WINDOW line AS (PARTITION BY k, line, is_shown ORDER BY o0, tp, off)
"""
_TRACKED_COUNTS: Final = f"""{_LINES},
after AS ({_ENDED.format(events="FROM lines")}),
before AS ({_ENDED.format(events="FROM lines WHERE line > 0 AND seq < batch")})
SELECT a.batch, count(*) FILTER (a.seq = a.batch AND NOT a.gone AND a.is_shown) AS inserted,
    count(*) FILTER (a.seq = a.batch AND a.gone AND NOT a.gone_before) AS deleted,
    count(*) FILTER (a.seq = a.batch AND a.gone AND coalesce(a.gone_before, TRUE)) AS absent,
    count(*) FILTER (CASE WHEN a.line = 0
        THEN a.is_shown AND NOT a.end_before AND a.seq_before < a.batch
        ELSE NOT a.gone AND a.is_shown AND b.is_shown AND a.ended IS DISTINCT FROM b.ended
    END) AS closed,
    count(*) FILTER (a.seq = a.batch AND NOT a.gone AND NOT a.is_shown) AS untracked,
    count(*) FILTER (b.is_shown AND NOT a.is_shown) AS withdrawn,
    count(*) FILTER (a.is_shown AND NOT b.is_shown) AS restored
FROM after a LEFT JOIN before b USING (k, line, o0, tp, off) GROUP BY a.batch
"""
_UNCHANGED: Final = "SELECT seq, count(*) FROM readings WHERE again GROUP BY seq"
_REMEMBERED: Final = """
SELECT * EXCLUDE (again) REPLACE (0 AS seq) FROM readings WHERE NOT again
UNION ALL BY NAME FROM untouched
"""
_EXPECTED: Final = """
CREATE TEMP TABLE expected AS
SELECT tp, off, {digest} AS digest FROM (
    SELECT *, lead(o0) OVER (PARTITION BY k ORDER BY o0, tp, off) AS ended FROM ({events})
) WHERE NOT gone
"""


class VersionQueries:
    """Folds the events of a stream whose rows are versions."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._run, self._table = database.execute, database.table

    def fold(self, recounts: Mapping[int, Recount], *, has_replays: bool) -> None:
        """Count what became of each batch's records.

        Then ``expected`` has place and digest of each row that must be in the table. ``remembered``
        has the events of an earlier proof, as batch 0; a replay reads places that were read before.
        """
        is_tracked = "t" in self._table("events").columns
        self._run(TOUCHED)
        self._run(_READINGS.format(again=_AGAIN if has_replays else "FALSE"))
        digest = version_digest("digest", "o0", "ended", "ended IS NULL")
        shown = f"SELECT * FROM ({_SHOWN.format(events=_REMEMBERED, line='k')}) WHERE is_shown"
        events = shown if is_tracked else _REMEMBERED
        self._run(_EXPECTED.format(digest=digest, events=events))
        more = ("untracked", "withdrawn", "restored") if is_tracked else ()
        for recount in recounts.values():
            recount.extra.update(dict.fromkeys(("versions", "closed", *more), 0))
        counts = _TRACKED_COUNTS if is_tracked else _COUNTS
        for seq, inserted, deleted, absent, closed, *others in self._run(counts).fetchall():
            # Of what is remembered, everything was counted by its own proof.
            if seq:
                recounts[seq].dispositions.update(
                    inserted=inserted, deleted=deleted, deleted_absent=absent
                )
                of_tracked = dict(zip(more, others, strict=True))
                recounts[seq].extra.update(versions=inserted, closed=closed, **of_tracked)
                recounts[seq].dispositions["unchanged"] += of_tracked.get("untracked", 0)
        for seq, unchanged in self._run(_UNCHANGED).fetchall():
            recounts[seq].dispositions.update(unchanged=unchanged)

    def to_remember(self) -> str:
        """Return the query of what the next proof goes on from: every event."""
        return _REMEMBERED
