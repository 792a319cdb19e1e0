"""The one place where Spark decodes: bytes go to Python as Arrow, typed columns come back.

Where records name their schemas by id, the driver collects the ids of a batch and requests their
schemas first: executors need no access to the registry, and none of them can stop a run half-way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import ModuleType
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from oncelake.ingestion.declaration.formats import FORMATS, Header
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.formats.decoder import Decode, Encoded, decoded_struct
from oncelake.ingestion.formats.metadata import MetadataDecoder, without_columns
from oncelake.ingestion.formats.route import RoutedDecoder, Routing
from oncelake.ingestion.formats.variant import has_variants, with_variants
from oncelake.ingestion.formats.wire_format import (
    GUID_HEADER_BYTES,
    HEADER_BYTES,
    id_headers,
    ids_of,
    schema_ids_in,
)
from oncelake.ingestion.kafka.schema_registry import SchemaId, WriterSchema, registry_of
from oncelake.ingestion.settings import Settings

# More than any topic has; random bytes that start with a zero would have one per record.
_MOST_IDS: Final = 10_000
_GATHERED_RECORDS: Final = 10_000
_GATHERED_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """How a column of bytes is decoded; executors get it.

    Attributes:
        module: The format's module.
        encoded: The expected content.
        column: Name of the bytes' column; ``_key`` has the Kafka keys, ``_headers`` the headers.
        headers: The headers that give columns, and not the bytes, by the columns.
        key: How the Kafka keys are decoded, where they give columns of a value.
        routing: Which records are decoded at all; ``None`` where all are.
    """

    module: str
    encoded: Encoded
    column: str
    headers: Mapping[str, Header] = field(default_factory=dict)
    key: Decoding | None = None
    routing: Routing | None = None

    @property
    def into(self) -> str:
        """Name of the column to add, of the type of ``decoded_struct``."""
        return "_decoded_key" if self.encoded.is_key else "_decoded"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        if self.headers or self.key:
            return (self.column, "_key", "_headers")
        options, columns = self.encoded.options, [self.column]
        columns += ["_key"] if options.reads_key else []
        are_headers_read = options.reads_headers or self.routing
        return (*columns, "_headers") if are_headers_read else tuple(columns)

    def opened(self) -> Decode:
        """Open the decoding, once per task, since it keeps state; it takes ``columns``."""
        decode, read = self._opened_columns(self.encoded), import_module(self.module).opened
        if self.routing is None:
            return decode
        options, takes_all = self.encoded.options, bool(self.headers or self.key)
        read_route = read(self.routing.encoded)

        def read_of_all(values: pa.Array, keys: pa.Array, headers: pa.Array) -> pa.StructArray:
            more = [keys] if options.reads_key else []
            return read_route(values, *more, *([headers] if options.reads_headers else []))

        elsewhere = None
        if self.encoded.leaves_by_route:
            elsewhere = self._opened_columns(replace(self.encoded, is_elsewhere=True))
        return RoutedDecoder(
            self.routing,
            read_of_all if takes_all else read_route,
            decode,
            elsewhere,
            takes_headers=takes_all or options.reads_headers,
        )

    def _opened_columns(self, encoded: Encoded) -> Decode:
        open_format = import_module(self.module).opened
        if not (self.headers or self.key):
            return cast("Decode", open_format(encoded))
        of_key = self.key.encoded.schema.names if self.key else ()
        own = without_columns(encoded, {*self.headers, *of_key})
        return MetadataDecoder(
            encoded,
            open_format(own) if len(own.schema) else None,
            headers=self.headers,
            decode_key=self.key.opened() if self.key else None,
        )


def plan_decoding(
    records: DataFrame | pa.Table, type_: str, encoded: Encoded, settings: Settings, *, column: str
) -> Decoding:
    """Plan how to decode keys or values with their declared format.

    Args:
        records: Records with the bytes; with a registry materialized, since they are read twice.
            A table where they are in this process.
        type_: The format's name.
        encoded: The expected content, but for the schemas of a registry.
        settings: Where a schema registry is.
        column: Name of the binary column.
    """
    module = import_module(FORMATS[type_].module)
    if encoded.options.uses_registry:
        encoded = replace(encoded, in_glue=settings.in_glue)
        ids = _ids_in(records, column, encoded)
        schemas = _writer_schemas(module, ids, settings=settings)
        encoded = replace(encoded, writer_schemas=schemas)
    return Decoding(module=module.__name__, encoded=encoded, column=column)


def decode_in_spark(records: DataFrame, decoding: Decoding) -> DataFrame:
    """Add the decoded column to a frame, by a UDF that Spark computes once a record."""
    found, is_text = decoded_struct(decoding.encoded), decoding.encoded.are_variants_text
    struct = declared_struct(decoding.encoded)

    def decode_batches(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        decode = decoding.opened()
        for batch in batches:
            made = decode(*batch) if isinstance(batch, tuple) else decode(batch)
            yield with_variants(made, struct, as_text=True) if is_text else made

    as_udf: Any = arrow_udf  # Its types know nothing of structs, which it takes.
    decode = as_udf(decode_batches, found).asNondeterministic()
    decoded = records.withColumn(decoding.into, decode(*map(F.col, decoding.columns)))
    if is_text or not has_variants(struct):
        return decoded
    return decoded.withColumn(decoding.into, parsed(F.col(decoding.into), struct))


def declared_struct(encoded: Encoded) -> StructType:
    """Return the type of what was decoded, with VARIANTs where JSON stands for them."""
    decoded = decoded_struct(encoded)
    declared: dict[str, DataType] = dict.fromkeys(("row", "ended"), encoded.schema)
    declared["kept"] = VariantType()
    return StructType([StructField(f.name, declared.get(f.name, f.dataType)) for f in decoded])


def decode_in_worker(
    batches: Iterator[pa.RecordBatch], decoding: Decoding, *, for_spark: bool = False
) -> Iterator[pa.RecordBatch]:
    """Add the decoded column to Arrow batches; ``for_spark`` VARIANTs stay the JSON they are."""
    decode, encoded = decoding.opened(), decoding.encoded
    struct = declared_struct(encoded)
    for batch in _gathered(batches):
        decoded = decode(*(batch.column(name) for name in decoding.columns))
        if encoded.are_variants_text or not for_spark:
            decoded = with_variants(decoded, struct, as_text=encoded.are_variants_text)
        yield batch.append_column(decoding.into, decoded)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put Spark's batches together; decoding costs something for each, whatever it holds."""
    kept: list[pa.RecordBatch] = []
    records = size = 0
    for batch in batches:
        records += batch.num_rows
        size += batch.nbytes
        if kept and (records > _GATHERED_RECORDS or size > _GATHERED_BYTES):
            yield _joined(kept)
            kept, records, size = [], batch.num_rows, batch.nbytes
        kept.append(batch)
    if kept:
        yield _joined(kept)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one batch; one that stands alone is not copied."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


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


def _ids_in(records: DataFrame | pa.Table, column: str, encoded: Encoded) -> list[SchemaId]:
    """Return the schema ids in front of bytes, or in a header, of a frame with one Spark job."""
    if isinstance(records, pa.Table):
        return schema_ids_in(records, column, encoded)
    raw, names = F.col(column), id_headers(is_key=encoded.is_key)
    of_confluent = F.filter("_headers", lambda header: header["key"] == names[0])
    # Message indexes may follow; what has them here, too, is the same id.
    header = F.substring(F.try_element_at(of_confluent, F.lit(-1))["value"], 1, GUID_HEADER_BYTES)
    header = F.when(raw.isNotNull(), header)
    in_header = F.exists("_headers", lambda header: header["key"].isin(names))
    is_framed = (F.octet_length(raw) >= HEADER_BYTES) & (F.substring(raw, 1, 1) == F.lit(b"\0"))
    is_framed &= ~F.coalesce(in_header, F.lit(False))
    number = F.when(is_framed, F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("long"))
    if encoded.in_glue:
        guid = F.concat(F.lit(b"\1"), F.substring(raw, 3, GUID_HEADER_BYTES - 1))
        is_framed = F.hex(F.substring(raw, 1, 2)).isin("0300", "0305")
        number, header = F.lit(None).cast("long"), F.when(is_framed, guid)
    found = records.select(number.alias("id"), header.alias("header")).distinct()
    found = found.where("id IS NOT NULL OR header IS NOT NULL").limit(_MOST_IDS)
    rows = found.collect()
    numbers = [row["id"] for row in rows if row["id"] is not None]
    return [*numbers, *ids_of(bytes(row["header"] or b"") for row in rows)]


def parsed(value: Column, type_: DataType) -> Column:
    """Make VARIANTs of the JSON that stands for them, at any depth."""
    if not has_variants(type_):
        return value
    if isinstance(type_, StructType):
        fields = (parsed(value.getField(f.name), f.dataType).alias(f.name) for f in type_)
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(type_, ArrayType):
        element = type_.elementType
        return F.transform(value, lambda each: parsed(each, element))
    if isinstance(type_, MapType):
        item = type_.valueType
        return F.transform_values(value, lambda _, each: parsed(each, item))
    return F.parse_json(value)
