"""JSON values as values of the declared types: taken where nothing is lost, else a problem.

``from_json`` rounds, turns ``1e400`` into infinity and writes numbers as text without a word. So it
is asked for a *witness*: the same shape, with another type wherever it would be lenient; from the
witness the value is made, and what is wrong with it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

_DATE: Final = r"(?!0000)\d{4}-\d{2}-\d{2}"
_TIME: Final = r"\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?"
_ZONE: Final = r"(Z|[+-]((0\d|1[0-7]):[0-5]\d|18:00))"
_BASE64: Final = r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_MOMENTS: Final = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z")
# Text that is no string but something else that a VARIANT prints begins with one of these.
_UNLIKE_TEXT: Final = tuple('{[-0123456789tf"')


class Leaf(NamedTuple):
    """How one type is read.

    Attributes:
        witness: The type to ask ``from_json`` for.
        value: Makes the value from the witness; ``None`` where that is the value already.
        problem: Tells the reason why a witness that is not null is no value, or null; ``None``
            where ``from_json`` itself refuses all that is wrong.
    """

    witness: DataType
    value: Callable[[Column], Column] | None = None
    problem: Callable[[Column], Column] | None = None


def witness_of(kind: DataType) -> DataType:
    """Return the type to ask ``from_json`` for, so that nothing is lost on the way."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, witness_of(f.dataType)) for f in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(witness_of(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, witness_of(kind.valueType))
    return _leaf(kind).witness


def value_of(witness: Column, kind: DataType) -> Column:
    """Return the value that a witness holds; of no use where there is a problem with it."""
    if not _is_made(kind):
        return witness
    if isinstance(kind, StructType):
        fields = (value_of(witness.getField(f.name), f.dataType).alias(f.name) for f in kind)
        return F.when(witness.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(witness, lambda each: value_of(each, element))
    if isinstance(kind, MapType):
        item = kind.valueType
        return F.transform_values(witness, lambda _, each: value_of(each, item))
    make = _leaf(kind).value
    assert make is not None, "a leaf that is made says how"
    return make(witness)


def problems_of(witness: Column, kind: DataType, path: str) -> Iterator[Column]:
    """Yield, for each part of a value, a reason and where it is, or null.

    Each is a struct of ``reason`` and ``detail``.
    """
    if isinstance(kind, StructType):
        for field in kind:
            inner, at = witness.getField(field.name), f"{path}.{field.name}"
            if not field.nullable:
                is_missing = witness.isNotNull() & _is_null(inner, field.dataType)
                yield F.when(is_missing, _told("missing_required", f"{at} is missing"))
            yield from problems_of(inner, field.dataType, at)
        return
    if isinstance(kind, ArrayType):
        yield _first_within(witness, kind.elementType, f"{path}[]")
        return
    if isinstance(kind, MapType):
        yield _first_within(F.map_values(witness), kind.valueType, f"{path}{{}}")
        return
    problem = _leaf(kind).problem
    if problem is not None:
        reason = F.when(witness.isNotNull(), problem(witness))
        detail = F.lit(f"{path}: expected {kind.simpleString().upper()}")
        yield F.when(reason.isNotNull(), F.struct(reason.alias("reason"), detail.alias("detail")))


def _first_within(elements: Column, kind: DataType, path: str) -> Column:
    """Return the first problem of any element."""
    nothing = F.lit(None).cast("struct<reason: string, detail: string>")

    def first(found: Column, each: Column) -> Column:
        return F.coalesce(found, *problems_of(each, kind, path), nothing)

    if not _has_problems(kind):
        return nothing
    return F.aggregate(elements, nothing, first)


def _is_null(witness: Column, kind: DataType) -> Column:
    """Tell a field that is absent or null; JSON's null is a value to VARIANT."""
    if isinstance(witness_of(kind), VariantType):
        return witness.isNull() | F.is_variant_null(witness)
    return witness.isNull()


def _told(reason: str, detail: str) -> Column:
    return F.struct(F.lit(reason).alias("reason"), F.lit(detail).alias("detail"))


def _is_made(kind: DataType) -> bool:
    return witness_of(kind) != _bare(kind)


def _has_problems(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(not f.nullable or _has_problems(f.dataType) for f in kind)
    if isinstance(kind, ArrayType):
        return _has_problems(kind.elementType)
    if isinstance(kind, MapType):
        return _has_problems(kind.valueType)
    return _leaf(kind).problem is not None


def _bare(kind: DataType) -> DataType:
    """Return a type without what it says of nulls, which a witness does not say."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _bare(f.dataType)) for f in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_bare(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _bare(kind.valueType))
    return kind


def _leaf(kind: DataType) -> Leaf:
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    if isinstance(kind, StringType | VarcharType):
        return Leaf(VariantType(), _text, lambda witness: _no_string(witness, kind))
    if isinstance(kind, DoubleType | FloatType):
        return Leaf(kind, None, _no_finite)
    if isinstance(kind, ByteType):
        # Jackson takes 128 to 255 for bytes, too, and makes them negative.
        return Leaf(
            ShortType(),
            lambda witness: witness.try_cast(kind),
            lambda witness: F.when(~witness.between(-128, 127), "wrong_type"),
        )
    if isinstance(kind, DateType | TimestampNTZType):
        pattern = _DATE if isinstance(kind, DateType) else rf"{_DATE}([T ]{_TIME})?"
        return _matched(kind, pattern, "bad_time")
    if isinstance(kind, TimestampType):
        return Leaf(VariantType(), _moment, _no_moment)
    if isinstance(kind, BinaryType):
        return Leaf(VariantType(), _bytes, lambda witness: _no_string(witness, kind))
    return Leaf(kind)


def _matched(kind: DataType, pattern: str, reason: str) -> Leaf:
    """Read text of one shape; a number's digits never have it."""

    def value(witness: Column) -> Column:
        return F.when(witness.rlike(f"^{pattern}$"), witness.try_cast(kind))

    return Leaf(StringType(), value, lambda witness: F.when(value(witness).isNull(), reason))


def _decimal(kind: DecimalType) -> Leaf:
    """Take a number in plain notation that fits without rounding."""

    def value(witness: Column) -> Column:
        return F.try_variant_get(witness, "$", kind.simpleString())

    def problem(witness: Column) -> Column:
        stored = F.schema_of_variant(witness)
        is_plain = stored.startswith("DECIMAL") | (stored == "BIGINT")
        return (
            F.when(stored == "VOID", None)
            .when(stored == "DOUBLE", "inexact_number")
            .when(~is_plain, "wrong_type")
            .when(value(witness).isNull(), "out_of_range")
            .when(_rounds(witness, kind), "inexact_number")
        )

    return Leaf(VariantType(), value, problem)


def _rounds(witness: Column, kind: DecimalType) -> Column:
    """Tell a number with more digits behind the point than the type has."""
    printed = F.try_variant_get(witness, "$", "string")
    return F.length(F.regexp_extract(printed, r"\.(\d*?)0*$", 1)) > kind.scale


def _text(witness: Column) -> Column:
    return F.try_variant_get(witness, "$", "string")


def _bytes(witness: Column) -> Column:
    text = _text(witness)
    return F.when(text.rlike(f"^{_BASE64}$"), F.unbase64(text))


def _no_string(witness: Column, kind: DataType) -> Column:
    """Tell what is no JSON string, or none that the type can hold."""
    text = _text(witness)
    looks_unlike = F.substring(text, 1, 1).isin(*_UNLIKE_TEXT)
    is_other = looks_unlike & (F.schema_of_variant(witness) != "STRING")
    found = F.when(text.isNotNull() & is_other, "wrong_type")
    if isinstance(kind, VarcharType):
        return found.when(F.length(text) > kind.length, "too_long")
    if isinstance(kind, BinaryType):
        return found.when(~text.rlike(f"^{_BASE64}$"), "bad_base64")
    return found


def _no_finite(witness: Column) -> Column:
    """Tell infinity and NaN, which no JSON number is: an overflow, or text that spells them."""
    double = witness.cast("double")
    is_infinite = F.abs(double) == F.lit(float("inf"))
    return F.when(F.isnan(double) | is_infinite, "not_finite")


def _moment(witness: Column) -> Column:
    """Read a moment: text of ISO 8601, without a zone UTC; a whole number is seconds."""
    text = _text(witness)
    pattern = rf"^{_DATE}([T ]{_TIME}{_ZONE}?)?$"
    is_number = text.rlike(r"^-?\d{1,12}$") & (F.schema_of_variant(witness) == "BIGINT")
    found = F.when(text.rlike(pattern), text.try_cast("timestamp")).when(
        is_number, F.timestamp_seconds(text.try_cast("bigint"))
    )
    first, last = (F.lit(each).cast("timestamp") for each in _MOMENTS)
    return F.when(found.between(first, last), found)


def _no_moment(witness: Column) -> Column:
    return F.when(_text(witness).isNotNull() & _moment(witness).isNull(), "bad_time")
