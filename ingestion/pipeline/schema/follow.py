"""A schema that comes with the records gives the table columns before its first batch is decoded.

The schemas of a batch are known before it is decoded. One that says more than the columns hold
ends the batch; the run begins again with the columns of both, which are committed first, as those
of a changed declaration are. What no table of the sink can become is left as it is: such values go
to quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.declaration.derived import Derived
from oncelake.ingestion.declaration.parts import FormatSpec
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.formats.connect import schema_before_payload
from oncelake.ingestion.formats.decoder import UNFORESEEN
from oncelake.ingestion.formats.registry.columns import Types, column_types, embedded_types
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.rows import Records, distinct_texts
from oncelake.ingestion.recovery.topics import without_refused

# Connectors write one schema for years; bytes that are none would be one a record.
_MOST_SCHEMAS: Final = 300
_LONGEST_SCHEMA: Final = 1_000_000
_SPLIT: Final = b',"payload":'


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
    fronts = distinct_texts(records.select(["_value"]), _fronts, most=_MOST_SCHEMAS)
    _refuse_moved(stream, map(_embedded_types, fronts))


def _fronts(batch: pa.RecordBatch) -> list[str]:
    """Return what stands before the payloads of values, as far as a schema does."""
    values = batch.column("_value")
    parts = pc.split_pattern(values, _SPLIT, max_splits=1)
    # As Kafka Connect writes it; of other JSON the schema is looked for.
    is_usual = pc.fill_null(pc.equal(pc.list_value_length(parts), 2), False)
    usual = pc.list_element(parts.filter(is_usual), 0).unique().to_pylist()
    fronts = [front.decode(errors="replace") for front in usual]
    others = values.filter(pc.invert(is_usual)).drop_null()
    fronts += dict.fromkeys(filter(None, map(_front, others)))
    return [front for front in fronts if len(front) <= _LONGEST_SCHEMA]


class _Envelope(msgspec.Struct):
    schema: msgspec.Raw


def _front(value: pa.BinaryScalar) -> str | None:
    text = value.as_py().decode(errors="replace")
    try:
        schema = bytes(msgspec.json.decode(text, type=_Envelope).schema)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return '{"schema":' + schema.decode()


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
