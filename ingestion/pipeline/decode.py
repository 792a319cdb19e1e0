"""Decode a batch: its values, and the Kafka keys where they give columns; explode it if declared.

Headers and the key give a value the columns that are declared so, and a null value its key columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.declaration.rules.stream import JSON_FORMATS
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.formats.decoder import Encoded
from oncelake.ingestion.formats.decoding import Decoding, decode_batches
from oncelake.ingestion.formats.registry.wire_format import LONGEST_FRONT_BYTES, schema_ids_in
from oncelake.ingestion.formats.route import plan_routing
from oncelake.ingestion.kafka.schema_registry import SchemaId, WriterSchema, registry_of
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.frame_cache import FrameCache
from oncelake.ingestion.modes.engines.rows import Records, Rows, distinct_texts
from oncelake.ingestion.pipeline.explode import exploding
from oncelake.ingestion.pipeline.schema.follow import refuse_moved_embedded, refuse_moved_schema
from oncelake.ingestion.pipeline.schema.types import row_type, type_of_columns, value_type
from oncelake.ingestion.settings import Settings

# The column with the keys of null values, and of no others.
_TOMBSTONE_KEY: Final = "_tombstone_key"
# More than any topic has; random bytes that start with a zero would have one per record.
_MOST_IDS: Final = 10_000


def decode(records: Records, stream: Stream, frames: FrameCache) -> Rows:
    """Add ``_decoded`` to records, and where a null value may delete by its key ``_decoded_key``.

    Args:
        records: As the source returns them; see ``ingestion.pipeline.columns``.
        stream: The declaration, and where a schema registry is.
        frames: Keeps the bytes where schemas must be known before decoding.

    Raises:
        SchemaMovedError: a schema says more than the columns hold, and they follow it.
    """
    spec = stream.spec
    if spec.format.options.uses_registry or spec.key_format.options.uses_registry:
        records = frames.keep_bytes(records)
    elif spec.follows_schema:
        records = frames.keep_bytes(records)
        refuse_moved_embedded(stream, records)
    value = _plan_values(records, stream, value_type(spec))
    refuse_moved_schema(stream, value.encoded.writer_schemas.values())
    return _decoded(records, stream, value)


def decode_here(records: pa.Table, stream: Stream) -> Rows:
    """Do the same of records in this process, whose columns follow no schema."""
    return _decoded(records, stream, _plan_values(records, stream, value_type(stream.spec)))


def _decoded(records: Records, stream: Stream, value: Decoding) -> Rows:
    key, array = _plan_tombstones(records, stream), stream.spec.explode

    def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        of_values = decode_batches(batches, value)
        if key is None:
            yield from of_values
            return
        for batch in decode_batches(map(_with_tombstone_key, of_values), key):
            yield batch.drop_columns([_TOMBSTONE_KEY])

    return Rows(records=records, work=exploding(decoded, array) if array is not None else decoded)


def _plan_values(records: Records, stream: Stream, schema: StructType) -> Decoding:
    spec = stream.spec
    encoded = Encoded(
        schema=schema,
        is_key=False,
        options=spec.format.options,
        extra_fields=spec.extra_fields,
        whole=spec.whole_columns,
        unavailable=spec.unavailable,
        never_left_out=spec.never_left_out,
        keys=spec.keys if spec.unavailable == "keep" else (),
        moved_by=spec.moved_by,
        movable=spec.movable,
        lenient=spec.lenient,
        record=spec.record,
        shares_tombstones=spec.shares_tombstones,
        leaves_by_route=spec.leaves_by_route,
        are_variants_text=spec.are_variants_text,
    )
    plan = plan_decoding(records, spec.format.type, encoded, stream.settings, column="_value")
    key = _plan_keys(records, stream, schema, column="_key") if spec.from_key else None
    plan = replace(plan, headers=spec.header_columns, key=key)
    if spec.route is None:
        return plan
    of_route = type_of_columns(spec.route.columns)
    return replace(plan, routing=plan_routing(spec.route, plan.encoded, of_route))


def _plan_tombstones(records: Records, stream: Stream) -> Decoding | None:
    """Plan how to decode key and order of null values, where these delete."""
    spec = stream.spec
    if spec.tombstone_policy != "delete":
        return None
    # Among columns of values and the table.
    schema = StructType([*value_type(spec), *row_type(spec.ddl)])
    headers = {n: h for n, h in spec.header_columns.items() if n in spec.tombstone_columns}
    plan = _plan_keys(records, stream, schema, column=_TOMBSTONE_KEY)
    whole = StructType([*plan.encoded.schema, *_fields(schema, headers)])
    return replace(plan, encoded=replace(plan.encoded, schema=whole), headers=headers)


def _plan_keys(records: Records, stream: Stream, schema: StructType, *, column: str) -> Decoding:
    spec = stream.spec
    type_, is_json = spec.key_format.type, spec.key_format.type in JSON_FORMATS
    encoded = Encoded(
        schema=_fields(schema, spec.key_columns),
        is_key=True,
        options=spec.key_format.options,
        extra_fields="ignore",
        lenient=spec.lenient & set(spec.key_columns) if is_json else frozenset(),
    )
    return plan_decoding(records, type_, encoded, stream.settings, column=column)


def _fields(schema: StructType, names: Iterable[str]) -> StructType:
    """Return the fields of some names, of those that share one the last."""
    fields = {each.name: each for each in schema}
    return StructType([fields[name] for name in names])


def _with_tombstone_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    of_tombstones = pc.if_else(pc.is_null(batch.column("_value")), batch.column("_key"), None)
    return batch.append_column(_TOMBSTONE_KEY, of_tombstones)


def plan_decoding(
    records: Records, type_: str, encoded: Encoded, settings: Settings, *, column: str
) -> Decoding:
    """Plan how to decode keys or values with their declared format.

    Args:
        records: Records with the bytes; with a registry materialized, since they are read twice.
        type_: The format's name.
        encoded: The expected content, but for the schemas of a registry.
        settings: Where a schema registry is.
        column: Name of the binary column; ``_TOMBSTONE_KEY`` is the key of null values alone.
    """
    module = import_module(FORMATS[type_].module)
    if encoded.options.uses_registry:
        encoded = replace(encoded, in_glue=settings.in_glue)
        ids = _ids_in(records, column, encoded)
        schemas = _writer_schemas(module, ids, settings=settings)
        encoded = replace(encoded, writer_schemas=schemas)
    return Decoding(module=module.__name__, encoded=encoded, column=column)


def _writer_schemas(
    module: ModuleType, ids: Sequence[SchemaId], *, settings: Settings
) -> Mapping[SchemaId, WriterSchema]:
    """Return the schemas of some ids.

    The format's module may offer ``prepared``: what the driver makes of a schema, so that executors
    need no compiler.
    """
    if len(ids) >= _MOST_IDS:
        raise InvalidSpecError(
            f"a batch names {_MOST_IDS:,} schema ids or more: its records are not in the wire "
            "format of a schema registry. Declare the format that they have"
        )
    prepared = getattr(module, "prepared", lambda schema: schema)
    return {number: prepared(each) for number, each in registry_of(settings).schemas(ids).items()}


def _ids_in(records: Records, column: str, encoded: Encoded) -> list[SchemaId]:
    """Return the schema ids in front of bytes, or in a header."""
    source = "_key" if column == _TOMBSTONE_KEY else column
    if isinstance(records, pa.Table):
        fronts = records[source]
        if column == _TOMBSTONE_KEY:
            fronts = pc.if_else(pc.is_null(records["_value"]), fronts, None)
        framed = pa.table({"front": fronts, "headers": records["_headers"]})
    else:
        # Workers get no more of a value than may hold an id.
        front = F.substring(source, 1, LONGEST_FRONT_BYTES)
        if column == _TOMBSTONE_KEY:
            front = F.when(F.col("_value").isNull(), front)
        framed = records.select(front.alias("front"), F.col("_headers").alias("headers"))

    def ids(batch: pa.RecordBatch) -> list[str]:
        found = schema_ids_in(batch.column("front"), batch.column("headers"), encoded)
        return [str(each) for each in found]

    texts = distinct_texts(framed, ids, most=_MOST_IDS)
    return [int(text) if text.isdigit() else UUID(text) for text in texts]
