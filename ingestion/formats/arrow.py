"""Decoding where Spark has no expression: Python over Arrow batches, one record's fate at a time.

Only the bytes go to Python and only what they say comes back; no record fails its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from ingestion.formats.protocol import Encoded, decoded_type


class BadBytesError(ValueError):
    """Bytes that belong in quarantine.

    Attributes:
        reason: Code of the format's closed list.
    """

    def __init__(self, reason: str, detail: str) -> None:
        """Take the code, and what it says to people."""
        super().__init__(detail)
        self.reason = reason


class Said(NamedTuple):
    """What good bytes say.

    Attributes:
        row: One value a declared column, as Arrow takes it.
        extra: Fields that no column names.
        is_delete: Whether the bytes themselves say that the row is gone.
    """

    row: Sequence[Any]
    extra: Sequence[str] | None = None
    is_delete: bool | None = None


Read = Callable[[bytes], Said]


def decoded_by(records: DataFrame, encoded: Encoded, opened: Callable[[], Read]) -> DataFrame:
    """Add what the bytes say.

    Args:
        records: Records with the bytes.
        encoded: Which bytes, and what they should hold.
        opened: Makes, once a task, what reads the bytes of a record or raises ``BadBytesError``.
    """
    type_ = decoded_type(_relaxed(encoded.schema))

    def decode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        read = opened()
        for batch in batches:
            yield _told([None if raw is None else _attempt(read, raw) for raw in batch.to_pylist()],
                        type_)  # fmt: skip

    # Said to be non-deterministic, it is computed once however often its parts are used.
    as_udf: Any = arrow_udf  # Its types know nothing of structs, which it takes.
    told = as_udf(decode, type_, ArrowUDFType.SCALAR_ITER).asNondeterministic()
    return records.withColumn(encoded.into, told(F.col(encoded.column)))


def _attempt(read: Read, raw: bytes) -> Said | BadBytesError:
    try:
        return read(raw)
    except BadBytesError as error:
        return error


def _told(told: Sequence[Said | BadBytesError | None], type_: StructType) -> pa.Array:
    """Build the column: field by field, since Arrow converts long lists much faster than rows."""
    row_type = type_["row"].dataType
    assert isinstance(row_type, StructType), "a row is a struct"
    rows = [each.row if isinstance(each, Said) else None for each in told]
    fields = [
        pa.array([None if row is None else row[at] for row in rows], to_arrow_type(field.dataType))
        for at, field in enumerate(row_type)
    ]
    bad = [each if isinstance(each, BadBytesError) else None for each in told]
    parts = {
        "row": pa.StructArray.from_arrays(
            fields,
            fields=list(to_arrow_type(row_type)),
            mask=pa.array([row is None for row in rows]),
        ),
        "reason": [each and each.reason for each in bad],
        "detail": [None if each is None else str(each)[:1000] for each in bad],
        "extra": [each.extra or None if isinstance(each, Said) else None for each in told],
        "is_delete": [each.is_delete if isinstance(each, Said) else None for each in told],
    }
    arrow_type = to_arrow_type(type_)
    arrays = [
        part if isinstance(part, pa.Array) else pa.array(part, arrow_type.field(name).type)
        for name, part in parts.items()
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(arrow_type))


def _relaxed(type_: StructType) -> StructType:
    """Let everything be null, and texts be of any length: who writes the row checks both."""
    fields = [StructField(each.name, _relaxed_type(each.dataType)) for each in type_]
    return StructType(fields)


def _relaxed_type(type_: DataType) -> DataType:
    if isinstance(type_, StructType):
        return _relaxed(type_)
    if isinstance(type_, ArrayType):
        return ArrayType(_relaxed_type(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(_relaxed_type(type_.keyType), _relaxed_type(type_.valueType))
    return StringType() if isinstance(type_, CharType | VarcharType) else type_
