"""Confluent's wire format: a zero byte, four bytes of schema id, and the payload.

The driver collects the ids of a batch and requests their schemas before anything is decoded:
executors need no access to the registry, and none of them can stop a run half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ingestion.errors import InvalidSpecError
from ingestion.formats import arrow_udf
from ingestion.formats.arrow_udf import BadBytesError, Decoded, Read, decoded_by
from ingestion.formats.coerce import MisfitError
from ingestion.formats.decoder import Encoded
from ingestion.kafka.schema_registry import WriterSchema, registry_of

HEADER_BYTES: Final = 5
REASONS: Final[dict[str, str]] = {
    **arrow_udf.REASONS,
    "not_framed": "the first byte is not 0: no serializer of a schema registry wrote this",
    "short_header": "fewer than five bytes, so that there is no schema id",
    "unknown_schema_id": "the registry does not know the schema id",
    "wrong_schema_type": "the schema id is one of another format",
    "unusable_schema": "the schema cannot be understood, or a type of it contains itself",
    "type_mismatch": "a value that its column cannot hold without a loss",
    "unknown_field": "a name is not declared, and the stream says `extra_fields: reject`",
}

# More than any topic has; random bytes that start with a zero would have one per record.
_MOST_IDS: Final = 10_000


class Wanted(NamedTuple):
    """The expected content of a payload.

    Attributes:
        columns: The declared columns, or the key columns.
        is_key: Whether it is a Kafka key, which may be a bare value.
    """

    columns: StructType
    is_key: bool


Compile = Callable[[WriterSchema, Wanted], Read]


def decoded_by_schema(
    records: DataFrame,
    encoded: Encoded,
    schema_type: str,
    compile_: Compile,
    *,
    prepared: Callable[[WriterSchema], WriterSchema] = lambda schema: schema,
) -> DataFrame:
    """Decode framed bytes, each record with its writer's schema.

    Args:
        records: Records with the bytes, materialized, since they are read twice.
        encoded: Which bytes, and their expected content.
        schema_type: The type that their schemas must have.
        compile_: Makes the reader for one schema; raises ``BadBytesError``.
        prepared: Prepares a schema on the driver, so that executors need no compiler.
    """
    found = writer_schemas(records, encoded)
    schemas = {number: prepared(each) for number, each in found.items()}
    return decoded_by(
        records,
        encoded,
        partial(
            _FramedReader,
            schemas,
            schema_type,
            compile_,
            Wanted(encoded.schema, encoded.is_key),
        ),
    )


def writer_schemas(records: DataFrame, encoded: Encoded) -> Mapping[int, WriterSchema]:
    """Return the schemas of all ids in the bytes, with one Spark job."""
    number = schema_id(F.col(encoded.column))
    found = records.where(number.isNotNull()).select(number.alias("id")).distinct()
    ids = [row["id"] for row in found.limit(_MOST_IDS).collect()]
    if len(ids) == _MOST_IDS:
        raise InvalidSpecError(
            f"a batch names {_MOST_IDS:,} schema ids or more: its records are not in the wire "
            "format of a schema registry. Declare the format that they have"
        )
    return registry_of(encoded.settings).schemas(ids)


def schema_id(raw: Column) -> Column:
    """Return the schema id at the start of framed bytes, or null."""
    is_framed = (F.octet_length(raw) >= HEADER_BYTES) & (F.substring(raw, 1, 1) == F.lit(b"\0"))
    number = F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("long")
    return F.when(is_framed, number)


class _FramedReader:
    """Reads framed bytes; compiles a schema with its first record."""

    def __init__(
        self,
        schemas: Mapping[int, WriterSchema],
        schema_type: str,
        compile_: Compile,
        wanted: Wanted,
    ) -> None:
        self._schemas, self._type = schemas, schema_type
        self._compile, self._wanted = compile_, wanted
        self._readers: dict[int, Read] = {}

    def __call__(self, raw: bytes) -> Decoded:
        if raw[:1] not in {b"", b"\0"}:
            raise BadBytesError("not_framed", f"the first byte is {raw[0]}, not 0")
        if len(raw) < HEADER_BYTES:
            raise BadBytesError("short_header", f"{len(raw)} bytes")
        number = int.from_bytes(raw[1:HEADER_BYTES])
        try:
            read = self._readers.get(number) or self._opened(number)
            return read(raw[HEADER_BYTES:])
        except MisfitError as error:
            raise BadBytesError("type_mismatch", f"schema id {number}: {error}") from None
        except BadBytesError as error:
            raise BadBytesError(error.reason, f"schema id {number}: {error}") from None

    def _opened(self, number: int) -> Read:
        schema = self._schemas.get(number)
        if schema is None:
            raise BadBytesError("unknown_schema_id", "the registry does not know it")
        if schema.type != self._type:
            raise BadBytesError("wrong_schema_type", f"{schema.type}, not {self._type}")
        self._readers[number] = read = self._compile(schema, self._wanted)
        return read
