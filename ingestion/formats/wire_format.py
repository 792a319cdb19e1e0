"""Confluent's wire format: a zero, four bytes of schema id, and then what the schema describes.

The ids of a batch are looked at on the driver, before anything is decoded, and the registry is
asked there: executors need no way to it, and none of them can stop a run half-way.
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

# Far more than any topic has; noise that happens to begin with a zero has as many as records.
_MOST_IDS: Final = 10_000


class Wanted(NamedTuple):
    """What a payload should hold.

    Attributes:
        columns: The declared columns, or of a key the key columns.
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
    """Decode framed bytes, each record by the schema that its writer named.

    Args:
        records: Records with the bytes, materialised: they are looked at twice.
        encoded: Which bytes, and what they should hold.
        schema_type: The type that their schemas must have.
        compile_: Makes what reads a payload by one schema; raises ``BadBytesError``.
        prepared: Does on the driver what executors need not be able to.
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
    """Return the schemas of the ids that the bytes name, in one job."""
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
    """Return the schema id that framed bytes begin with, null where there is none."""
    is_framed = (F.octet_length(raw) >= HEADER_BYTES) & (F.substring(raw, 1, 1) == F.lit(b"\0"))
    number = F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("long")
    return F.when(is_framed, number)


class _FramedReader:
    """Reads framed bytes; each schema is compiled when the first record asks for it."""

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
