"""The seam of every format: bytes in Arrow become typed columns in Arrow, without Spark.

A format is a module with ``REASONS``, the codes of what it refuses, and ``opened``, which makes a
``Decode`` of an ``Encoded``: once per task, so that it may keep state. It may add ``prepared``,
which see ``ingestion.pipeline.decode``. No record fails its batch, whatever it holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import types as sql
from pyspark.sql.pandas.types import to_arrow_type

from oncelake.ingestion.declaration.formats import Options
from oncelake.ingestion.declaration.parts import ExtraFields, Unavailable
from oncelake.ingestion.kafka.schema_registry import SchemaId, WriterSchema

REASONS: Final[dict[str, str]] = {
    "undecodable": "decoding failed in an unexpected way; please report its `detail`",
}
# The column of a path that leads into it, as ``spelling.spelt`` writes it.
_WITHIN: Final = re.compile(r"(?:`(.*)`|([^.\[{`]+))[.\[{]", re.DOTALL)
# One record must not fail its batch, whatever it holds; libraries have errors of their own.
UNFORESEEN: Final = Exception


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """The expected content of some bytes; it holds no secret, since executors get it.

    Attributes:
        schema: The declared columns, or for a key the key columns.
        is_key: Whether they are a Kafka key, which may be a bare value instead of an object.
        options: The format's options in the declaration.
        extra_fields: What to do with fields that ``schema`` does not name.
        whole: Columns of which a STRUCT must have every field of a record's.
        unavailable: What becomes of columns that a record leaves out because they have not
            changed; only in formats that know such a thing.
        never_left_out: Columns of which that makes a record bad.
        keys: The key columns, where such a column is kept.
        moved_by: Columns that differ where an update gives its row another key; none where that
            means nothing.
        movable: Columns that a row takes along to another key.
        lenient: Columns that take a value of another type; only in JSON's formats.
        record: Full names of the record types that are meant; none where any is.
        shares_tombstones: Whether null bytes, or a change, may belong to other streams of the
            topic, too.
        leaves_by_route: Whether a change whose row is another stream's deletes it in this one's.
        is_elsewhere: Whether the bytes are such a change: its row is a delete, by key and order.
        are_variants_text: Whether a VARIANT is the text of its JSON, since the sink has none.
        in_glue: Whether AWS Glue's registry has the schemas, and frames are its.
        writer_schemas: The registry's schemas of all ids in the bytes, or in headers.
    """

    schema: sql.StructType
    is_key: bool
    options: Options
    extra_fields: ExtraFields
    whole: frozenset[str] = frozenset()
    unavailable: Unavailable | None = None
    never_left_out: frozenset[str] = frozenset()
    keys: Sequence[str] = ()
    moved_by: Sequence[str] = ()
    movable: Sequence[str] = ()
    lenient: frozenset[str] = frozenset()
    record: Sequence[str] = ()
    shares_tombstones: bool = False
    leaves_by_route: bool = False
    is_elsewhere: bool = False
    are_variants_text: bool = False
    in_glue: bool = False
    writer_schemas: Mapping[SchemaId, WriterSchema] = field(default_factory=dict)

    def refused(self, extra: Iterable[str]) -> list[str]:
        """Return those of a record's fields that no column has for which it must wait."""
        is_any = self.extra_fields == "reject"
        return [path for path in extra if is_any or _column_around(path) in self.whole]


def _column_around(path: str) -> str:
    """Return the column that a field is in, by its path; empty where it is in none."""
    found = _WITHIN.match(path)
    return found[1] or found[2] if found else ""


# Takes values, then the Kafka keys and the headers where the format's options ask for them; returns
# the struct of ``decoded_struct`` for each. If the bytes are null, every field of it is null.
Decode = Callable[..., pa.StructArray]


def decoded_struct(encoded: Encoded) -> sql.StructType:
    """Return the type of what is decoded, as Arrow has it.

    ``row`` has the columns of the schema; ``reason`` is a code of the format's ``REASONS``, null if
    the bytes are good, and ``detail`` a text for people; ``extra`` has the names of the fields that
    are not in the schema; ``is_delete`` is true if the bytes themselves are a delete, and null in
    formats without deletes; ``kept`` has the fields that are not in the schema, if the declaration
    says ``extra_fields: keep``; ``unavailable`` has the names of the columns whose value the record
    leaves out, since it has not changed; where they are kept, ``moved_from`` has the key of the row
    that has them, if that is not the record's own; where rows may move, ``ended`` has the row that
    an update ends under another key, and ``moves`` tells the two records of a row that does so by
    a delete and a new row; where a column is lenient, ``coerced`` has the names of those
    whose value was of another type; where values are by a registry's schemas, ``record`` has the
    full name of their record type, if it has one; where streams share null bytes, ``is_shared``
    tells those; where rows leave by their route, ``left_to`` says what becomes of a record that is
    a delete for that reason alone, and ``is_gone`` whether it says that the row is deleted there.

    All may be null, and texts have any length: decoding and the writer of the row check both. A
    VARIANT is its JSON, for ``with_variants`` to parse.
    """
    struct = (
        sql.StructType()
        .add("row", _relaxed(encoded.schema))
        .add("reason", sql.StringType())
        .add("detail", sql.StringType())
        .add("extra", sql.ArrayType(sql.StringType()))
        .add("is_delete", sql.BooleanType())
    )
    if encoded.extra_fields == "keep":
        struct = struct.add("kept", sql.StringType())
    if encoded.unavailable:
        struct = struct.add("unavailable", sql.ArrayType(sql.StringType()))
    if encoded.unavailable == "keep":
        key = sql.StructType([encoded.schema[name] for name in encoded.keys])
        struct = struct.add("moved_from", _relaxed(key))
    if encoded.moved_by:
        struct = struct.add("ended", _relaxed(encoded.schema)).add("moves", sql.BooleanType())
    if encoded.lenient:
        struct = struct.add("coerced", sql.ArrayType(sql.StringType()))
    if encoded.options.uses_registry and not encoded.is_key:
        struct = struct.add("record", sql.StringType())
    if encoded.shares_tombstones:
        struct = struct.add("is_shared", sql.BooleanType())
    if encoded.leaves_by_route:
        struct = struct.add("left_to", sql.StringType()).add("is_gone", sql.BooleanType())
    return struct


def _relaxed(type_: sql.DataType) -> sql.DataType:
    if isinstance(type_, sql.StructType):
        return sql.StructType(
            [sql.StructField(each.name, _relaxed(each.dataType)) for each in type_]
        )
    if isinstance(type_, sql.ArrayType):
        return sql.ArrayType(_relaxed(type_.elementType))
    if isinstance(type_, sql.MapType):
        return sql.MapType(_relaxed(type_.keyType), _relaxed(type_.valueType))
    return sql.StringType() if isinstance(type_, sql.VarcharType | sql.VariantType) else type_


def arrow_type(type_: sql.DataType) -> pa.DataType:
    """Return the Arrow type of a part of ``decoded_struct``."""
    return to_arrow_type(_relaxed(type_), timezone="UTC")


class BadBytesError(ValueError):
    """Bytes that belong in quarantine; ``reason`` is a code of the format's ``REASONS``."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def text_of(raw: bytes) -> str:
    """Return the text of bytes; it is never repaired."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadBytesError("invalid_utf8", str(error)) from None


class Decoded(NamedTuple):
    """The decoded bytes of one record.

    Attributes:
        row: One value per declared column, as Arrow takes it.
        extra: Fields that no column names.
        is_delete: Whether the bytes themselves are a delete.
        kept: The fields that no column names, as one JSON object.
        unavailable: Columns whose value the record leaves out because it has not changed.
        moved_from: The key that the row had before, if it was another; null in what cannot be told
            of it. That row has those values.
        ended: The row that an update ends, since it gives it another key.
        moves: Whether it is the delete of a row that gets another key, or that row under it.
        coerced: Columns whose value was of another type.
        record: Full name of the record type.
    """

    row: Sequence[Any]
    extra: Sequence[str] | None = None
    is_delete: bool | None = None
    kept: str | None = None
    unavailable: Sequence[str] | None = None
    moved_from: Mapping[str, Any] | None = None
    ended: Sequence[Any] | None = None
    moves: bool | None = None
    coerced: Sequence[str] | None = None
    record: str | None = None


# Reads the bytes of one record, then what else the format asks for; raises ``BadBytesError``.
Read = Callable[..., Decoded]
_Outcome = Decoded | BadBytesError | None


def by_record(read: Read, encoded: Encoded) -> Decode:
    """Return a decoding that reads one record after the other."""
    type_ = arrow_type(decoded_struct(encoded))

    def read_strictly(raw: bytes, *more: Any) -> Decoded:
        decoded = read(raw, *more)
        if refused := encoded.refused(decoded.extra or ()):
            raise BadBytesError("unknown_field", f"not in `schema`: {', '.join(refused)}")
        if needed := encoded.never_left_out.intersection(decoded.unavailable or ()):
            raise BadBytesError("unavailable_value", f"not sent: {', '.join(sorted(needed))}")
        return decoded

    def decode(values: pa.Array, *more: pa.Array) -> pa.StructArray:
        columns = [each.to_pylist() for each in (values, *more)]
        records = [_attempt(read_strictly, *each) for each in zip(*columns)]  # noqa: B905
        try:
            return _assembled(records, type_)
        except UNFORESEEN:
            return _assembled([_fitting(each, type_) for each in records], type_)

    return decode


def _attempt(read: Read, raw: bytes | None, *more: Any) -> _Outcome:
    """Read one record; null bytes give ``None``, and whatever fails an error to quarantine."""
    try:
        return None if raw is None else read(raw, *more)
    except BadBytesError as error:
        return error
    except UNFORESEEN as error:
        return _undecodable(error)


def _undecodable(error: Exception) -> BadBytesError:
    return BadBytesError("undecodable", f"{type(error).__name__}: {error}")


def _fitting(record: _Outcome, type_: pa.StructType) -> _Outcome:
    """Return a record if Arrow takes it, and else its error."""
    try:
        _assembled([record], type_)
    except UNFORESEEN as error:
        return _undecodable(error)
    return record


def _assembled(records: Sequence[_Outcome], type_: pa.StructType) -> pa.StructArray:
    """Build the struct: field by field, since Arrow converts long lists much faster than rows."""
    row_type = type_.field("row").type
    good = [each if isinstance(each, Decoded) else None for each in records]
    bad = [each if isinstance(each, BadBytesError) else None for each in records]
    ended = [each and each.ended for each in good]
    return struct_of_parts(
        type_,
        row=_rows([each and each.row for each in good], row_type),
        reason=[each and each.reason for each in bad],
        detail=[None if each is None else printable(each) for each in bad],
        extra=[each and (each.extra or None) for each in good],
        is_delete=[each and each.is_delete for each in good],
        kept=[each and each.kept for each in good],
        unavailable=[each and (each.unavailable or None) for each in good],
        moved_from=[each and each.moved_from for each in good],
        ended=_rows(ended, row_type) if any(ended) else None,
        moves=[each and each.moves for each in good],
        coerced=[each and (each.coerced or None) for each in good],
        record=[each and each.record for each in good],
    )


def _rows(rows: Sequence[Sequence[Any] | None], type_: pa.StructType) -> pa.StructArray:
    columns = [
        pa.array([row and row[at] for row in rows], type_.field(at).type)
        for at in range(type_.num_fields)
    ]
    is_no_row = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=is_no_row)


def struct_of_parts(type_: pa.StructType, *, row: pa.Array, **parts: Any) -> pa.StructArray:
    """Build the struct of its parts, lists or arrays; those that are left out are null."""
    arrays = [row]
    for part in list(type_)[1:]:
        values = parts.get(part.name)
        if values is None:
            values = pa.nulls(len(row), part.type)
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, part.type))
    return pa.StructArray.from_arrays(arrays, fields=list(type_))


def merged(parts: Sequence[tuple[NDArray[np.int64], pa.StructArray]]) -> pa.StructArray:
    """Put records in order that were decoded apart; each part has its records' places."""
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    return pa.concat_arrays([decoded for _, decoded in parts]).take(pa.array(order))


def printable(error: Exception) -> str:
    """Return the error's text; it may quote bytes that are not text."""
    return str(error)[:1000].encode("utf-8", "backslashreplace").decode()
