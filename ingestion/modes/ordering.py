"""What a batch's keys say, in one aggregation, and which two records have no order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ingestion.declaration.modes import COORDINATES
from ingestion.declaration.spec import StreamSpec
from ingestion.errors import KeyInTwoPartitionsError
from ingestion.modes import sql
from ingestion.modes.mode import Target

# A literal range of these lets MERGE skip files. Timestamps are left out: their way through
# Python's time zones and back is not exact, and a wrong range inserts duplicates.
_PRUNABLE: Final = {"TINYINT", "SMALLINT", "INT", "BIGINT", "DATE", "STRING"}


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyFacts:
    """What the keys of a batch's good records say.

    Attributes:
        distinct: How many keys there are: each has one winner.
        ranges: Lowest and highest value of each key column that files can be skipped by.
    """

    distinct: int
    ranges: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


def examine_keys(target: Target, *, has_order: bool) -> KeyFacts:
    """Aggregate the keys of at least one good record, in one query.

    Raises:
        KeyInTwoPartitionsError: no order is declared, and a key came from two partitions.
    """
    keys = target.spec.keys
    prunable = [key for key in keys if str(target.spec.types[key]) in _PRUNABLE]
    ends = "".join(
        f', min({sql.name(key)}) AS "low {at}", max({sql.name(key)}) AS "high {at}"'
        for at, key in enumerate(prunable)
    )
    is_split = "min(_topic) <> max(_topic) OR min(_partition) <> max(_partition)"
    (row,) = target.engine.rows(
        f"SELECT count(*) AS keys, sum(CASE WHEN _split THEN 1 ELSE 0 END) AS split{ends} FROM "
        f"(SELECT {sql.names(keys)}, {is_split} AS _split FROM good "
        f"GROUP BY {sql.names(keys)}) k"
    )
    if row["split"] and not has_order:
        pair = incomparable_pair(target, "good", "good")
        assert pair is not None, "a key that came from two partitions has two such records"
        raise two_partitions(target.spec, pair)
    return KeyFacts(
        distinct=row["keys"],
        ranges={key: (row[f"low {at}"], row[f"high {at}"]) for at, key in enumerate(prunable)},
    )


def incomparable_pair(
    target: Target, one: str, other: str, *, condition: str = "TRUE"
) -> Mapping[str, Any] | None:
    """Find two rows of a key, ``s`` and ``t``, that come from different partitions, if any do."""
    keys = [f"{sql.name(key, 's')} AS {sql.name(f'key {key}')}" for key in target.spec.keys]
    places = [
        f"{side}.{column} AS {column}_{at}"
        for at, side in ((1, "s"), (2, "t"))
        for column in COORDINATES
    ]
    found = target.engine.rows(
        f"SELECT {', '.join((*keys, *places))} FROM {one} s JOIN {other} t "
        f"ON {sql.equal(target.spec.keys, 's', 't')} "
        f"WHERE (s._topic <> t._topic OR s._partition <> t._partition) AND {condition} "
        "ORDER BY s._topic, s._partition, s._offset, t._topic, t._partition, t._offset LIMIT 1"
    )
    return found[0] if found else None


def two_partitions(spec: StreamSpec, pair: Mapping[str, Any]) -> KeyInTwoPartitionsError:
    """Say which key has no order, and where its two records are.

    Args:
        spec: The declaration; a log has no order but that in which its records come.
        pair: As ``incomparable_pair`` returns it.
    """
    one, other = (
        f"{pair[f'_topic_{at}']}-{pair[f'_partition_{at}']} offset {pair[f'_offset_{at}']}"
        for at in (1, 2)
    )
    key = ", ".join(
        f"{name.removeprefix('key ')}={value}"
        for name, value in pair.items()
        if name.startswith("key ")
    )
    partitioned = "make the producer partition by key, and read a new topic"
    ordered = (
        f"declare `sequence_by: [column]` in {spec.name}.yaml, a column that grows with each "
        f"change of a row, then oncelake rebuild {spec.name}; or "
    )
    return KeyInTwoPartitionsError(
        spec.name,
        f"key ({key}) came from {one} and from {other}, and offsets of two partitions cannot say "
        "which record is newer; nothing of this batch was written.",
        remedy=partitioned if spec.is_log else ordered + partitioned,
    )
