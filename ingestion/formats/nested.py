"""Conversion of records, lists and maps of any encoding to declared columns, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from ingestion.formats.coerce import Convert, MisfitError, mismatch

# Returns the conversion of an encoding's type to a declared one.
Converter = Callable[[Any, DataType], Convert]


class Fields(Protocol):
    """A record of any encoding."""

    def get(self, name: str, /) -> Any:
        """Return a field's value, or ``None``."""


def columns_of(
    fields: Mapping[str, Any], columns: StructType, converter: Converter
) -> tuple[Callable[[Fields], list[Any]], tuple[str, ...]]:
    """Return the conversion of a record to a row, and the names that no column has.

    Args:
        fields: The encoding's types, by name.
        columns: The declared columns; one that is not in ``fields`` is null.
        converter: Returns the conversion of one type to another.
    """
    plan = [
        (each.name, converter(fields[each.name], each.dataType) if each.name in fields else None)
        for each in columns
    ]
    extra = tuple(name for name in fields if name not in set(columns.names))

    def to_row(record: Fields) -> list[Any]:
        row, name = [], ""
        try:
            for name, convert in plan:
                value = None if convert is None else record.get(name)
                row.append(value if convert is None or value is None else convert(value))
        except MisfitError as error:
            raise error.within(name) from None
        return row

    return to_row, extra


def struct_of(fields: Mapping[str, Any], target: DataType, converter: Converter) -> Convert:
    """Return the conversion of a record to a STRUCT."""
    if not isinstance(target, StructType):
        return mismatch("a record", target)
    to_row, _ = columns_of(fields, target, converter)
    names = target.names
    required = [at for at, field in enumerate(target) if not field.nullable]

    def convert(record: Any) -> dict[str, Any]:
        row = to_row(record)
        for at in required:
            if row[at] is None:
                raise MisfitError("null, and NOT NULL", "missing_required").within(names[at])
        return dict(zip(names, row, strict=True))

    return convert


def array_of(items: Any, target: DataType, converter: Converter) -> Convert:
    """Return the conversion of a list to an ARRAY."""
    if not isinstance(target, ArrayType):
        return mismatch("an array", target)
    convert = converter(items, target.elementType)

    def convert_items(values: Any) -> list[Any]:
        try:
            return [None if value is None else convert(value) for value in values]
        except MisfitError as error:
            raise error.within("[]") from None

    return convert_items


def map_of(values: Any, target: DataType, converter: Converter) -> Convert:
    """Return the conversion to a MAP with STRING keys."""
    if not isinstance(target, MapType) or not isinstance(target.keyType, StringType):
        return mismatch("a map with text keys", target)
    convert = converter(values, target.valueType)

    def convert_values(items: Any) -> list[tuple[str, Any]]:
        try:
            return [(k, None if v is None else convert(v)) for k, v in items.items()]
        except MisfitError as error:
            raise error.within("{}") from None

    return convert_values
