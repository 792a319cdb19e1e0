"""Decoding without Spark: what a format makes of bytes, through the seam that Spark calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.declaration.parts import ExtraFields, FormatSpec, KeyFormatSpec
from oncelake.ingestion.formats.decoder import Decode, Encoded
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.pipeline.schema.types import type_of_columns
from oncelake.ingestion.verify.compare.rows import values_equal
from oncelake.ingestion.verify.decode import Decode as Read
from oncelake.ingestion.verify.decode import Expected, reading
from oncelake.ingestion.verify.decode.coerce import BROKEN


def row_type(ddl: str) -> spark.StructType:
    """Return the type of a row as ``pipeline.schema.types`` does, without a running Spark."""
    return type_of_columns(parse_columns(ddl))


def format_spec(type_: str, *, is_key: bool, **options: Any) -> FormatSpec:
    """Return the format of values, or of Kafka keys, as it is declared."""
    return (KeyFormatSpec if is_key else FormatSpec)(type=type_, **options)


def opened(
    format_: str,
    ddl: str,
    *,
    is_key: bool = False,
    extra_fields: ExtraFields = "ignore",
    lenient: Iterable[str] = (),
    writer_schemas: Iterable[WriterSchema] = (),
    **options: Any,
) -> Decode:
    """Open the decoding of a format for some columns, as each of Spark's tasks does."""
    module = import_module(FORMATS[format_].module)
    prepared = getattr(module, "prepared", lambda schema: schema)
    encoded = Encoded(
        schema=row_type(ddl),
        is_key=is_key,
        options=format_spec(format_, is_key=is_key, **options).options,
        extra_fields=extra_fields,
        lenient=frozenset(lenient),
        writer_schemas={schema.id: prepared(schema) for schema in writer_schemas},
    )
    decode: Decode = module.opened(encoded)
    return decode


def decoded(
    decode: Decode, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
) -> list[dict[str, Any]]:
    """Decode values, and return the struct of each."""
    columns = [values] if keys is None else [values, keys]
    found = decode(*(pa.array(column, pa.binary()) for column in columns))
    structs: list[dict[str, Any]] = found.to_pylist(maps_as_pydicts="strict")
    return structs


def proven(
    format_: str,
    ddl: str,
    values: Sequence[bytes],
    *,
    is_key: bool = False,
    extra_fields: ExtraFields = "ignore",
    lenient: Iterable[str] = (),
    **options: Any,
) -> list[list[Any] | None]:
    """Read values as the proof does: one row each, or nothing where it refuses them."""
    spec = format_spec(format_, is_key=is_key, **options)
    expected = Expected(
        columns=parse_columns(ddl),
        is_key=is_key,
        options=spec.options,
        extra_fields=extra_fields,
        lenient=frozenset(lenient),
        settings=None,
    )
    read = reading(spec, expected)
    return [_row(read, value) for value in values]


def disagreements(
    format_: str, ddl: str, values: Sequence[bytes], **how: Any
) -> list[tuple[bytes, dict[str, Any], list[Any] | None]]:
    """Return the values that the engine and the proof do not read alike, with what each says."""
    keys = [None] * len(values) if format_ == "debezium" else None
    engine = decoded(opened(format_, ddl, **how), values, keys)
    proof = proven(format_, ddl, values, **how)
    rows = [None if each["reason"] else list(each["row"].values()) for each in engine]
    return [
        (value, struct, expected)
        for value, struct, row, expected in zip(values, engine, rows, proof, strict=True)
        if not values_equal(row, expected)
    ]


def _row(read: Read, value: bytes) -> list[Any] | None:
    try:
        return list(read(value).values)
    except BROKEN:
        return None
