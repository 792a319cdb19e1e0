"""Records that are read again after their key was erased: they are left out.

Their digests are compared here, in Python: it is done only where old offsets are read again in a
stream of which something was erased.
"""

from __future__ import annotations

from ingestion.declaration.modes import COORDINATES
from ingestion.lake.erasure import Erasure
from ingestion.pipeline.counts import IS_GOOD
from ingestion.sinks import sql
from ingestion.sinks.engine import Engine


def leave_out(engine: Engine, erasure: Erasure) -> None:
    """Call the records of an erased key ``filtered``, in the table ``batch``."""
    columns = erasure.digest.columns
    until = " OR ".join(
        f"(_topic = {sql.text(at.topic)} AND _partition = {at.partition} AND _offset < {offset})"
        for at, offset in erasure.until.items()
    )
    if not until:
        return
    was_read = f"{IS_GOOD} AND ({until})"
    place = dict.fromkeys((*columns, *COORDINATES, "_index"))
    found = engine.rows(
        f"SELECT {sql.names(place)} FROM (SELECT {sql.names(place)}, row_number() OVER (PARTITION "
        f"BY {sql.names(columns)} ORDER BY _topic, _partition, _offset, _index) AS _turn "
        f"FROM batch WHERE {was_read}) b WHERE _turn = 1"
    )
    for row in found:
        if erasure.digest.is_of(row[name] for name in columns):
            of_key = (
                f"SELECT {sql.names(columns)} FROM batch WHERE _topic = {sql.text(row['_topic'])} "
                f"AND _partition = {row['_partition']} AND _offset = {row['_offset']} "
                f"AND {IS_GOOD} AND _index = {row['_index']}"
            )
            is_erased = f"k._is_erased AND {was_read}"
            selected = ", ".join(
                f"CASE WHEN {is_erased} THEN 'filtered' ELSE b._disposition END AS _disposition"
                if name == "_disposition"
                else sql.name(name, "b")
                for name in engine.columns("batch")
            )
            engine.define(
                "batch",
                f"SELECT {selected} FROM batch b LEFT JOIN (SELECT *, TRUE AS _is_erased "
                f"FROM ({of_key}) o) k ON {sql.equal(columns, 'b', 'k')}",
                keep=True,
            )
