"""The interface of a format: a module with ``REASONS`` and one function, ``decode``."""

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
    """The bytes to decode, and their expected content.

    Attributes:
        column: Name of the binary column; a row without bytes is null.
        into: Name of the column that ``decode`` adds.
        is_key: Whether they are a Kafka key, which may be a bare value instead of an object.
        schema: The declared columns, or for a key the key columns.
        options: The format's options in the declaration.
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
        """Return a copy for another column's bytes."""
        return replace(self, column=column)


def decoded_struct(schema: StructType, *, keeps_extra: bool = False) -> StructType:
    """Return the type of the column that ``decode`` adds.

    ``row`` has the columns of ``schema``; ``reason`` is a code of the format's ``REASONS``, null if
    the bytes are good, and ``detail`` a text for people; ``extra`` has the names of the fields that
    are not in ``schema``; ``is_delete`` is true if the bytes themselves are a delete, and null in
    formats without deletes. ``kept`` has the fields that are not in ``schema``, if the declaration
    says ``extra_fields: keep``.
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
    """Return the column of ``decoded_struct`` with the given fields; the others are null."""
    kind = decoded_struct(encoded.schema, keeps_extra=encoded.extra_fields == "keep")
    parts = (known.get(f.name, F.lit(None).cast(f.dataType)).alias(f.name) for f in kind)
    return F.struct(*parts)


class Decode(Protocol):
    """Decodes bytes to typed columns, or gives a reason."""

    def __call__(self, records: DataFrame, encoded: Encoded) -> DataFrame:
        """Add one column of type ``decoded_struct``.

        Nothing else is added or changed, and every record stays one row. If the bytes are null,
        every field of the new column is null.
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
    """Decode keys or values with their declared format."""
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
