"""What a format is: a module with one function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Protocol, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from ingestion.declaration.formats import FORMATS, Options
from ingestion.declaration.parts import ExtraFields, FormatSpec
from ingestion.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """Which bytes to decode, and into what.

    Attributes:
        column: Name of the binary column; null where there are none.
        into: Name of the column that ``decode`` adds.
        is_key: Whether they are a Kafka key, which may be a bare value instead of an object.
        schema: What the bytes should hold: the declared columns, or of a key the key columns.
        options: What the declaration says beside the format's name.
        extra_fields: What to do with fields that ``schema`` does not name.
        settings: Where a schema registry is.
    """

    column: str
    into: str
    is_key: bool
    schema: StructType
    options: Options
    extra_fields: ExtraFields
    settings: Settings

    def of(self, column: str) -> Encoded:
        """Return the same of another column's bytes."""
        return replace(self, column=column)


def decoded_struct(schema: StructType, *, keeps_extra: bool = False) -> StructType:
    """Return the type of the column that ``decode`` adds.

    ``row`` holds the columns of ``schema``; ``reason`` is a code of the format's closed list, null
    when the bytes are good, and ``detail`` says more for people; ``extra`` names the fields that
    ``schema`` does not; ``is_delete`` is true when the bytes themselves say that the row is gone,
    and null in formats that have no word for it. ``kept`` holds the fields that ``schema`` does not
    name, where the declaration says ``extra_fields: keep``.
    """
    fields = [
        StructField("row", schema),
        StructField("reason", StringType()),
        StructField("detail", StringType()),
        StructField("extra", ArrayType(StringType())),
        StructField("is_delete", BooleanType()),
    ]
    return StructType([*fields, StructField("kept", VariantType())] if keeps_extra else fields)


def decoded(encoded: Encoded, **known: Column) -> Column:
    """Return what ``decode`` adds, by the names of ``decoded_struct``; the rest is null."""
    kind = decoded_struct(encoded.schema, keeps_extra=encoded.extra_fields == "keep")
    parts = (known.get(f.name, F.lit(None).cast(f.dataType)).alias(f.name) for f in kind)
    return F.struct(*parts)


class Decode(Protocol):
    """Bytes to typed columns, and a reason for each record that cannot be."""

    def __call__(self, records: DataFrame, encoded: Encoded) -> DataFrame:
        """Add one column that holds what the bytes say, as ``decoded_struct`` describes it.

        Nothing else is added or changed; one row a record, whatever it holds. Where the bytes are
        null, so is everything in the new column.
        """
        ...


def decode(
    records: DataFrame,
    format_spec: FormatSpec,
    *,
    column: str,
    into: str,
    is_key: bool = False,
    schema: StructType,
    extra_fields: ExtraFields,
    settings: Settings,
) -> DataFrame:
    """Decode keys or values by the format that is declared for them."""
    module = import_module(FORMATS[format_spec.type].module)
    encoded = Encoded(
        column=column,
        into=into,
        is_key=is_key,
        schema=schema,
        options=format_spec.options,
        extra_fields=extra_fields,
        settings=settings,
    )
    return cast("Decode", module.decode)(records, encoded)
