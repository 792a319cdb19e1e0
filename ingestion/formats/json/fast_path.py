"""Objects and lists in JSON, found sound by their shape, at a glance.

A VARIANT tells the type of all that it holds, names and elements included, as one text. A regular
expression made from the declaration says whether all of that is declared, and nothing is lenient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import add, and_, or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
    VariantType,
)

from ingestion.formats.decoder import Encoded, decoded
from ingestion.formats.json.nested import CORRUPT, bare, with_leaves, witnessed
from ingestion.formats.json.scalars import SURROGATE, Leaf, is_no_moment, leaf_of, moment

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


_END: Final = "_end_of_record"
_SEEN, _ROW, _TEXTS, _NAMES, _UNKNOWN, _SOUND = (
    f"_json_look_{name}" for name in ("seen", "row", "texts", "names", "unknown", "sound")
)
_NESTED: Final = (StructType, ArrayType)
_TEXT: Final = (StringType, VarcharType)
# What may hold any name, or is seldom enough.
_UNSEEN: Final = (MapType, VariantType, BinaryType)
# A line that from_json may have written for a value that is no string.
_NO_STRING: Final = r'(?m)^([{\["]|-?\d+(\.\d+)?([eE][-+]?\d+)?$|(true|false)$)'
_BROKEN: Final = "\ufffd"
# What a name with half a character, or with bytes that are no UTF-8, has there when it is read.
_MENDED: Final = {"?", _BROKEN}
# Each column adds to expressions that Spark takes apart by recursion.
_MOST_FIELDS: Final = 100
# Of the longest number that a parser takes.
_MOST_DIGITS: Final = 1000


def supports_fast_path(schema: StructType) -> bool:
    """Tell whether the look can find records of a schema sound."""
    if _count(schema) > _MOST_FIELDS or any(_MENDED & set(name) for name in schema.names):
        return False
    kinds = [field.dataType for field in schema]
    are_shaped = all(has_shape(kind) for kind in kinds if isinstance(kind, _NESTED))
    return are_shaped and not any(isinstance(kind, _UNSEEN) for kind in kinds)


def looked_at(
    records: DataFrame, encoded: Encoded, *, otherwise: Callable[[Column, Encoded], Column]
) -> DataFrame:
    """Decode the records that are surely sound, and leave the others to ``otherwise``."""
    text, schema = F.col(encoded.column).cast("string"), encoded.schema
    texts = (_seen(f) for f in schema if isinstance(_leaf(f.dataType).witness, StringType))
    looked = (
        records.withColumn(_SEEN, _read(_marked(text), schema))
        .withColumn(_ROW, F.struct(*(_value(field).alias(field.name) for field in schema)))
        .withColumn(_TEXTS, F.concat_ws("\n", *texts))
        .withColumn(_NAMES, F.when(~_are_counted(text, schema), _names(text)))
        .withColumn(_UNKNOWN, F.array_except(_NAMES, _literals(schema.names)))
        .withColumn(_SOUND, F.when(_is_sound(text, encoded), F.col(_ROW)))
    )
    extra = F.coalesce(_UNKNOWN, F.array().cast("array<string>"))
    sound = decoded(encoded, row=F.col(_SOUND), extra=extra)
    # Not a column of its own: that would be computed for each record, though for null.
    doubtful = otherwise(F.col(encoded.column), encoded)
    either = F.when(F.col(_SOUND).isNotNull(), sound).otherwise(doubtful)
    decided = looked.withColumn(encoded.into, either)
    return decided.drop(_SEEN, _ROW, _TEXTS, _NAMES, _UNKNOWN, _SOUND)


def _marked(text: Column) -> Column:
    """Put one more field in front of the closing brace of an object.

    Who finds it has read the whole text as one object: had the object ended before, the field would
    stand behind it.
    """
    raw = text.cast("binary")
    opened = F.substr(raw, F.lit(1), F.octet_length(raw) - 1)
    end = F.lit(f',"{_END}":1}}'.encode())
    return F.when(text.endswith("}"), F.concat(opened, end).cast("string"))


def _read(marked: Column, schema: StructType) -> Column:
    fields = [StructField(field.name, _leaf(field.dataType).witness) for field in schema]
    fields.append(StructField(_END, IntegerType()))
    lenient = dict.fromkeys(("allowSingleQuotes", "allowNonNumericNumbers"), "false")
    return witnessed(marked, fields, **lenient)


def _is_sound(text: Column, encoded: Encoded) -> Column:
    schema = encoded.schema
    is_read = F.col(f"{_SEEN}.{CORRUPT}").isNull() & (F.col(f"{_SEEN}.{_END}") == 1)
    doubts = [
        *_doubtful_values(schema),
        *_doubtful_texts(text, schema),
        *_doubtful_depths(text, schema),
    ]
    # What is absent or null gives rise to no doubt.
    sure = reduce(and_, (~F.coalesce(doubt, F.lit(False)) for doubt in doubts), is_read)
    are_counted = F.col(_NAMES).isNull()
    names = F.when(are_counted, True).otherwise(_are_names_sound(text, encoded))
    return F.coalesce(sure & names, F.lit(False))


def _are_counted(text: Column, schema: StructType) -> Column:
    """Tell that all names are declared, and there once: there are as many colons as values.

    Where there are nulls, names deeper down, or colons that may be escapes, it says no.
    """
    if _nested(schema):
        return F.lit(False)
    texts = F.col(_TEXTS)
    values = reduce(add, (F.when(_seen(f).isNotNull(), 1).otherwise(0) for f in schema))
    are_as_many = _colons(text) == values + _colons(texts)
    return F.coalesce(are_as_many & ~(texts.contains(":") & text.contains("\\")), F.lit(False))


def _are_names_sound(text: Column, encoded: Encoded) -> Column:
    """Tell that no name is there twice, and that those not declared hold nothing bad."""
    names, unknown = F.col(_NAMES), F.col(_UNKNOWN)
    are_single = F.size(F.array_distinct(names)) == F.size(names)
    is_known = F.size(unknown) == 0
    if encoded.extra_fields != "ignore":
        return are_single & is_known
    joined = F.concat_ws("\n", unknown)
    # One field more of our own would hide what follows an object that has it already.
    taken = _literals([*map(str.lower, encoded.schema.names), _END])
    are_plain = joined.rlike(r"\A[A-Za-z0-9_]+(\n[A-Za-z0-9_]+)*\z")
    are_new = ~F.arrays_overlap(F.split(F.lower(joined), "\n"), taken)
    return are_single & (is_known | (are_plain & are_new & _is_harmless(text)))


def _is_harmless(text: Column) -> Column:
    """Tell that no value, declared or not, is one that only a parser could refuse."""
    has_no_objects = F.size(F.split(text, r"\{")) == 2
    is_short = F.octet_length(text) < _MOST_DIGITS
    return has_no_objects & is_short & ~text.contains("\\") & F.is_valid_utf8(text)


def _names(text: Column) -> Column:
    """Return the names of an object; something that is never known where there are none to tell."""
    return F.coalesce(F.json_object_keys(text), F.array(F.lit(None).cast("string")))


def _literals(names: Iterable[str]) -> Column:
    return F.array(*map(F.lit, names))


def _colons(text: Column) -> Column:
    return F.size(F.split(text, ":")) - 1


def _doubtful_values(schema: StructType) -> Iterator[Column]:
    for field in schema:
        suspect = _leaf(field.dataType).suspect
        if suspect is not None:
            yield suspect(F.col(_ROW).getField(field.name), _seen(field))
        if isinstance(field.dataType, VarcharType):
            yield F.length(_seen(field)) > field.dataType.length


def _doubtful_texts(text: Column, schema: StructType) -> Iterator[Column]:
    """Yield what tells that a text may be no string, or has been mended; all texts at once.

    Dates and times need none of that: their patterns let nothing else pass.
    """
    texts, names = F.col(_TEXTS), "|".join(re.escape(f.name) for f in schema if _is_text(f))
    if not names:
        return
    is_other = text.contains("\\") | text.rlike(rf'"({names})"\s*:\s*[^"n\s]')
    yield texts.rlike(_NO_STRING) & is_other
    yield texts.contains(_BROKEN)
    # Half a character has become a question mark.
    yield texts.contains("?") & text.contains("\\")


def _doubtful_depths(text: Column, schema: StructType) -> Iterator[Column]:
    """Yield what tells that something in an object or a list may have been mended."""
    nested = _nested(schema)
    if nested:
        yield text.contains("\\u") & text.rlike(SURROGATE)
        yield ~F.is_valid_utf8(text)
    if any(map(has_fractions, nested)):
        yield text.rlike(r"[:\[,]\s*-0")


def _nested(schema: StructType) -> list[DataType]:
    return [field.dataType for field in schema if isinstance(field.dataType, _NESTED)]


def _is_text(field: StructField) -> bool:
    return isinstance(field.dataType, _TEXT)


def _count(kind: DataType) -> int:
    """Return how many fields a type has, at any depth."""
    if isinstance(kind, ArrayType):
        return _count(kind.elementType)
    return sum(1 + _count(f.dataType) for f in kind) if isinstance(kind, StructType) else 0


def _leaf(kind: DataType) -> Leaf:
    """Return how a type is read at a glance; what is wrong with a suspect is not its concern."""
    if isinstance(kind, _TEXT):
        return Leaf(StringType())
    if isinstance(kind, TimestampType):
        return Leaf(StringType(), moment, None, is_no_moment)
    if isinstance(kind, _NESTED):
        return shape(kind)
    return leaf_of(kind)


def _seen(field: StructField) -> Column:
    return F.col(_SEEN).getField(field.name)


def _value(field: StructField) -> Column:
    make = _leaf(field.dataType).value
    return _seen(field) if make is None else make(_seen(field))
