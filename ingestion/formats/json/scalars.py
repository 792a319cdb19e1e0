"""How a JSON value becomes a value of one scalar type, or why it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

_DATE: Final = r"(?!0000)\d{4}-\d{2}-\d{2}"
_TIME: Final = r"\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?"
_ZONE: Final = r"(?:Z|[+-](?:(?:0\d|1[0-7]):[0-5]\d|18:00))"
_BASE64: Final = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_MOMENTS: Final = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z")
# An escape that may be half of a character.
SURROGATE: Final = r"\\u[dD][89a-fA-F]"
# Text that is no string but something else that a VARIANT prints begins with one of these.
# So does infinity, which is what a number becomes that overflows.
_UNLIKE_TEXT: Final = tuple('{[-0123456789tfI"')


class Leaf(NamedTuple):
    """How one type is read.

    Attributes:
        witness: The type to ask ``from_json`` for.
        value: Makes the value from the witness; ``None`` where that is the value already.
        problem: Tells the reason why a witness that is not null is no value, or null; ``None``
            where ``from_json`` itself refuses all that is wrong.
        suspect: Tells, cheaply, from a value and its witness, that there may be a problem; where it
            does not, there is none. Left out: whatever is not null may have one.
    """

    witness: DataType
    value: Callable[[Column], Column] | None = None
    problem: Callable[[Column], Column] | None = None
    suspect: Callable[[Column, Column], Column] | None = None


def leaf_of(kind: DataType) -> Leaf:
    """Return how a type is read that is neither STRUCT, ARRAY nor MAP."""
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    if isinstance(kind, StringType | VarcharType):
        return Leaf(VariantType(), _text, lambda w: _no_string(w, kind), _text_like_another(kind))
    if isinstance(kind, DoubleType | FloatType):
        return Leaf(kind, None, _no_finite, lambda value, _: _is_no_number(value))
    if isinstance(kind, ByteType):
        # Jackson takes 128 to 255 for bytes, too, and makes them negative.
        return Leaf(
            ShortType(),
            lambda witness: witness.try_cast(kind),
            lambda witness: F.when(~witness.between(-128, 127), "wrong_type"),
            _is_lost,
        )
    if isinstance(kind, DateType | TimestampNTZType):
        pattern = _DATE if isinstance(kind, DateType) else rf"{_DATE}(?:[T ]{_TIME})?"
        return _matched(kind, pattern, "bad_time")
    if isinstance(kind, TimestampType):
        return Leaf(VariantType(), _moment, _no_moment, is_no_moment)
    if isinstance(kind, BinaryType):
        return Leaf(VariantType(), _bytes, lambda witness: _no_string(witness, kind))
    return Leaf(kind)


def _matched(kind: DataType, pattern: str, reason: str) -> Leaf:
    """Read text of one shape; a number's digits never have it."""

    def value(witness: Column) -> Column:
        return F.when(witness.rlike(rf"\A{pattern}\z"), witness.try_cast(kind))

    return Leaf(
        StringType(), value, lambda witness: F.when(value(witness).isNull(), reason), _is_lost
    )


def _is_lost(value: Column, witness: Column) -> Column:
    return value.isNull() & witness.isNotNull()


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

    def suspect(value: Column, witness: Column) -> Column:
        scales = "|".join(map(str, range(kind.scale + 1)))
        stored = F.schema_of_variant(witness)
        return _is_lost(value, witness) | ~stored.rlike(rf"^(BIGINT|DECIMAL\(\d+,({scales})\))$")

    return Leaf(VariantType(), value, problem, suspect)


def _rounds(witness: Column, kind: DecimalType) -> Column:
    """Tell a number with more digits behind the point than the type has."""
    printed = F.try_variant_get(witness, "$", "string")
    return F.length(F.regexp_extract(printed, r"\.(\d*?)0*$", 1)) > kind.scale


def _text(witness: Column) -> Column:
    return F.try_variant_get(witness, "$", "string")


def _text_like_another(kind: DataType) -> Callable[[Column, Column], Column]:
    def suspect(value: Column, _: Column) -> Column:
        looks_unlike = F.substring(value, 1, 1).isin(*_UNLIKE_TEXT)
        if isinstance(kind, VarcharType):
            return looks_unlike | (F.length(value) > kind.length)
        return looks_unlike

    return suspect


def _bytes(witness: Column) -> Column:
    text = _text(witness)
    return F.when(text.rlike(rf"\A{_BASE64}\z"), F.unbase64(text))


def _no_string(witness: Column, kind: DataType) -> Column:
    """Tell what is no JSON string, or none that the type can hold."""
    text = _text(witness)
    looks_unlike = F.substring(text, 1, 1).isin(*_UNLIKE_TEXT)
    is_other = looks_unlike & (F.schema_of_variant(witness) != "STRING")
    found = F.when(text.isNotNull() & is_other, "wrong_type")
    if isinstance(kind, VarcharType):
        return found.when(F.length(text) > kind.length, "too_long")
    if isinstance(kind, BinaryType):
        return found.when(~text.rlike(rf"\A{_BASE64}\z"), "bad_base64")
    return found


def _no_finite(witness: Column) -> Column:
    """Tell infinity and NaN, which no JSON number is: an overflow, or text that spells them."""
    return F.when(_is_no_number(witness), "not_finite")


def _is_no_number(value: Column) -> Column:
    return F.isnan(value) | (F.abs(value) == F.lit(float("inf")))


def moment(text: Column) -> Column:
    """Read a moment of ISO 8601, without a zone UTC."""
    return F.when(text.rlike(rf"\A{_DATE}(?:[T ]{_TIME}{_ZONE}?)?\z"), text.try_cast("timestamp"))


def is_no_moment(value: Column, witness: Column) -> Column:
    """Tell what could not be read, or lies beyond the years."""
    first, last = (F.lit(each).cast("timestamp") for each in _MOMENTS)
    return _is_lost(value, witness) | ~value.between(first, last)


def _moment(witness: Column) -> Column:
    """Read a moment: text of ISO 8601, or a whole number of seconds."""
    text = _text(witness)
    is_number = text.rlike(r"^-?\d{1,12}$") & (F.schema_of_variant(witness) == "BIGINT")
    seconds = F.when(is_number, F.timestamp_seconds(text.try_cast("bigint")))
    return F.coalesce(moment(text), seconds)


def _no_moment(witness: Column) -> Column:
    is_none = _text(witness).isNotNull() & is_no_moment(_moment(witness), witness)
    return F.when(is_none, "bad_time")
