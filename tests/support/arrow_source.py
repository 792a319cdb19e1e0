"""Runs of streams without Spark's query: records come from topics in memory, as Arrow tables.

Everything from the decoder's worker on is the product's own: decoding, validation, counts, the
decision and the commit, in DuckDB and the sink. The checkpoint's files are written here as Spark
writes them. ``apply_as_deletes``, which Spark alone evaluates, is left to DuckDB: conditions of
tests without Spark mean the same to both. A test that is marked ``spark`` alone has a session,
which evaluates the statements of ``where``, ``select`` and ``transform``. What else Spark does (its
query, its engine) is tried by tests that are marked ``kafka``, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil, floor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn
from unittest.mock import patch

import duckdb
import pyarrow as pa
import sqlglot
from pyspark.sql import SparkSession
from sqlglot.expressions import Column

import oncelake.ingestion.kafka.admin
import oncelake.ingestion.modes.engines.rows
import oncelake.ingestion.operations.run
import oncelake.ingestion.pipeline.batch
import oncelake.ingestion.pipeline.gate.rules
import oncelake.ingestion.pipeline.schema.types
import oncelake.ingestion.pipeline.validate
import oncelake.ingestion.verify.read.topic
import tests.support.world
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.client import timestamp_micros_of
from oncelake.ingestion.kafka.last_record import digest_of
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.modes.engines.rows import RECORDS, Rows, unchanged
from oncelake.ingestion.pipeline.plan import JudgePlan
from oncelake.ingestion.pipeline.statements.evaluate import check
from oncelake.ingestion.pipeline.statements.translate import Statement
from oncelake.ingestion.pipeline.validate import described, flatten
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.source.librdkafka import read_waiting
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.location import Location
from tests.support import topics_in_memory
from tests.support.topics_in_memory import Cluster, Record

_CHECKPOINT: Final = "v1\n"


class NeedsSparkError(AssertionError):
    """A test without Spark asks for what Spark alone does: mark it ``spark``."""


class ArrowSession:
    """Takes the place of a session of Spark that nothing is asked of."""

    sparkContext = SimpleNamespace(master="local[1]")  # noqa: N815 (PySpark's name)

    def __getattr__(self, name: str) -> NoReturn:
        raise NeedsSparkError(f"spark.{name}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrowStream:
    """The streaming frame: what is to be read."""

    cluster: Cluster
    topics: Sequence[str]
    starting: Offsets
    limit: int


def records_in(cluster: Cluster, ranges: Sequence[Range]) -> pa.Table:
    """Return the committed records of ranges, as ``ingestion.source.librdkafka`` does."""
    rows = [
        _row(part, offset, record)
        for part in ranges
        for offset in range(part.start, part.end)
        if (record := cluster.partition(part).records.get(offset)) and record.is_committed
    ]
    return pa.Table.from_pylist(rows, RECORDS)


def _row(part: Range, offset: int, record: Record) -> dict[str, Any]:
    sent: Any = SimpleNamespace(timestamp=lambda: (1, record.timestamp_ms))
    headers = [{"key": key, "value": value} for key, value in record.headers or ()]
    values = [part.topic, part.partition, offset, timestamp_micros_of(sent)]
    digest = digest_of(record.key, record.value, record.headers or ())
    values += [record.key, record.value, headers or None, digest]
    return dict(zip(RECORDS.names, values, strict=True))


def _cluster_of(settings: Settings) -> Cluster | None:
    return Cluster.by_address.get(settings.kafka.address or "")


def _read_stream(
    spark: Any, spec: StreamSpec, settings: Settings, *, starting: Offsets, lag: int
) -> Any:
    if (cluster := _cluster_of(settings)) is None:
        return _SPARKS["read_stream"](spark, spec, settings, starting=starting, lag=lag)
    limit = spec.max_offsets_per_trigger
    return ArrowStream(cluster=cluster, topics=spec.subscribed, starting=starting, limit=limit)


def _read_ranges(spark: Any, settings: Settings, ranges: Sequence[Range]) -> Any:
    if (cluster := _cluster_of(settings)) is None:
        return _SPARKS["read_ranges"](spark, settings, ranges)
    return records_in(cluster, ranges)


def _read_table(spark: Any, table: Location, settings: Settings, **more: Any) -> Any:
    if _cluster_of(settings) is None:
        return _SPARKS["read_table"](spark, table, settings, **more)
    return table, more["version"]


def _waiting_records(quarantined: Any, reason: str | None) -> Any:
    if not isinstance(quarantined, tuple):
        return _SPARKS["waiting_records"](quarantined, reason)
    return read_waiting(*quarantined, reason)


def _drain(
    records: Any,
    each_batch: Callable[[Any, int], None],
    *,
    name: str,
    checkpoint: Path,
    stop: threading.Event,
) -> None:
    """Plan batches as Spark's source does: a share of the limit for each partition."""
    if not isinstance(records, ArrowStream):
        _SPARKS["drain"](records, each_batch, name=name, checkpoint=checkpoint, stop=stop)
        return
    at, ends = records.starting, _ends(records)
    _write(checkpoint / "metadata", "{}")
    _write(checkpoint / "sources" / "0" / "0", f"{_CHECKPOINT}{at.to_json()}")
    hit(Failpoint.QUERY_STARTED)
    batch_id = 0
    while at != ends and not stop.is_set():
        following = _next_ends(at, ends, records.limit)
        _write(checkpoint / "offsets" / str(batch_id), f"{_CHECKPOINT}{{}}\n{following.to_json()}")
        each_batch(records_in(records.cluster, at.ranges_to(following)), batch_id)
        _write(checkpoint / "commits" / str(batch_id), f"{_CHECKPOINT}{{}}")
        at, batch_id = following, batch_id + 1
    hit(Failpoint.QUERY_ENDED)


def _ends(records: ArrowStream) -> Offsets:
    topics = {name: records.cluster.topic(name) for name in records.topics}
    return Offsets(
        {
            TopicPartition(name, number): max(
                partition.stable_end(), records.starting.get(TopicPartition(name, number), 0)
            )
            for name, topic in topics.items()
            for number, partition in enumerate(topic.partitions)
        }
    )


def _next_ends(at: Offsets, ends: Offsets, limit: int) -> Offsets:
    left = {part: end - at.get(part, 0) for part, end in ends.items()}
    total = sum(left.values())
    if total <= limit:
        return ends
    shares = {part: limit * size / total for part, size in left.items()}
    return Offsets(
        {
            part: min(ends[part], at.get(part, 0) + (ceil(share) if share < 1 else floor(share)))
            for part, share in shares.items()
        }
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _flatten_with_conditions(
    transformed: Rows, plan: JudgePlan, constraints: Mapping[str, str]
) -> Rows:
    """Let DuckDB tell what ``apply_as_deletes`` means, and which constraint is not met."""
    if not plan.apply_as_deletes or not isinstance(transformed.records, pa.Table):
        return _SPARKS["conditions"](transformed, plan, constraints)
    flat = transformed.then(partial(flatten, plan=plan))
    (condition,) = sqlglot.transpile(
        plan.apply_as_deletes, read="spark", write="duckdb", identify=True
    )
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("flat", flat.here())
        rows = database.sql(f"SELECT *, ({condition}) AS _is_selected FROM flat").to_arrow_table()
    named = {described(name, sql): statement_of(sql) for name, sql in constraints.items()}
    work = check(unchanged, named) if named else unchanged
    return Rows(records=rows, work=work, in_spark=transformed.in_spark)


def _no_conditions(
    spark: Any, row: Any, conditions: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    if not isinstance(spark, ArrowSession):
        yield from _SPARKS["no_conditions"](spark, row, conditions)


def _translate_conditions(
    spark: Any, row: Any, conditions: Iterable[str]
) -> tuple[Statement, ...] | None:
    """Translate by sqlglot what both engines understand in the same way."""
    if not isinstance(spark, ArrowSession):
        translated: tuple[Statement, ...] | None
        translated = _SPARKS["translate_conditions"](spark, row, conditions)
        return translated
    return tuple(map(statement_of, conditions))


def statement_of(text: str) -> Statement:
    """Translate a statement of Spark that means the same to DuckDB."""
    parsed = sqlglot.parse_one(text, read="spark")
    names = dict.fromkeys(column.name for column in parsed.find_all(Column))
    for column in parsed.find_all(Column):
        column.set("table", sqlglot.exp.to_identifier("value"))
    sql = parsed.sql(dialect="duckdb", identify=True)
    return Statement(sql=sql, columns=tuple(names), is_column=isinstance(parsed, Column))


def _as_frame(records: Any) -> Any:
    """Let Spark compute over records in memory, where the test has one."""
    spark = SparkSession.getActiveSession()
    if not isinstance(records, pa.Table) or spark is None:
        return _SPARKS["as_frame"](records)
    return spark.createDataFrame(records)


# What the product does where a stream's Kafka is a real one.
_SPARKS: Final[dict[str, Any]] = {
    "read_stream": oncelake.ingestion.operations.run.read_stream,
    "drain": oncelake.ingestion.operations.run.drain,
    "read_ranges": oncelake.ingestion.pipeline.batch.read_ranges,
    "read_table": oncelake.ingestion.pipeline.batch.read_table,
    "waiting_records": oncelake.ingestion.pipeline.batch.waiting_records,
    "conditions": oncelake.ingestion.pipeline.validate.flatten_with_conditions,
    "translate_conditions": oncelake.ingestion.pipeline.validate.translate_conditions,
    "no_conditions": oncelake.ingestion.pipeline.schema.types._no_conditions,
    "as_frame": oncelake.ingestion.modes.engines.rows.as_frame,
}
_CLIENTS: Final = {
    "AdminClient": topics_in_memory.admin_client,
    "Consumer": topics_in_memory.consumer,
    "Producer": topics_in_memory.producer,
}
_SEAMS: Final[tuple[tuple[Any, dict[str, Any]], ...]] = (
    (oncelake.ingestion.operations.run, {"read_stream": _read_stream, "drain": _drain}),
    (
        oncelake.ingestion.pipeline.batch,
        {
            "read_ranges": _read_ranges,
            "read_table": _read_table,
            "waiting_records": _waiting_records,
        },
    ),
    (
        oncelake.ingestion.pipeline.validate,
        {
            "flatten_with_conditions": _flatten_with_conditions,
            "translate_conditions": _translate_conditions,
        },
    ),
    (
        oncelake.ingestion.pipeline.gate.rules,
        {"translate_conditions": _translate_conditions},
    ),
    (oncelake.ingestion.pipeline.schema.types, {"_no_conditions": _no_conditions}),
    (oncelake.ingestion.modes.engines.rows, {"as_frame": _as_frame}),
    *(
        (owner, {name: make for name, make in _CLIENTS.items() if hasattr(owner, name)})
        for owner in (
            oncelake.ingestion.kafka.admin,
            oncelake.ingestion.verify.read.topic,
            tests.support.world,
        )
    ),
)


@contextmanager
def without_spark() -> Iterator[ArrowSession]:
    """Let streams whose Kafka is in memory run in this process alone; others run as ever."""
    with ExitStack() as stack:
        for owner, names in _SEAMS:
            for name, replacement in names.items():
                stack.enter_context(patch.object(owner, name, replacement))
        yield ArrowSession()
