"""Formats are opened here: bytes in Arrow batches become typed columns in them.

Where records name their schemas by id, a decoding has the schemas of its batch: executors need no
access to the registry, and none of them can stop a run half-way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Final, cast

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType, VariantType

from oncelake.ingestion.declaration.formats import Header
from oncelake.ingestion.formats.decoder import Decode, Encoded, decoded_struct
from oncelake.ingestion.formats.metadata import MetadataDecoder, without_columns
from oncelake.ingestion.formats.route import RoutedDecoder, Routing
from oncelake.ingestion.formats.variant import with_variants

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


def _declared_struct(encoded: Encoded) -> StructType:
    """Return the type of what was decoded, with VARIANTs where JSON stands for them."""
    decoded = decoded_struct(encoded)
    declared: dict[str, DataType] = dict.fromkeys(("row", "ended"), encoded.schema)
    declared["kept"] = VariantType()
    return StructType([StructField(f.name, declared.get(f.name, f.dataType)) for f in decoded])


def decode_batches(
    batches: Iterator[pa.RecordBatch], decoding: Decoding
) -> Iterator[pa.RecordBatch]:
    """Add the decoded column to Arrow batches."""
    decode, encoded = decoding.opened(), decoding.encoded
    struct = _declared_struct(encoded)
    for batch in _gathered(batches):
        decoded = decode(*(batch.column(name) for name in decoding.columns))
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
