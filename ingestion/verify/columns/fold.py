"""The fold of all batches, by queries over all of them at once.

Where the fold takes batch after batch and remembers what there was, these queries rank the events
of each key once. Of a batch, the newest event of a key is its winner; what there was before it is
the newest of all earlier batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import duckdb

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.events import filled_digest, parts_of
from oncelake.ingestion.verify.fold.rule import Recount

# The modes that these queries state, and which event of a key has its row.
NEWEST, FIRST = "DESC", "ASC"
# Without keys, each place in Kafka is a key of its own.
_KEEPS: Final[Mapping[str, str]] = {"upsert": NEWEST, "insert_only": FIRST, "append": FIRST}

# The rank of each event's place among those of its key; the first event of rank 1 has the row.
_RANKED: Final = """
CREATE TEMP TABLE ranked AS
SELECT *, row_number() OVER (PARTITION BY k ORDER BY {places}, seq) AS n,
       {rank} OVER (PARTITION BY k ORDER BY {places}, {tie}) AS r,
       count(*) OVER (PARTITION BY k) AS events
FROM events
"""
# Without a declared order, nothing orders the events of two partitions.
_UNORDERED: Final = (
    "SELECT count(*) FROM (FROM events SELECT k GROUP BY k HAVING min(tp) < max(tp))"
)
# The winner of a batch is its event of the lowest rank; before it, that of all earlier batches had
# the row. It is stale where it ranks behind that one, and nothing is where that one has deleted.
_DISPOSITIONS: Final = """
WITH winners AS (
    SELECT k, seq, r, gone, 0 AS others FROM ranked WHERE events = 1
    UNION ALL
    SELECT k, seq, min(r), arg_min(gone, r), count(*) - 1 FROM ranked WHERE events > 1
    GROUP BY k, seq
),
states AS (
    SELECT seq, r, gone, others,
           min(r) OVER earlier AS r_before, arg_min(gone, r) OVER earlier AS gone_before
    FROM winners
    WINDOW earlier AS (PARTITION BY k ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT seq, sum(others)::BIGINT AS superseded, count(*) AS winners, CASE
    WHEN r_before IS NULL OR (gone_before AND {forgets}) THEN CASE
        WHEN gone THEN 'deleted_absent'
        WHEN r_before IS NULL OR r < r_before THEN 'inserted'
        ELSE 'stale' END
    WHEN r > r_before THEN 'stale'
    WHEN r = r_before THEN 'unchanged'
    WHEN gone THEN 'deleted'
    ELSE 'updated' END AS disposition
FROM states GROUP BY seq, disposition
"""
_NEWEST: Final = """
CREATE TEMP VIEW newest AS
SELECT * EXCLUDE (n, r, events) REPLACE (0 AS seq) FROM ({ranked}) WHERE n = 1
UNION ALL BY NAME FROM untouched
"""
_EXPECTED: Final = """
CREATE TEMP TABLE expected AS SELECT tp, off, {digest} AS digest FROM newest WHERE {stays}
"""
# A column has its last value since a delete. Of a key, a batch whose winner is stale says nothing;
# any other says all it has behind the batches before it.
_FILLED: Final = """
SELECT * EXCLUDE (life) REPLACE ({filled}) FROM (
    SELECT *, count(*) FILTER (gone) OVER (PARTITION BY k ORDER BY seq, off) AS life FROM (
        FROM ranked QUALIFY max(off) OVER (PARTITION BY k, seq) > coalesce(max(off) OVER (
            PARTITION BY k ORDER BY seq RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), -1)
    )
) WINDOW life AS (PARTITION BY k, life ORDER BY seq, off)
"""
# Of what an earlier proof remembers, only the keys of new events are folded again.
TOUCHED: Final = """
CREATE TEMP TABLE touched AS SELECT DISTINCT k FROM events;
CREATE TEMP TABLE untouched AS FROM remembered ANTI JOIN touched USING (k);
INSERT INTO events BY NAME FROM remembered SEMI JOIN touched USING (k);
DROP TABLE remembered;
DROP TABLE touched
"""


class FoldQueries:
    """Folds the events of a stream.

    Raises:
        NotInColumnsError: the mode is not one of these, or nothing orders two events.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, spec: StreamSpec) -> None:
        if spec.mode not in _KEEPS or spec.is_log:
            raise NotInColumnsError(f"mode {spec.mode} is folded record by record")
        self._run, self._keeps = database.execute, _KEEPS[spec.mode]
        self._parts = parts_of(spec)
        self._is_soft = spec.deletes == "soft"
        self._has_order = bool(spec.sequence_by)
        self._orders = [f"o{n}" for n in range(len(spec.sequence_by))]

    def fold(self, recounts: Mapping[int, Recount], *, has_replays: bool) -> None:
        """Count for each batch the dispositions of its winners, and how many lost to them.

        Then ``expected`` has place and digest of each row that must be in the table. ``remembered``
        has the events of an earlier proof, as batch 0; a replay reads places that were read before.
        """
        self._run(TOUCHED)
        if not self._has_order and self._number(_UNORDERED):
            raise NotInColumnsError("nothing orders the events of a key in two partitions")
        places = ", ".join(f"{each} {self._keeps}" for each in (*self._orders, "tp", "off"))
        # Only a replay reads a place twice.
        rank = "dense_rank()" if has_replays else "row_number()"
        self._run(_RANKED.format(places=places, rank=rank, tie="0" if has_replays else "seq"))
        filled = ", ".join(f"last_value({h} IGNORE NULLS) OVER life AS {h}" for h in self._parts)
        ranked = _FILLED.format(filled=filled) if self._parts else "FROM ranked"
        self._run(_NEWEST.format(ranked=ranked))
        digest = filled_digest("digest", self._parts) if self._parts else "digest"
        # A row that is marked as deleted is there.
        stays = "TRUE" if self._is_soft else "NOT gone"
        self._run(_EXPECTED.format(digest=digest, stays=stays))
        counts = _DISPOSITIONS.format(forgets=not self._is_soft)
        for seq, others, winners, disposition in self._run(counts).fetchall():
            if seq:
                recounts[seq].dispositions[disposition] += winners
                recounts[seq].counts["superseded"] += others

    def to_remember(self) -> str:
        """Return the query of what the next proof goes on from."""
        return "FROM newest"

    def _number(self, query: str) -> int:
        [(number,)] = self._run(query).fetchall()
        return int(number)
