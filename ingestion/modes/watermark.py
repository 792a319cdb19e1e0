"""How far event time has come, so that one can say which windows are final.

A partition's clock is the latest event time that was seen in it; the stream's is the earliest of
those, less the allowed delay. A partition that has said nothing holds the stream's clock back. It
is kept in the counts of every commit (``clock_ms``, and ``clock_ms.<topic>-<partition>``), and
decides nothing: a record that comes later still is another fold.
"""

from __future__ import annotations

from oncelake.ingestion.declaration.aggregates import CLOCK
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.mode import Target


def clocks_after(target: Target) -> dict[str, int]:
    """Return the clocks as they stand behind the good records, by the names of their counts."""
    window = target.spec.window
    assert window is not None, "only windows need a clock"
    clocks, partitions = _clocks_before(target)
    latest = target.engine.rows(f"""
        SELECT _topic, _partition, max(unix_millis({sql.name(window.column)})) AS at
        FROM good GROUP BY _topic, _partition
    """)
    for row in latest:
        name = f"{CLOCK}.{row['_topic']}-{row['_partition']}"
        # No count may be negative: before 1970 a clock stands still.
        clocks[name] = max(clocks.get(name, 0), row["at"], 0)
    if partitions <= clocks.keys() and clocks:
        clocks[CLOCK] = max(0, min(clocks.values()) - 1000 * window.delay_seconds)
    return clocks


def _clocks_before(target: Target) -> tuple[dict[str, int], set[str]]:
    """Return each partition's clock, as our newest commit with any tells, and the partitions."""
    partitions: set[str] = set()
    for note in target.paths.table.log().standing():
        partitions = partitions or {f"{CLOCK}.{at}" for at in note.next}
        clocks = {name: at for name, at in note.counts.items() if name.startswith(f"{CLOCK}.")}
        if clocks or note.seq == 0:
            return clocks, partitions
    return {}, partitions
