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
# The events of a line, and whether each begins or ends a version.
_SHOWN: Final = """
SELECT *, lag(gone) OVER line AS gone_before,
    gone OR coalesce(lag(gone) OVER line, TRUE) OR {differs} AS is_shown
FROM ({events}) WINDOW line AS (PARTITION BY {line} ORDER BY o0, tp, off)
"""
_ENDED: Final = f"""
SELECT *, lead(o0) OVER line AS ended, lag(gone) OVER line AS end_before,
    lag(seq) OVER line AS seq_before
FROM ({_SHOWN.format(events="{events}", line="k, line", differs="{differs}")})
WINDOW line AS (PARTITION BY k, line, is_shown ORDER BY o0, tp, off)
"""
_COUNTS: Final = f"""{_LINES},
after AS ({_ENDED.format(events="FROM lines", differs="{differs}")}),
before AS ({_ENDED.format(events="FROM lines WHERE line > 0 AND seq < batch", differs="{differs}")})
SELECT a.batch, count(*) FILTER (a.seq = a.batch AND a.gone AND NOT a.gone_before) AS deleted,
    count(*) FILTER (a.seq = a.batch AND a.gone AND coalesce(a.gone_before, TRUE)) AS absent,
    count(*) FILTER (a.seq = a.batch AND NOT a.gone AND a.is_shown) AS versions,
    count(*) FILTER (CASE WHEN a.line = 0
        THEN a.is_shown AND NOT a.end_before AND a.seq_before < a.batch
        ELSE NOT a.gone AND a.is_shown AND b.is_shown AND a.ended IS DISTINCT FROM b.ended
    END) AS closed,
    count(*) FILTER (a.seq = a.batch AND NOT a.gone AND NOT a.is_shown) AS untracked,
    count(*) FILTER (b.is_shown AND NOT a.is_shown) AS withdrawn,
    count(*) FILTER (a.is_shown AND NOT b.is_shown) AS restored
FROM after a LEFT JOIN before b USING (k, line, o0, tp, off) GROUP BY a.batch
"""
_OF_TRACKED: Final = ("untracked", "withdrawn", "restored")
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
        # Each event begins or ends a version, unless columns are tracked.
        differs = "t IS DISTINCT FROM lag(t) OVER line" if is_tracked else "TRUE"
        self._run(TOUCHED)
        self._run(_READINGS.format(again=_AGAIN if has_replays else "FALSE"))
        digest = version_digest("digest", "o0", "ended", "ended IS NULL")
        shown = _SHOWN.format(events=_REMEMBERED, line="k", differs=differs)
        events = f"FROM ({shown}) WHERE is_shown" if is_tracked else _REMEMBERED
        self._run(_EXPECTED.format(digest=digest, events=events))
        extra = ("versions", "closed", *(_OF_TRACKED if is_tracked else ()))
        for recount in recounts.values():
            recount.extra.update(dict.fromkeys(extra, 0))
        counted = self._run(_COUNTS.format(differs=differs)).fetchall()
        # Of what is remembered, everything was counted by its own proof.
        for seq, deleted, absent, *others in (counts for counts in counted if counts[0]):
            counts = dict(zip(("versions", "closed", *_OF_TRACKED), others, strict=True))
            recounts[seq].extra.update({name: counts[name] for name in extra})
            recounts[seq].dispositions.update(
                inserted=counts["versions"],
                deleted=deleted,
                deleted_absent=absent,
                unchanged=counts["untracked"],
            )
        for seq, unchanged in self._run(_UNCHANGED).fetchall():
            recounts[seq].dispositions.update(unchanged=unchanged)

    def to_remember(self) -> str:
        """Return the query of what the next proof goes on from: every event."""
        return _REMEMBERED
