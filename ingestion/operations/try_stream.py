"""``oncelake try``: what a run would make of a topic's last records; writes nothing anywhere.

They pass the steps of a batch, by the declaration of now, up to where it would be committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.gate import quarantining
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import columns_in
from oncelake.ingestion.errors import InvalidSpecError, RefusedError
from oncelake.ingestion.kafka.offsets import Offsets, Range
from oncelake.ingestion.kafka.schema_registry import registry_of
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.choose import (
    choose_engine,
    open_engine,
    open_local_engine,
)
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.modes.engines.frame_cache import FrameCache
from oncelake.ingestion.operations.init.decode_sample import judge_here, table_of
from oncelake.ingestion.operations.init.sample import MOST_BYTES, last_ranges, newest_records
from oncelake.ingestion.pipeline.counts import IS_GOOD, count_records, extra_counts
from oncelake.ingestion.pipeline.decode import decode
from oncelake.ingestion.pipeline.gate.rules import RowRules
from oncelake.ingestion.pipeline.plan import compile_plan
from oncelake.ingestion.pipeline.schema.follow import SchemaMovedError
from oncelake.ingestion.pipeline.schema.types import refuse_bad_condition
from oncelake.ingestion.pipeline.spark.errors import translate_expression_errors
from oncelake.ingestion.pipeline.spark.session import SessionFor
from oncelake.ingestion.pipeline.statements.transform import (
    plan_transformation,
    refuse_bad_transformation,
    transform,
)
from oncelake.ingestion.pipeline.truncates import take_truncates
from oncelake.ingestion.pipeline.validate import validate
from oncelake.ingestion.recovery.position import read_position
from oncelake.ingestion.recovery.schema_diff import SchemaPlan, plan_schema_change
from oncelake.ingestion.recovery.topics import resolve_topics
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.source.spark import read_ranges

_SHOWN: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The rows that a run would make of some records.

    Attributes:
        spec: The declaration, with the columns that the records' schemas gave it.
        ranges: The offsets that were read.
        records: How many records they have.
        dispositions: Rows by what would become of their record.
        extras: What would be counted beside them, such as fields without a column.
        rows: The last rows that would be applied, as their columns.
        missed: Rows that miss a rule of ``expect`` which does not quarantine, by its name.
        bad: For each reason how many records there are, and one of them.
        plan: What would change in the table first; ``None`` where that is not known.
    """

    spec: StreamSpec
    ranges: tuple[Range, ...]
    records: int
    dispositions: Mapping[str, int]
    extras: Mapping[str, int]
    rows: Sequence[Mapping[str, Any]]
    missed: Mapping[str, int]
    bad: Sequence[Mapping[str, Any]]
    plan: SchemaPlan | None


def try_stream(spec: StreamSpec, settings: Settings, spark: SessionFor, *, records: int) -> Trial:
    """Take the last records of a stream's topics through the steps of a batch.

    Args:
        spark: Returns a session; asked only where the declaration needs Spark.
        records: How many offsets are read at most, of all partitions together.

    Raises:
        InvalidSpecError: the topics hold no record there, or the declaration does not fit them.
        RefusedError: a topic is not there.
        DependencyError: Kafka, or the schema registry, does not answer.
    """
    stream = resolve_topics(Stream(spec=spec, settings=settings))
    partitions = stream.kafka.topics(spec.name, stream.spec.subscribed).partitions
    ranges = last_ranges(stream.kafka, partitions, records)
    if not ranges:
        raise InvalidSpecError(
            f"{spec.name}: its topics hold no record at {stream.kafka.address}. Next: run the same "
            "command once there are some"
        )
    session: SparkSession | None = None
    while True:
        # Both find out that a setting is missing, sooner than Spark would have started.
        plan = _plan(stream)
        if stream.spec.format.options.uses_registry or stream.spec.key_format.options.uses_registry:
            registry_of(settings)
        if not _needs_spark(stream):
            return _try_here(stream, ranges, plan)
        session = session or spark(sum(map(len, ranges)))
        try:
            return _try_in_spark(stream, session, ranges, plan)
        except SchemaMovedError as moved:
            stream = replace(stream, spec=moved.spec)


def _needs_spark(stream: Stream) -> bool:
    """Tell whether only Spark evaluates what is declared, or a run would leave it all to Spark."""
    spec, (name, _) = stream.spec, choose_engine(stream)
    statements = spec.is_transformed or spec.apply_as_deletes or spec.expect
    return name == "spark" or bool(statements) or spec.follows_schema


def _try_here(stream: Stream, ranges: Sequence[Range], plan: SchemaPlan | None) -> Trial:
    """Read, decode and validate in this process, as a worker of Spark does."""
    share = MOST_BYTES // len(ranges)
    read = [newest_records(stream.kafka.messages_in([each]), each, share) for each in ranges]
    tables = [table_of(part.topic, records) for part, records in read if records]
    if not tables:
        raise InvalidSpecError(
            f"{stream.name}: {', '.join(map(str, ranges))} hold no committed record. Next: run the "
            "same command with a larger --records, or once there are some"
        )
    table = pa.concat_tables(tables)
    validated = judge_here(table, compile_plan(stream.spec), stream.settings)
    with closing(open_local_engine(stream)) as engine:
        engine.materialize(validated)
        return _trial_of(engine, stream.spec, [part for part, _ in read], plan, missed={})


def _try_in_spark(
    stream: Stream, session: SparkSession, ranges: Sequence[Range], plan: SchemaPlan | None
) -> Trial:
    spec = stream.spec
    refuse_bad_condition(session, spec)
    steps = compile_plan(spec)
    refuse_bad_transformation(session, steps.rows)
    name, _ = choose_engine(stream)
    read = read_ranges(session, stream.settings, ranges)
    with closing(open_engine(name, read, stream)) as engine, closing(FrameCache()) as frames:
        decoded = decode(read, steps.decode, stream, frames)
        planned = plan_transformation(session, steps.rows) if name == "local" else None
        asked = quarantining(spec.expect)
        with translate_expression_errors(spec, ranges, asked):
            transformed = transform(decoded, steps.rows, frames, planned)
            engine.materialize(validate(transformed, steps.judge, Offsets(), asked))
            missed = _missed(engine, spec, session, is_local=name == "local")
        return _trial_of(engine, spec, ranges, plan, missed=missed)


def _missed(
    engine: Engine, spec: StreamSpec, spark: SparkSession, *, is_local: bool
) -> dict[str, int]:
    """Judge the rows that records say by themselves, as if each were written.

    Only by rules over their own columns: others are known beside the table alone.
    """
    if not spec.has_whole_rows:
        return {}
    known = {name.lower() for name in spec.types}
    rules = {name: rule for name, rule in spec.expect.items() if columns_in(rule.rule) <= known}
    spec = spec.model_copy(update={"expect": rules})
    rows = f"SELECT {sql.names(spec.types)}, 'row' AS _what FROM batch WHERE _disposition = 'row'"
    engine.define("decided", rows, keep=True)
    found = RowRules.of(spec, spark, is_local=is_local).judge(engine, ["row"])
    return {name: each.rows for name, each in found.items()}


def _trial_of(
    engine: Engine,
    spec: StreamSpec,
    ranges: Sequence[Range],
    plan: SchemaPlan | None,
    *,
    missed: Mapping[str, int],
) -> Trial:
    """Count the engine's ``batch``."""
    take_truncates(engine, spec)
    if spec.leaves_rows:
        # What leaves is counted where it finds a row.
        engine.define("batch", "SELECT * FROM batch WHERE _left_to IS NULL", keep=True)
    counts, names = count_records(engine), [column.name for column in spec.value_columns]
    return Trial(
        spec=spec,
        ranges=tuple(ranges),
        records=sum(each.records for each in counts.partitions.values()),
        dispositions=counts.dispositions,
        extras=extra_counts(engine, counts, names),
        rows=_last_rows(engine, spec),
        missed=missed,
        bad=list(_bad_records(engine)),
        plan=plan,
    )


def _last_rows(engine: Engine, spec: StreamSpec) -> Sequence[Mapping[str, Any]]:
    columns = sql.names((*spec.types, "_disposition"))
    last = "ORDER BY _timestamp DESC, _partition, _offset DESC"
    rows = engine.rows(f"SELECT {columns} FROM batch WHERE {IS_GOOD} {last} LIMIT {_SHOWN}")
    return rows[::-1]


def _bad_records(engine: Engine) -> Iterator[Mapping[str, Any]]:
    """Yield each reason, the most frequent first, with its first record."""
    yield from engine.rows("""
        WITH bad AS (
            SELECT *, row_number() OVER (
                PARTITION BY _reason ORDER BY _topic, _partition, _offset
            ) AS nth, count(*) OVER (PARTITION BY _reason) AS records
            FROM batch WHERE _disposition = 'quarantined'
        )
        SELECT _reason AS reason, records, _detail AS detail,
            _topic AS topic, _partition AS partition, _offset AS "offset"
        FROM bad WHERE nth = 1 ORDER BY records DESC, reason
    """)


def _plan(stream: Stream) -> SchemaPlan | None:
    """Say what a run would do to the table; ``None`` where it would be refused before that."""
    try:
        read_position(stream.paths, RefusedError)
        return plan_schema_change(stream.spec, stream.paths)
    except RefusedError:
        return None
