"""JSON documents, one a record, decoded by Spark's own expressions, and strictly.

``from_json`` alone takes the first of two documents, the last of two equal names, a name in
another case for none, single quotes, NaN, and half a character. ``try_parse_json`` refuses most of
that; that nothing follows the document is seen by wrapping it, since whatever closes one kind of
bracket does not close the other.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from ingestion.formats.decoder import Encoded, decoded
from ingestion.formats.json.fast_path import looked_at, supports_fast_path
from ingestion.formats.json.let import bind
from ingestion.formats.json.nested import (
    CORRUPT,
    is_suspect,
    problems_of,
    value_of,
    witness_of,
    witnessed,
)
from ingestion.formats.json.scalars import SURROGATE
from ingestion.formats.json.unknown_fields import names_in_another_case, unknown_names

REASONS: Final = {
    "invalid_utf8": "the bytes are not UTF-8",
    "empty_value": "the value is empty, or nothing but white space; it is not null",
    "malformed_json": "the text is not JSON as RFC 8259 has it",
    "trailing_data": "something follows the document: garbage, or a second one",
    "duplicate_name": "an object has a name twice",
    "lone_surrogate": "half of a surrogate pair, which is no character",
    "not_an_object": "the document is an array, a scalar or null",
    "wrong_type": "a value is of another type than declared; text is no number, a number no text",
    "out_of_range": "a number does not fit the declared DECIMAL",
    "inexact_number": "a number would be rounded, or is written with an exponent, in a DECIMAL",
    "not_finite": "a number overflows to infinity, or text spells NaN or Infinity",
    "bad_time": "no date or time of ISO 8601 between the years 1 and 9999",
    "bad_base64": "the text of a BINARY column is not base64",
    "too_long": "the text is longer than its VARCHAR",
    "wrong_case": "a name is declared in another case",
    "unknown_field": "a name is not declared, and the stream says `extra_fields: reject`",
}


def decode(records: DataFrame, encoded: Encoded) -> DataFrame:
    """Decode each value as one JSON object with the declared fields.

    A field that is absent is null. A key that is a single column may be a bare value.
    """
    if encoded.is_key or not supports_fast_path(encoded.schema):
        return records.withColumn(encoded.into, strictly_read(F.col(encoded.column), encoded))
    return looked_at(records, encoded, otherwise=strictly_read)


def strictly_read(raw: Column, encoded: Encoded) -> Column:
    """Decode any bytes, and say of bad ones what is wrong."""
    schema = encoded.schema
    text = raw.cast("string")
    if encoded.is_key and len(schema) == 1:
        text = _wrapped_key(text, schema)
    witnesses = [StructField(f.name, witness_of(f.dataType)) for f in schema]
    return bind(
        {"is_there": raw.isNotNull(), "text": text},
        lambda seen: {
            "wrapped": F.try_parse_json(F.concat(F.lit("["), seen["text"], F.lit("]"))),
            "witness": witnessed(seen["text"], witnesses),
        },
        lambda seen: {
            "fields": F.try_variant_get(seen["wrapped"], "$[0]", "map<string,variant>"),
            "row": value_of(seen["witness"].dropFields(CORRUPT), schema),
        },
        lambda seen: {"extra": unknown_names(seen["fields"], schema)},
        lambda seen: {"problem": _problem(seen, encoded)},
        within=lambda seen: decoded(
            encoded,
            row=F.when(seen["problem"].isNull(), seen["row"]),
            reason=seen["problem"]["reason"],
            detail=seen["problem"]["detail"],
            extra=seen["extra"],
            kept=_kept(seen, schema),
        ),
    )


def _kept(seen: Column, schema: StructType) -> Column:
    """Return the fields that the schema does not name, as one object; null when there are none."""
    declared = F.array(*map(F.lit, schema.names))
    rest = F.map_filter(seen["fields"], lambda name, _: ~F.array_contains(declared, name))
    return F.when(F.size(rest) > 0, F.to_variant_object(rest))


def _problem(seen: Column, encoded: Encoded) -> Column:
    """Say what is wrong, the coarsest first; null when nothing is."""
    of_document = _document_problem(seen)
    is_corrupt = seen["witness"][CORRUPT].isNotNull() | seen["witness"].isNull()
    names = seen["extra"]
    misspelt = F.when(F.size(names) > 0, names_in_another_case(names, encoded.schema))
    of_names = F.when(F.size(misspelt) > 0, _told("wrong_case", misspelt))
    if encoded.extra_fields == "reject":
        of_names = of_names.when(F.size(names) > 0, _told("unknown_field", names))
    found = F.coalesce(
        F.when(of_document.isNotNull(), _told(of_document)),
        F.when(is_corrupt, _told("wrong_type", _misfits(seen, encoded.schema))),
        *_of_columns(seen, encoded.schema),
    )
    is_plain = F.coalesce(_is_one_object(seen) & ~is_corrupt, F.lit(False))
    of_values = F.when(~is_plain | _is_suspect(seen, encoded.schema), found)
    return F.when(seen["is_there"], F.coalesce(of_values, of_names))


def _is_one_object(seen: Column) -> Column:
    """Tell most texts that are exactly one object; of the others nothing is said."""
    text = seen["text"]
    is_followed = F.try_variant_get(seen["wrapped"], "$[1]", "variant").isNotNull()
    is_read = seen["fields"].isNotNull() & ~is_followed & ~text.contains("]")
    return is_read & F.is_valid_utf8(text)


def _is_suspect(seen: Column, schema: StructType) -> Column:
    asked = (_suspicion(seen, field) for field in schema)
    return reduce(or_, (each for each in asked if each is not None), F.lit(False))


def _suspicion(seen: Column, field: StructField) -> Column | None:
    row, witness = (seen[name][field.name] for name in ("row", "witness"))
    return is_suspect(row, witness, field.dataType)


def _document_problem(seen: Column) -> Column:
    """Return the reason why a text is not exactly one JSON object, or null."""
    text, wrapped = seen["text"], seen["wrapped"]
    is_followed = F.try_variant_get(wrapped, "$[1]", "variant").isNotNull()
    in_braces = F.try_parse_json(F.concat(F.lit('{"x":'), text, F.lit("}")))
    # What closes the bracket around it and goes on has a bracket in it.
    is_open = text.contains("]") & in_braces.isNull()
    return (
        F.when(~F.is_valid_utf8(text), "invalid_utf8")
        .when(text.rlike(r"^[ \t\r\n]*$"), "empty_value")
        .when(wrapped.isNull(), _why_no_json(text))
        .when(is_followed | is_open, "trailing_data")
        .when(seen["fields"].isNull(), "not_an_object")
    )


def _why_no_json(text: Column) -> Column:
    names = F.json_object_keys(text)
    return (
        F.when(F.try_parse_json(text).isNotNull(), "trailing_data")
        .when(F.size(F.array_distinct(names)) < F.size(names), "duplicate_name")
        .when(text.rlike(SURROGATE), "lone_surrogate")
        .otherwise("malformed_json")
    )


def _of_columns(seen: Column, schema: StructType) -> list[Column]:
    """Return the problems of each column; whether it may be absent is not the format's concern."""
    found: list[Column] = []
    for field in schema:
        witness, suspicion = seen["witness"][field.name], _suspicion(seen, field)
        if suspicion is not None:
            problems = problems_of(witness, field.dataType, field.name)
            found.append(F.when(suspicion, F.coalesce(*problems)))
    return found


def _misfits(seen: Column, schema: StructType) -> Column:
    """Name the columns that ``from_json`` could not read, with the types they should have."""
    named = (
        F.when(
            seen["witness"][field.name].isNull()
            & seen["fields"][field.name].isNotNull()
            & ~F.is_variant_null(seen["fields"][field.name]),
            F.lit(f"{field.name}: expected {field.dataType.simpleString().upper()}"),
        )
        for field in schema
    )
    return F.array_compact(F.array(*named))


def _told(reason: Column | str, details: Column | None = None) -> Column:
    detail = F.lit(None).cast("string") if details is None else F.array_join(details, ", ")
    code = F.lit(reason) if isinstance(reason, str) else reason
    return F.struct(code.alias("reason"), F.substring(detail, 1, 500).alias("detail"))


def _wrapped_key(text: Column, schema: StructType) -> Column:
    """Make an object of a bare key: JSON, or for a STRING column plain text."""
    (field,) = schema
    bare = F.concat(F.lit(f'{{"{field.name}":'), text, F.lit("}"))
    if isinstance(field.dataType, StringType):
        plain = F.to_json(F.struct(text.alias(field.name)))
        is_json = text.startswith('"') | ~F.is_valid_utf8(text)
        bare = F.when(is_json, bare).otherwise(plain)
    return F.when(F.ltrim(text).startswith("{"), text).otherwise(bare)
