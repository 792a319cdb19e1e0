"""Decoding in Python over Arrow batches, for formats that Spark's expressions cannot decode.

Only the bytes go to Python and only decoded values come back; no record fails its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from ingestion.declaration.parts import ExtraFields
from ingestion.formats.decoder import Encoded, decoded_struct

REASONS: Final[dict[str, str]] = {
    "undecodable": "decoding failed in a way that nobody foresaw; please report its `detail`",
}
# One record must not fail its batch, whatever it holds.
_UNFORESEEN: Final = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError),
    *(EOFError, AssertionError),
)


class BadBytesError(ValueError):
    """Bytes that belong in quarantine; ``reason`` is a code of the format's ``REASONS``."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Decoded(NamedTuple):
    """The decoded bytes of one record.

    Attributes:
        row: One value per declared column, as Arrow takes it.
        extra: Fields that no column names.
        is_delete: Whether the bytes themselves are a delete.
    """

    row: Sequence[Any]
    extra: Sequence[str] | None = None
    is_delete: bool | None = None


Read = Callable[[bytes], Decoded]
ReadBoth = Callable[[bytes, bytes | None], Decoded]


def decoded_by(records: DataFrame, encoded: Encoded, opened: Callable[[], Read]) -> DataFrame:
    """Add the decoded column.

    Args:
        records: Records with the bytes.
        encoded: Which bytes, and their expected content.
        opened: Makes, once per task, the reader of a record; it raises ``BadBytesError``.
    """
    # Only this goes to the executors: the settings hold secrets.
    type_, extra_fields = decoded_struct(_relaxed(encoded.schema)), encoded.extra_fields

    def decode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        read = _rejecting(opened(), extra_fields)
        for raws in batches:
            yield _told([_attempt(read, raw) for raw in raws.to_pylist()], type_)

    return records.withColumn(encoded.into, _once(decode, type_)(F.col(encoded.column)))


def decoded_by_both(
    records: DataFrame, encoded: Encoded, opened: Callable[[], ReadBoth]
) -> DataFrame:
    """Add the decoded column; the reader also gets the record's Kafka key."""
    # Only this goes to the executors: the settings hold secrets.
    type_, extra_fields = decoded_struct(_relaxed(encoded.schema)), encoded.extra_fields

    def decode(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        read = _rejecting(opened(), extra_fields)
        for raws, keys in batches:
            both = zip(raws.to_pylist(), keys.to_pylist(), strict=True)
            yield _told([_attempt(read, raw, key) for raw, key in both], type_)

    told = _once(decode, type_)
    return records.withColumn(encoded.into, told(F.col(encoded.column), F.col("_key")))


def _once(decode: Callable[..., Any], type_: StructType) -> Any:
    """Make a UDF that Spark computes once, however often the parts of its result are used."""
    as_udf: Any = arrow_udf  # Its types know nothing of structs, which it takes.
    return as_udf(decode, type_).asNondeterministic()


def _rejecting(read: Callable[..., Decoded], extra_fields: ExtraFields) -> Callable[..., Decoded]:
    if extra_fields != "reject":
        return read

    def read_strictly(*raw: bytes | None) -> Decoded:
        said = read(*raw)
        if said.extra:
            raise BadBytesError("unknown_field", f"not in `schema`: {', '.join(said.extra)}")
        return said

    return read_strictly


def _attempt(
    read: Callable[..., Decoded], raw: bytes | None, *more: bytes | None
) -> Decoded | BadBytesError | None:
    try:
        return None if raw is None else read(raw, *more)
    except BadBytesError as error:
        return error
    except _UNFORESEEN as error:
        return BadBytesError("undecodable", f"{type(error).__name__}: {error}")


def _told(told: Sequence[Decoded | BadBytesError | None], type_: StructType) -> pa.Array:
    """Build the column: field by field, since Arrow converts long lists much faster than rows."""
    row_type = type_["row"].dataType
    assert isinstance(row_type, StructType), "a row is a struct"
    rows = [each.row if isinstance(each, Decoded) else None for each in told]
    fields = [
        pa.array([None if row is None else row[at] for row in rows], _arrow(field.dataType))
        for at, field in enumerate(row_type)
    ]
    bad = [each if isinstance(each, BadBytesError) else None for each in told]
    parts = {
        "row": pa.StructArray.from_arrays(
            fields,
            fields=list(_arrow(row_type)),
            mask=pa.array([row is None for row in rows]),
        ),
        "reason": [each and each.reason for each in bad],
        "detail": [None if each is None else _printable(each) for each in bad],
        "extra": [each.extra or None if isinstance(each, Decoded) else None for each in told],
        "is_delete": [each.is_delete if isinstance(each, Decoded) else None for each in told],
    }
    arrow_type = _arrow(type_)
    arrays = [
        part if isinstance(part, pa.Array) else pa.array(part, arrow_type.field(name).type)
        for name, part in parts.items()
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(arrow_type))


def _printable(error: BadBytesError) -> str:
    """Return the error's text; it may quote bytes that are not text."""
    return str(error)[:1000].encode("utf-8", "backslashreplace").decode()


def _arrow(type_: DataType) -> pa.DataType:
    return to_arrow_type(type_, timezone="UTC")


def _relaxed(type_: StructType) -> StructType:
    """Make everything nullable, and texts of any length: the writer of the row checks both."""
    fields = [StructField(each.name, _relaxed_type(each.dataType)) for each in type_]
    return StructType(fields)


def _relaxed_type(type_: DataType) -> DataType:
    if isinstance(type_, StructType):
        return _relaxed(type_)
    if isinstance(type_, ArrayType):
        return ArrayType(_relaxed_type(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(_relaxed_type(type_.keyType), _relaxed_type(type_.valueType))
    return StringType() if isinstance(type_, VarcharType) else type_
