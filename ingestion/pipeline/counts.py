"""Counts the one copy of a batch, in one query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from oncelake.ingestion.declaration.names import nearest
from oncelake.ingestion.formats.route import UNKNOWN_SCHEMA
from oncelake.ingestion.kafka.offsets import Range, TopicPartition
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.pipeline.report import ABSENT, UNDECLARED
from oncelake.ingestion.pipeline.validate import GOOD

IS_GOOD: Final = "_disposition IN ('row', 'delete')"
_NAMES_LISTED: Final = 20
_NAME_LENGTH: Final = 100
# Two letters that changed places in a word of four.
LIKENESS: Final = 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionCounts:
    """The counts of one partition.

    Attributes:
        overlap: How many of them the table holds already.
        offset_sum: Sum of the offsets, which gives away a record delivered twice.
        last_ms: Timestamp of the record at ``last``.
        last_digest: Its digest.
    """

    records: int
    overlap: int
    first: int
    last: int
    offset_sum: int
    last_ms: int
    last_digest: int

    def fills(self, planned: Range) -> bool:
        """Tell whether every offset of ``planned`` holds exactly one record."""
        span = len(planned)
        return (self.records, self.first, self.last, self.offset_sum) == (
            span,
            planned.start,
            planned.end - 1,
            span * (planned.start + planned.end - 1) // 2,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCounts:
    """The counts of one batch.

    Attributes:
        dispositions: Rows of each disposition; a record is one row, but where records are exploded.
        partitions: What there is of each partition that has any record.
        good_bytes: Size of the good records' values.
        value_bytes: Size of the values of all records read.
        with_extra: Records applied that have fields which the schema does not name.
        exploded: Rows beyond the first of their record.
        unavailable: Columns that the rows applied left out, in all.
        coerced: Values of records applied that were of another type than their lenient columns.
        shared: Null values that sibling streams may take, too.
        types: Rows applied by topic and record type, where a registry names types.
    """

    dispositions: Mapping[str, int]
    partitions: Mapping[TopicPartition, PartitionCounts]
    good_bytes: int
    value_bytes: int = 0
    with_extra: int = 0
    exploded: int = 0
    unavailable: int = 0
    coerced: int = 0
    shared: int = 0
    types: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @property
    def read(self) -> int:
        """Records read, whatever became of them."""
        return sum(self.dispositions.values()) - self.exploded

    @property
    def good(self) -> int:
        """Rows that can be applied."""
        return sum(self.dispositions.get(disposition, 0) for disposition in GOOD)


def is_first_row(side: str = "") -> str:
    """Return the condition, in SQL, that a row of ``batch`` stands for its record."""
    return f"({sql.name('_index', side)} = 0 AND {sql.name('_left_to', side)} IS NULL)"


def count_records(engine: Engine) -> BatchCounts:
    """Count a batch by disposition and by partition."""
    is_first = is_first_row()
    rows = engine.rows(f"""
        SELECT _topic, _partition, _disposition, _record AS record_type,
            count(*) AS "rows",
            CAST(sum(CASE WHEN {is_first} THEN 1 ELSE 0 END) AS BIGINT) AS records,
            min(_offset) AS "first",
            max(_offset) AS "last",
            max_by(unix_millis(_timestamp), _offset) AS last_ms,
            max_by(_digest, _offset) AS last_digest,
            CAST(sum(CASE WHEN {is_first} THEN _offset ELSE 0 END) AS BIGINT) AS offset_sum,
            CAST(sum(_bytes) AS BIGINT) AS "bytes",
            CAST(sum(CASE WHEN {is_first} THEN _bytes ELSE 0 END) AS BIGINT) AS value_bytes,
            CAST(sum(CASE WHEN {is_first} AND array_length(_extra) > 0 THEN 1 ELSE 0 END) AS BIGINT)
                AS with_extra,
            CAST(sum(array_length(_unavailable)) AS BIGINT) AS unavailable,
            CAST(sum(CASE WHEN {is_first} THEN array_length(_coerced) END) AS BIGINT) AS coerced,
            CAST(sum(CASE WHEN _is_shared THEN 1 ELSE 0 END) AS BIGINT) AS shared
        FROM batch GROUP BY _topic, _partition, _disposition, _record
    """)
    good = [row for row in rows if row["_disposition"] in GOOD]
    dispositions: Counter[str] = Counter()
    types: Counter[tuple[str, str]] = Counter()
    of_partition: dict[TopicPartition, list[dict[str, Any]]] = {}
    for row in rows:
        dispositions[row["_disposition"]] += row["rows"]
        of_partition.setdefault(TopicPartition(row["_topic"], row["_partition"]), []).append(row)
    for row in good:
        if row["record_type"] is not None:
            types[row["_topic"], row["record_type"]] += row["rows"]
    return BatchCounts(
        dispositions=dispositions,
        partitions={at: _sum_up(counted) for at, counted in of_partition.items()},
        good_bytes=sum(row["bytes"] for row in good),
        value_bytes=sum(row["value_bytes"] for row in rows),
        with_extra=sum(row["with_extra"] for row in good),
        exploded=sum(row["rows"] - row["records"] for row in rows),
        unavailable=sum(row["unavailable"] or 0 for row in rows if row["_disposition"] == "row"),
        coerced=sum(row["coerced"] or 0 for row in good),
        shared=sum(row["shared"] for row in rows if row["_disposition"] != "overlap"),
        types=types,
    )


def extra_counts(
    engine: Engine, counts: BatchCounts, declared: Collection[str] = ()
) -> dict[str, int]:
    """Count the fields that the schema does not name: the records that have any, and each name.

    Only of records that were applied: a quarantined one is kept whole.

    Args:
        engine: Has the table ``batch``.
        counts: Its counts.
        declared: The columns that the values should have.

    Returns:
        ``extra_fields``, and ``extra_fields.<name>`` of the most frequent names; nothing when
        there are none. ``absent.<column>`` is the number of rows where none has that column and
        an undeclared field has a name like it.
    """
    if not counts.with_extra:
        return {}
    named = engine.rows(f"""
        WITH extra AS (
            SELECT DISTINCT _topic, _partition, _offset, unnest(_extra) AS name
            FROM batch WHERE {IS_GOOD} AND _index = 0
        )
        SELECT name, count(*) AS "records"
        FROM extra GROUP BY name ORDER BY "records" DESC, name LIMIT {_NAMES_LISTED}
    """)
    by_name = {f"{UNDECLARED}{row['name'][:_NAME_LENGTH]}": row["records"] for row in named}
    absent = _absent(engine, counts, [row["name"] for row in named], declared)
    return {"extra_fields": counts.with_extra, **by_name, **absent}


def count_unknown_schemas(engine: Engine) -> dict[str, int]:
    """Count the records of a batch that may be of any stream of a file, as ``schema_unknown``."""
    (row,) = engine.rows(
        'SELECT count(*) AS "records" FROM batch '
        f"WHERE _disposition = 'quarantined' AND _reason = '{UNKNOWN_SCHEMA}'"
    )
    return {"schema_unknown": row["records"]} if row["records"] else {}


def _absent(
    engine: Engine, counts: BatchCounts, undeclared: Iterable[str], declared: Collection[str]
) -> dict[str, int]:
    """Count the rows without each column that may be misspelt; a query only where one may be."""
    rows, columns = counts.dispositions.get("row", 0), {*engine.columns("batch")} & {*declared}
    likest = (nearest(name, columns, likeness=LIKENESS) for name in undeclared)
    similar = sorted({name for name in likest if name})
    if not rows or not similar:
        return {}
    not_null = sql.selected({name: f"count({sql.name(name)})" for name in similar})
    (counted,) = engine.rows(f"SELECT {not_null} FROM batch WHERE _disposition = 'row'")
    return {f"{ABSENT}{name}": rows for name in similar if not counted[name]}


def _sum_up(rows: list[dict[str, Any]]) -> PartitionCounts:
    newest = max(rows, key=itemgetter("last"))
    return PartitionCounts(
        records=sum(row["records"] for row in rows),
        overlap=sum(row["records"] for row in rows if row["_disposition"] == "overlap"),
        first=min(row["first"] for row in rows),
        last=newest["last"],
        last_ms=newest["last_ms"],
        last_digest=newest["last_digest"],
        offset_sum=sum(row["offset_sum"] for row in rows),
    )
