"""Objects and lists in JSON, found sound by their shape, at a glance.

A VARIANT tells the type of all that it holds, names and elements included, as one text. A regular
expression made from the declaration says whether all of that is declared, and nothing is lenient.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    VariantType,
)

from ingestion.formats.json_leaves import bare, with_leaves
from ingestion.formats.json_types import Leaf

_WHOLE: Final[tuple[type[DataType], ...]] = (ByteType, ShortType, IntegerType, LongType)
_ONLY: Final[dict[type[DataType], str]] = {
    StringType: "STRING",
    BooleanType: "BOOLEAN",
    **dict.fromkeys(_WHOLE, "BIGINT"),
}
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
# Digits behind the point that leave room for all the others of a number seen here.
_MOST_PLACES: Final = 18


def has_shape(kind: DataType) -> bool:
    """Tell whether ``shape`` can read an object or a list of this type."""
    if isinstance(kind, StructType):
        return all(re.fullmatch(_NAME, f.name) and has_shape(f.dataType) for f in kind)
    if isinstance(kind, ArrayType):
        return has_shape(kind.elementType)
    if isinstance(kind, DecimalType):
        return kind.scale <= _MOST_PLACES
    return isinstance(kind, DoubleType) or type(kind) in _ONLY


def shape(kind: StructType | ArrayType) -> Leaf:
    """Return how an object or a list is read that looks as declared; all others are suspect."""
    wide, narrow, pattern = with_leaves(kind, _wide), bare(kind), rf"\A(?:{_pattern(kind)})\z"

    def value(witness: Column) -> Column:
        widened = F.try_variant_get(witness, "$", wide.simpleString())
        if wide == narrow:
            return widened
        # A number that does not fit is null in here, and would pass for absent.
        fitted = widened.try_cast(narrow)
        return F.when(fitted.cast(wide).eqNullSafe(widened), fitted)

    def suspect(value: Column, witness: Column) -> Column:
        is_like = F.schema_of_variant(witness).rlike(pattern) & value.isNotNull()
        is_null = witness.isNull() | F.is_variant_null(witness)
        return ~is_null & (~is_like | _misses(value, kind))

    return Leaf(VariantType(), value, None, suspect)


def has_fractions(kind: DataType) -> bool:
    """Tell whether a DOUBLE is in it: of its zeros a VARIANT does not tell the sign."""
    if isinstance(kind, StructType):
        return any(has_fractions(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return has_fractions(kind.elementType)
    return isinstance(kind, DoubleType)


def _pattern(kind: DataType) -> str:
    """Return what ``schema_of_variant`` says of a sound value; null is VOID."""
    if isinstance(kind, StructType):
        fields = "|".join(f"{f.name}: (?:VOID|{_pattern(f.dataType)})" for f in kind)
        return rf"OBJECT<(?:(?:{fields})(?:, |(?=>)))*>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<(?:VOID|{_pattern(kind.elementType)})>"
    if isinstance(kind, DoubleType):
        return r"BIGINT|DECIMAL\(\d+,\d+\)"
    if isinstance(kind, DecimalType):
        places = "|".join(map(str, range(kind.scale + 1)))
        return rf"BIGINT|DECIMAL\(1?\d,(?:{places})\)"
    return _ONLY[type(kind)]


def _wide(kind: DataType) -> DataType:
    """Return a type that holds all that ``_pattern`` lets pass for a leaf."""
    if isinstance(kind, DecimalType):
        return DecimalType(38, kind.scale)
    return LongType() if isinstance(kind, _WHOLE) else kind


def _misses(value: Column, kind: DataType) -> Column:
    """Tell that a required field is not there, at any depth."""
    if isinstance(kind, ArrayType) and _requires(kind):
        element = kind.elementType
        return F.coalesce(F.exists(value, lambda each: _misses(each, element)), F.lit(False))
    if not isinstance(kind, StructType):
        return F.lit(False)
    inner = ((value.getField(f.name), f) for f in kind if not f.nullable or _requires(f.dataType))
    missing = (
        _misses(part, f.dataType) if f.nullable else part.isNull() | _misses(part, f.dataType)
        for part, f in inner
    )
    return value.isNotNull() & reduce(or_, missing, F.lit(False))


def _requires(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(not f.nullable or _requires(f.dataType) for f in kind)
    return isinstance(kind, ArrayType) and _requires(kind.elementType)
