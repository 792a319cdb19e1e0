"""A schema that comes with the records gives the table columns before its first batch is decoded.

The schemas of a batch are known before it is decoded. One that says more than the columns hold
ends the batch; the run begins again with the columns of both, which are committed first, as those
of a changed declaration are. What no table of the sink can become is left as it is: such values go
to quarantine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.derived import Derived
from oncelake.ingestion.declaration.parts import FormatSpec
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.formats.connect import schema_before_payload
from oncelake.ingestion.formats.decoder import UNFORESEEN
from oncelake.ingestion.formats.schema_columns import Types, column_types, embedded_types
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.rows import Records
from oncelake.ingestion.recovery.topics import without_refused

# Connectors write one schema for years; bytes that are none would be one a record.
_MOST_SCHEMAS: Final = 300
_LONGEST_SCHEMA: Final = 1_000_000
_SPLIT: Final = ',"payload":'


class SchemaMovedError(Exception):
    """A batch has a schema of which the columns do not hold all; ``spec`` is one that does."""

    def __init__(self, spec: StreamSpec) -> None:
        super().__init__(spec.name)
        self.spec = spec


def refuse_moved_schema(stream: Stream, schemas: Iterable[WriterSchema]) -> None:
    """Compare the columns with the schemas of a registry that a batch was written by.

    Raises:
        SchemaMovedError: they do not hold all that these say.
    """
    spec, source = stream.spec, stream.spec.schema_from
    if source is None or not spec.follows_schema:
        return
    sound = (each for each in schemas if not each.problem)
    _refuse_moved(stream, (_types_of(each, spec.format, source.records) for each in sound))


def refuse_moved_embedded(stream: Stream, records: Records) -> None:
    """Compare the columns with the schemas that stand in the records; costs a job of Spark's.

    Raises:
        SchemaMovedError: they do not hold all that these say.
    """
    spec = stream.spec
    if not spec.follows_schema or spec.schema_from is None or spec.schema_from.kind != "embedded":
        return
    found = _fronts_here(records) if isinstance(records, pa.Table) else _fronts_in_spark(records)
    _refuse_moved(stream, map(_embedded_types, found))


def _fronts_in_spark(records: DataFrame) -> list[str]:
    text = F.col("_value").cast("string")
    # As Kafka Connect writes it; of other JSON, Spark finds the schema, which costs more.
    elsewhere = F.concat(F.lit('{"schema":'), F.get_json_object(text, "$.schema"))
    front = F.when(text.contains(_SPLIT), F.substring_index(text, _SPLIT, 1)).otherwise(elsewhere)
    fronts = records.select(front.alias("front"))
    fronts = fronts.where(F.length("front") <= _LONGEST_SCHEMA).distinct()
    return [row["front"] for row in fronts.limit(_MOST_SCHEMAS).collect()]


def _fronts_here(records: pa.Table) -> list[str]:
    """Return the same of records that are in this process."""
    values = (value for value in records["_value"].to_pylist() if value)
    fronts = dict.fromkeys(front for value in values if (front := _front(value)) is not None)
    return [*islice(fronts, _MOST_SCHEMAS)]


def _front(value: bytes) -> str | None:
    """Return what stands before the payload; none where no schema does."""
    text = value.decode(errors="replace")
    front, split, _ = text.partition(_SPLIT)
    if not split:
        try:
            front = '{"schema":' + json.dumps(json.loads(text)["schema"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
    return front if len(front) <= _LONGEST_SCHEMA else None


def _refuse_moved(stream: Stream, of_schemas: Iterable[Types]) -> None:
    spec, sink = stream.spec, stream.spec.sink.name
    fills_variants = spec.format.fills_variants
    for types in of_schemas:
        spec = spec.following(Derived.of(types, sink, fills_variants=fills_variants).types)
    spec = without_refused(spec, stream.spec.ddl, stream.paths)
    if spec.ddl != stream.spec.ddl:
        raise SchemaMovedError(spec)


def _types_of(schema: WriterSchema, format_: FormatSpec, records: Sequence[str]) -> Types:
    try:
        return column_types(schema, format_, records)
    except UNFORESEEN:
        # Nothing in a schema may stop the stream: decoding says what is wrong, of each record.
        return {}


@cache
def _embedded_types(front: str) -> Types:
    try:
        return embedded_types(schema_before_payload(front.encode()))
    except UNFORESEEN:
        return {}
