"""Decode a batch: its values, and the Kafka keys where they give columns; explode it if declared.

Headers and the key give a value the columns that are declared so, and a null value its key columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegerType, StructType

from oncelake.ingestion.declaration.rules import JSON_FORMATS
from oncelake.ingestion.formats.arrow_udf import (
    Decoding,
    declared_struct,
    decode_in_spark,
    decode_in_worker,
    parsed,
    plan_decoding,
)
from oncelake.ingestion.formats.decoder import Encoded, decoded_struct
from oncelake.ingestion.formats.route import plan_routing
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.frame_cache import FrameCache
from oncelake.ingestion.modes.engines.rows import InWorker, Records, Rows, Work
from oncelake.ingestion.pipeline.explode import exploded_type, exploding
from oncelake.ingestion.pipeline.follow_schema import refuse_moved_embedded, refuse_moved_schema
from oncelake.ingestion.pipeline.schema import row_type, type_of_columns, value_type

_TOMBSTONE_KEY = "_tombstone_key"


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
    return _decoded(records, value, _plan_tombstones(records, stream), spec.explode)


def decode_here(records: pa.Table, stream: Stream) -> Work:
    """Return the work that adds the same columns to records in this process, without Spark."""
    value = _plan_values(records, stream, value_type(stream.spec))
    return _work(value, _plan_tombstones(records, stream), stream.spec.explode)


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
    # Of keys without schema ids the records are not asked, and a frame costs a call of the JVM.
    if spec.key_format.options.uses_registry:
        records = _with_tombstone_keys(records)
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


def _with_tombstone_keys(records: Records) -> Records:
    if isinstance(records, pa.Table):
        batches = list(map(_with_tombstone_key, records.to_batches()))
        return pa.Table.from_batches(batches) if batches else records
    of_tombstones = F.when(F.col("_value").isNull(), F.col("_key"))
    return records.withColumn(_TOMBSTONE_KEY, of_tombstones)


def _decoded(records: Records, value: Decoding, key: Decoding | None, array: str | None) -> Rows:
    """Return both ways to do it: as Spark's columns, and in a worker of Spark's without them."""

    def in_spark() -> DataFrame:
        assert not isinstance(records, pa.Table), "what Spark evaluates is refused for a table"
        if array is not None:
            return _exploded_in_spark(records, value, key, array)
        decoded = decode_in_spark(records, value)
        if key is None:
            return decoded
        keyed = cast("DataFrame", _with_tombstone_keys(decoded))
        return decode_in_spark(keyed, key).drop(_TOMBSTONE_KEY)

    in_worker = InWorker(records=records, work=_work(value, key, array))
    return Rows(in_spark=in_spark, in_worker=in_worker)


def _exploded_in_spark(
    records: DataFrame, value: Decoding, key: Decoding | None, array: str
) -> DataFrame:
    """Let workers explode what they have decoded; a record is no row of Spark's before."""
    made = {value.into: exploded_type(decoded_struct(value.encoded), array)}
    made |= {key.into: decoded_struct(key.encoded)} if key else {}
    whole = StructType([*records.schema])
    for name, type_ in (*made.items(), ("_index", IntegerType()), ("_is_empty", BooleanType())):
        whole = whole.add(name, type_)
    frame = records.mapInArrow(_work(value, key, array, for_spark=True), whole)
    if value.encoded.are_variants_text:
        return frame
    declared = exploded_type(declared_struct(value.encoded), array)
    return frame.withColumn(value.into, parsed(F.col(value.into), declared))


def _work(
    value: Decoding, key: Decoding | None, array: str | None, *, for_spark: bool = False
) -> Work:
    def decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoded = decode_in_worker(batches, value, for_spark=for_spark)
        if key is None:
            yield from decoded
            return
        for batch in decode_in_worker(map(_with_tombstone_key, decoded), key):
            yield batch.drop_columns([_TOMBSTONE_KEY])

    return exploding(decode_batches, array) if array is not None else decode_batches


def _with_tombstone_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    of_tombstones = pc.if_else(pc.is_null(batch.column("_value")), batch.column("_key"), None)
    return batch.append_column(_TOMBSTONE_KEY, of_tombstones)
