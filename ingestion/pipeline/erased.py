"""Records that are read again after their key was erased: they are left out.

Their digests are compared here, in Python: it is done only where old offsets are read again in a
stream of which something was erased.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oncelake.ingestion.declaration.modes import COORDINATES
from oncelake.ingestion.lake.erasure import Erasure
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.pipeline.counts import IS_GOOD


def leave_out(engine: Engine, erasure: Erasure, *, epoch: int) -> list[dict[str, Any]]:
    """Call the records of an erased key, or before a truncate, ``filtered`` in ``batch``.

    Args:
        engine: Has the table.
        erasure: What was erased.
        epoch: That of the records; all of an epoch before the erase's own had been read by then.

    Returns:
        The coordinates of these records; none of those that were before a truncate.
    """
    columns = erasure.digest.columns
    was_read = f"{IS_GOOD} AND {was_read_by(erasure, epoch)}"
    if erasure.is_truncate:
        redefine(engine, was_read, _disposition="'filtered'")
        return []
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
            places = engine.rows(
                f"SELECT DISTINCT {sql.names(COORDINATES, 'b')} FROM batch b JOIN ({of_key}) k "
                f"ON {sql.equal(columns, 'b', 'k')} WHERE {was_read}"
            )
            is_erased = f"k._is_erased AND {was_read}"
            judged = {name: sql.name(name, "b") for name in engine.columns("batch")}
            left_out = f"CASE WHEN {is_erased} THEN 'filtered' ELSE b._disposition END"
            selected = sql.selected({**judged, "_disposition": left_out})
            engine.define(
                "batch",
                f"SELECT {selected} FROM batch b LEFT JOIN (SELECT *, TRUE AS _is_erased "
                f"FROM ({of_key}) o) k ON {sql.equal(columns, 'b', 'k')}",
                keep=True,
            )
            return places
    return []


def redefine(engine: Engine, condition: str, **columns: str) -> None:
    """Give columns of ``batch`` another value, where its rows meet a condition."""
    now = {name: sql.name(name) for name in engine.columns("batch")}
    now |= {
        name: f"CASE WHEN {condition} THEN {to} ELSE {name} END" for name, to in columns.items()
    }
    engine.define("batch", f"SELECT {sql.selected(now)} FROM batch", keep=True)


def was_read_by(erasure: Erasure, epoch: int) -> str:
    """Return the condition, in SQL, that a record of an epoch was read before a key was erased."""
    until = " OR ".join(
        f"(_topic = {sql.text(at.topic)} AND _partition = {at.partition} AND _offset < {offset})"
        for at, offset in erasure.until.items()
    )
    return "TRUE" if epoch < erasure.epoch else f"({until or 'FALSE'})"


def came_before(truncate: Erasure) -> str:
    """Return the condition, in SQL, that a row of some epoch was written before a truncate."""
    of_epoch = f"_epoch = {truncate.epoch} AND {was_read_by(truncate, truncate.epoch)}"
    return f"_epoch < {truncate.epoch} OR ({of_epoch})"


def at_places(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the condition, in SQL, that names records by their coordinates."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        offsets.setdefault((row["_topic"], row["_partition"]), []).append(row["_offset"])
    return " OR ".join(
        f"(_topic = {sql.text(topic)} AND _partition = {partition} AND _offset IN "
        f"({', '.join(map(str, those))}))"
        for (topic, partition), those in offsets.items()
    )
