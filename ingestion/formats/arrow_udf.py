"""The one place where Spark decodes: bytes go to Python as Arrow, typed columns come back.

Where records name their schemas by id, the driver collects the ids of a batch and requests their
schemas first: executors need no access to the registry, and none of them can stop a run half-way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from ingestion.declaration.formats import FORMATS
from ingestion.declaration.parts import ExtraFields, FormatSpec
from ingestion.errors import InvalidSpecError
from ingestion.formats.decoder import Encoded, decoded_struct
from ingestion.formats.wire_format import HEADER_BYTES
from ingestion.kafka.schema_registry import WriterSchema, registry_of
from ingestion.settings import Settings

# More than any topic has; random bytes that start with a zero would have one per record.
_MOST_IDS: Final = 10_000


def decode(
    records: DataFrame,
    format_spec: FormatSpec,
    *,
    column: str,
    into: str,
    is_key: bool = False,
    schema: StructType,
    extra_fields: ExtraFields,
    settings: Settings,
) -> DataFrame:
    """Decode keys or values with their declared format.

    Args:
        records: Records with the bytes; with a registry materialized, since they are read twice.
        format_spec: The format.
        column: Name of the binary column.
        into: Name of the column to add, of the type of ``decoded_struct``.
        is_key: Whether they are Kafka keys.
        schema: The declared columns, or for keys the key columns.
        extra_fields: What to do with fields that ``schema`` does not name.
        settings: Where a schema registry is.
    """
    module, options = import_module(FORMATS[format_spec.type].module), format_spec.options
    uses_registry = options.uses_registry
    encoded = Encoded(
        schema=schema,
        is_key=is_key,
        options=options,
        extra_fields=extra_fields,
        writer_schemas=_writer_schemas(records, column, module, settings) if uses_registry else {},
    )
    bytes_ = [F.col(column), *([F.col("_key")] if options.reads_key else [])]
    decoded = records.withColumn(into, _decoding(module.__name__, encoded)(*bytes_))
    kept = [StructField("kept", VariantType())] if extra_fields == "keep" else []
    with_variants = StructType([StructField("row", schema), *kept])
    if not _has_variants(with_variants):
        return decoded
    parsed = {f.name: _parsed(F.col(into)[f.name], f.dataType) for f in with_variants}
    return decoded.withColumn(
        into, F.struct(*(parsed.get(n, F.col(into)[n]).alias(n) for n in _names(encoded)))
    )


def _decoding(module: str, encoded: Encoded) -> Any:
    """Make a UDF that Spark computes once, however often the parts of its result are used."""

    def decode_batches(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        decode = import_module(module).opened(encoded)
        for batch in batches:
            yield decode(*batch) if isinstance(batch, tuple) else decode(batch)

    as_udf: Any = arrow_udf  # Its types know nothing of structs, which it takes.
    return as_udf(decode_batches, decoded_struct(encoded)).asNondeterministic()


def _writer_schemas(
    records: DataFrame, column: str, module: ModuleType, settings: Settings
) -> Mapping[int, WriterSchema]:
    """Return the schemas of all ids in the bytes, with one Spark job.

    The format's module may offer ``prepared``: what the driver makes of a schema, so that executors
    need no compiler.
    """
    number = _schema_id(F.col(column))
    found = records.where(number.isNotNull()).select(number.alias("id")).distinct()
    ids = [row["id"] for row in found.limit(_MOST_IDS).collect()]
    if len(ids) == _MOST_IDS:
        raise InvalidSpecError(
            f"a batch names {_MOST_IDS:,} schema ids or more: its records are not in the wire "
            "format of a schema registry. Declare the format that they have"
        )
    prepared = getattr(module, "prepared", lambda schema: schema)
    return {number: prepared(each) for number, each in registry_of(settings).schemas(ids).items()}


def _schema_id(raw: Column) -> Column:
    """Return the schema id at the start of framed bytes, or null."""
    is_framed = (F.octet_length(raw) >= HEADER_BYTES) & (F.substring(raw, 1, 1) == F.lit(b"\0"))
    number = F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("long")
    return F.when(is_framed, number)


def _names(encoded: Encoded) -> list[str]:
    return list(decoded_struct(encoded).names)


def _has_variants(type_: DataType) -> bool:
    if isinstance(type_, StructType):
        return any(_has_variants(field.dataType) for field in type_)
    if isinstance(type_, ArrayType):
        return _has_variants(type_.elementType)
    if isinstance(type_, MapType):
        return _has_variants(type_.valueType)
    return isinstance(type_, VariantType)


def _parsed(value: Column, type_: DataType) -> Column:
    """Make VARIANTs of the JSON that stands for them, at any depth."""
    if not _has_variants(type_):
        return value
    if isinstance(type_, StructType):
        fields = (_parsed(value.getField(f.name), f.dataType).alias(f.name) for f in type_)
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(type_, ArrayType):
        element = type_.elementType
        return F.transform(value, lambda each: _parsed(each, element))
    if isinstance(type_, MapType):
        item = type_.valueType
        return F.transform_values(value, lambda _, each: _parsed(each, item))
    return F.parse_json(value)
