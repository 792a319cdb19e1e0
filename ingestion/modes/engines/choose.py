"""Which engine executes a run, and why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final, Literal, cast

from oncelake.ingestion.declaration.aggregates import aggregates_of
from oncelake.ingestion.declaration.ddl import system_columns
from oncelake.ingestion.delta.features import unwritable_features
from oncelake.ingestion.delta.files import is_delta, read_delta
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.modes.engines.rows import Records
from oncelake.ingestion.modes.engines.table_writer import ChangeWriter, TableWriter
from oncelake.ingestion.settings import variable
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.processes import scratch_of_this_process
from oncelake.ingestion.tables.table import SinkTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from oncelake.ingestion.modes.engines.local import LocalEngine
    from oncelake.ingestion.modes.engines.spark import SparkEngine

EngineName = Literal["spark", "local"]
# DuckDB and Spark do not agree on how -0.0 and NaN compare.
_INEXACT: Final = {"FLOAT", "DOUBLE"}


def choose_engine(stream: Stream) -> tuple[EngineName, str | None]:
    """Choose the engine of a run.

    Args:
        stream: The stream, and the settings that may name the engine.

    Returns:
        The engine, and what asks for Spark; ``None`` where nothing does, or Spark was
        asked for.

    Raises:
        InvalidSpecError: a cluster writes Delta tables alone.
    """
    if (sink := stream.spec.sink.name) != "delta":
        if stream.settings.on_cluster:
            master = variable("spark_master")
            raise InvalidSpecError(
                f"{stream.name}: `sink: {sink}` needs Spark on this machine, from which it is "
                f"written, and {master} names a cluster. Next: set {master}=local[*] for this "
                "stream, or declare `sink: delta`"
            )
        return "local", None
    if stream.settings.merge_engine == "spark":
        return "spark", None
    # Its workers hand a batch over as files of this machine.
    of_cluster = ["Spark is on a cluster"] if stream.settings.on_cluster else []
    obstacle = next(chain(of_cluster, _obstacles(stream)), None)
    return ("local" if obstacle is None else "spark"), obstacle


def open_engine(name: EngineName, records: Records, stream: Stream) -> Engine:
    """Open an engine for one batch.

    Args:
        name: Which one.
        records: The batch's; settings made elsewhere are invisible to statements of its session.
        stream: The stream.
    """
    if name == "spark":
        from oncelake.ingestion.modes.engines.spark import SparkEngine

        return SparkEngine(cast("DataFrame", records).sparkSession)
    return open_local_engine(stream)


def open_local_engine(stream: Stream) -> LocalEngine:
    """Open the engine of this process, which needs no Spark, for one batch."""
    from oncelake.ingestion.modes.engines.local import LocalEngine

    scratch = scratch_of_this_process(stream.settings.state)
    scratch.mkdir(parents=True, exist_ok=True)
    return LocalEngine(stream.name, scratch)


def open_writer(
    name: EngineName, engine: Engine, stream: Stream, *, seq: int, version: int
) -> TableWriter:
    """Open a stream's table, to write one batch to it.

    Args:
        name: The engine's.
        engine: What ``open_engine`` has opened.
        stream: The stream.
        seq: The batch's number.
        version: The table's version before the batch.
    """
    if name == "spark":
        from oncelake.ingestion.modes.engines.spark_writer import SparkWriter

        of_spark = cast("SparkEngine", engine)
        return SparkWriter(of_spark, stream.name, stream.paths.data, version)
    local = cast("LocalEngine", engine)
    spec, table = stream.spec, stream.paths.table
    columns = {column.name for column in (*spec.table_columns, *system_columns())}
    return ChangeWriter(local, table, keys=spec.row_keys, columns=columns, seq=seq)


def _obstacles(stream: Stream) -> Iterator[str]:
    """Say what of a run only Spark can do."""
    spec, data = stream.spec, stream.paths.data
    for aggregate in aggregates_of(spec):
        if aggregate.function == "approx_distinct":
            yield f"{aggregate.name} is a sketch of Spark's"
    types = {column.name: column.type for column in spec.table_columns}
    for name in (*spec.keys, *spec.sequence_by):
        if name in types and types[name].word in _INEXACT:
            yield f"{name}, by which rows are compared, is a {types[name].word}"
    if is_delta(data):
        yield from _obstacles_of(stream.paths.table, data)


def _obstacles_of(table: SinkTable, data: Location) -> Iterator[str]:
    """Say what of a table that is there only Spark can do."""
    for feature in unwritable_features(read_delta(data)):
        yield f"the table has the feature {feature}"
    rules = table.rules()
    for name in rules.constraints:
        yield f"Spark evaluates the constraint {name} of the table"
    for name in rules.generated:
        yield f"Spark evaluates what the table computes {name} by"
