"""Counts a batch's keys in one query, and refuses a key whose records have no order."""

from __future__ import annotations

from typing import Final

from oncelake.ingestion.errors import KeyInTwoPartitionsError
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.mode import Ranges, Target

# A literal range of these lets MERGE skip files. Timestamps are left out: their way through
# Python's time zones and back is not exact, and a wrong range inserts duplicates.
_PRUNABLE: Final = {"TINYINT", "SMALLINT", "INT", "BIGINT", "DATE", "STRING"}


def examine_keys(target: Target, *, has_order: bool) -> tuple[int, Ranges]:
    """Aggregate the keys of at least one good record, in one query.

    Returns:
        How many keys there are: each has one winner; and the lowest and highest value of each key
        column that files can be skipped by.

    Raises:
        KeyInTwoPartitionsError: no order is declared, and a key came from two partitions.
    """
    keys = sql.names(target.spec.keys)
    prunable = [key for key in target.spec.keys if str(target.spec.types[key]) in _PRUNABLE]
    ends = "".join(
        f', min({sql.name(key)}) AS "low {at}", max({sql.name(key)}) AS "high {at}"'
        for at, key in enumerate(prunable)
    )
    (row,) = target.engine.rows(f"""
        WITH by_key AS (
            SELECT {keys},
                min(_topic) <> max(_topic) OR min(_partition) <> max(_partition) AS _split
            FROM good GROUP BY {keys}
        )
        SELECT count(*) AS keys, sum(CASE WHEN _split THEN 1 ELSE 0 END) AS split{ends}
        FROM by_key
    """)
    if row["split"] and not has_order:
        error = incomparable_records(target, "good")
        assert error is not None, "a key that came from two partitions has two such records"
        raise error
    ranges = {key: (row[f"low {at}"], row[f"high {at}"]) for at, key in enumerate(prunable)}
    return row["keys"], ranges


def incomparable_records(
    target: Target, rows: str, *, condition: str = "TRUE"
) -> KeyInTwoPartitionsError | None:
    """Name a good record and a row of its key, ``t``, that come from different partitions, if any.

    A log has no order but that in which its records come.
    """
    spec = target.spec
    pairs = target.engine.rows(f"""
        SELECT {sql.names(spec.keys, "s")},
            s._topic, s._partition, s._offset,
            t._topic AS _topic_there, t._partition AS _partition_there, t._offset AS _offset_there
        FROM good s JOIN {rows} t ON {sql.equal(spec.keys, "s", "t")}
        WHERE (s._topic <> t._topic OR s._partition <> t._partition) AND {condition}
        ORDER BY s._topic, s._partition, s._offset, t._topic, t._partition, t._offset LIMIT 1
    """)
    if not pairs:
        return None
    (pair,) = pairs
    key = ", ".join(f"{name}={pair[name]}" for name in spec.keys)
    one, other = (
        f"{pair[f'_topic{of}']}-{pair[f'_partition{of}']} offset {pair[f'_offset{of}']}"
        for of in ("", "_there")
    )
    partitioned = "make the producer partition by key, and read a new topic"
    ordered = (
        f"declare `sequence_by: [column]` in {spec.file}, a column that grows with each "
        f"change of a row, then oncelake rebuild {spec.name}; or "
    )
    return KeyInTwoPartitionsError(
        spec.name,
        f"key ({key}) came from {one} and from {other}, and offsets of two partitions cannot say "
        "which record is newer; nothing of this batch was written.",
        remedy=partitioned if spec.is_log else ordered + partitioned,
    )
