"""The formats ``raw`` and ``string``: a record's bytes into one BINARY or STRING column."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import StringType

from oncelake.ingestion.formats.decoder import (
    Decode,
    Decoded,
    Encoded,
    arrow_type,
    by_record,
    decoded_struct,
    struct_of_parts,
    text_of,
)

REASONS: Final[dict[str, str]] = {"invalid_utf8": "the bytes are not UTF-8"}


def opened(encoded: Encoded) -> Decode:
    """Take the bytes unchanged; as a STRING they must be UTF-8, and are never repaired.

    Without a column, as for a route that a header has, nothing is taken.
    """
    is_text = any(isinstance(column.dataType, StringType) for column in encoded.schema)
    one_by_one = by_record(lambda raw: Decoded([text_of(raw) if is_text else raw]), encoded)
    type_ = arrow_type(decoded_struct(encoded))
    row_type = type_.field("row").type

    def decode(values: pa.Array) -> pa.StructArray:
        try:
            column = values.cast(row_type.field(0).type)
        except pa.ArrowInvalid:
            return one_by_one(values)
        row = pa.StructArray.from_arrays([column], fields=list(row_type), mask=values.is_null())
        return struct_of_parts(type_, row=row)

    return decode
