"""Decode a batch: its values, and the Kafka keys where they give columns; explode it if declared.

Headers and the key give a value the columns that are declared so, and a null value its key columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

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
from oncelake.ingestion.pipeline.plan import TOMBSTONE_KEY, DecodePlan
from oncelake.ingestion.pipeline.schema.follow import refuse_moved_embedded, refuse_moved_schema
from oncelake.ingestion.settings import Settings

# More than any topic has; random bytes that start with a zero would have one per record.
_MOST_IDS: Final = 10_000


def decode(records: Records, plan: DecodePlan, stream: Stream, frames: FrameCache) -> Rows:
    """Add ``_decoded`` to records, and where a null value may delete by its key ``_decoded_key``.

    Args:
        records: As the source returns them; see ``ingestion.pipeline.columns``.
        plan: How their bytes are decoded.
        stream: Where a schema registry is, and whether the columns follow the schemas there.
        frames: Keeps the bytes where schemas must be known before decoding.

    Raises:
        SchemaMovedError: a schema says more than the columns hold, and they follow it.
    """
    if plan.reads_ids:
        records = frames.keep_bytes(records)
    elif stream.spec.follows_schema:
        records = frames.keep_bytes(records)
        refuse_moved_embedded(stream, records)
    value = with_schemas(plan.value, records, stream.settings)
    refuse_moved_schema(stream, value.encoded.writer_schemas.values())
    return _decoded(records, plan, value, stream.settings)


def decode_here(records: pa.Table, plan: DecodePlan, settings: Settings) -> Rows:
    """Do the same of records in this process, whose columns follow no schema."""
    return _decoded(records, plan, with_schemas(plan.value, records, settings), settings)


def _decoded(records: Records, plan: DecodePlan, value: Decoding, settings: Settings) -> Rows:
    array, key = plan.explode, plan.tombstone_key
    key = key and with_schemas(key, records, settings)

    def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        of_values = decode_batches(batches, value)
        if key is None:
            yield from of_values
            return
        added = (each.append_column(TOMBSTONE_KEY, _tombstone_keys(each)) for each in of_values)
        for batch in decode_batches(added, key):
            yield batch.drop_columns([TOMBSTONE_KEY])

    return Rows(records=records, work=exploding(decoded, array) if array is not None else decoded)


def _tombstone_keys(records: pa.RecordBatch | pa.Table) -> pa.Array:
    return pc.if_else(pc.is_null(records["_value"]), records["_key"], None)


def with_schemas(plan: Decoding, records: Records, settings: Settings) -> Decoding:
    """Complete a decoding by the schemas of a registry that the records name.

    Args:
        plan: How keys or values are decoded.
        records: Records with the bytes; with a registry materialized, since they are read twice.
        settings: Where a schema registry is.
    """
    encoded, routing = plan.encoded, plan.routing
    if encoded.options.uses_registry:
        encoded = replace(encoded, in_glue=settings.in_glue)
        schemas = _writer_schemas(plan.module, _ids_in(records, plan.column, encoded), settings)
        encoded = replace(encoded, writer_schemas=schemas)
        routing = routing and plan_routing(routing.route, encoded, routing.encoded.schema)
    key = plan.key and with_schemas(plan.key, records, settings)
    return replace(plan, encoded=encoded, key=key, routing=routing)


def _writer_schemas(
    module: str, ids: Sequence[SchemaId], settings: Settings
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
    prepared = getattr(import_module(module), "prepared", lambda schema: schema)
    return {number: prepared(each) for number, each in registry_of(settings).schemas(ids).items()}


def _ids_in(records: Records, column: str, encoded: Encoded) -> list[SchemaId]:
    """Return the schema ids in front of bytes, or in a header."""
    of_tombstones = column == TOMBSTONE_KEY
    if isinstance(records, pa.Table):
        fronts = _tombstone_keys(records) if of_tombstones else records[column]
        framed = pa.table({"front": fronts, "headers": records["_headers"]})
    else:
        # Workers get no more of a value than may hold an id.
        front = F.substring("_key" if of_tombstones else column, 1, LONGEST_FRONT_BYTES)
        front = F.when(F.col("_value").isNull(), front) if of_tombstones else front
        framed = records.select(front.alias("front"), F.col("_headers").alias("headers"))

    def ids(batch: pa.RecordBatch) -> list[str]:
        found = schema_ids_in(batch.column("front"), batch.column("headers"), encoded)
        return [str(each) for each in found]

    texts = distinct_texts(framed, ids, most=_MOST_IDS)
    return [int(text) if text.isdigit() else UUID(text) for text in texts]
