"""Names in a JSON object that the declaration does not have: never lost without a word."""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

_FIELDS = "map<string,variant>"
_ELEMENTS = "array<variant>"
_PLAIN = "^[A-Za-z0-9_]+$"


def unknown_names(fields: Column, kind: StructType) -> Column:
    """Return the names that ``kind`` does not have, as ``a.b`` where they are deeper.

    Args:
        fields: The object, as a map of VARIANT by name.
        kind: What it should hold.
    """
    return F.array_distinct(_unknown(fields, kind, ""))


def names_in_another_case(names: Column, kind: StructType) -> Column:
    """Select the names that are declared in another case: their values would be null unsaid."""
    declared = F.array(*(F.lit(path.lower()) for path in _paths(kind, "")))
    return F.filter(names, lambda name: F.array_contains(declared, F.lower(name)))


def _unknown(fields: Column, kind: StructType, path: str) -> Column:
    own = F.array_except(F.map_keys(fields), F.array(*map(F.lit, kind.names)))
    named = F.transform(own, lambda name: F.concat(F.lit(path), _written(name)))
    deeper = [
        _below(fields[field.name], field.dataType, path + _spelt(field.name))
        for field in kind
        if _holds_objects(field.dataType)
    ]
    nothing = F.array().cast("array<string>")
    return F.concat(*(F.coalesce(each, nothing) for each in (named, *deeper)))


def _written(name: Column) -> Column:
    """Write a name so that its own dots are not taken for a path's."""
    return F.when(name.rlike(_PLAIN), name).otherwise(F.concat(F.lit("`"), name, F.lit("`")))


def _spelt(name: str) -> str:
    return name if re.fullmatch(_PLAIN, name) else f"`{name}`"


def _below(value: Column, kind: DataType, path: str) -> Column:
    if isinstance(kind, StructType):
        return _unknown(F.try_variant_get(value, "$", _FIELDS), kind, f"{path}.")
    if isinstance(kind, ArrayType):
        element, elements = kind.elementType, F.try_variant_get(value, "$", _ELEMENTS)
        return F.flatten(F.transform(elements, lambda each: _below(each, element, f"{path}[]")))
    assert isinstance(kind, MapType), kind
    item, items = kind.valueType, F.map_values(F.try_variant_get(value, "$", _FIELDS))
    return F.flatten(F.transform(items, lambda each: _below(each, item, f"{path}{{}}")))


def _holds_objects(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _holds_objects(kind.elementType)
    if isinstance(kind, MapType):
        return _holds_objects(kind.valueType)
    return isinstance(kind, StructType)


def _paths(kind: DataType, path: str) -> list[str]:
    """Return every name that is declared, as ``unknown_names`` writes it."""
    if isinstance(kind, ArrayType):
        return _paths(kind.elementType, f"{path}[]")
    if isinstance(kind, MapType):
        return _paths(kind.valueType, f"{path}{{}}")
    if not isinstance(kind, StructType):
        return []
    prefix = f"{path}." if path else ""
    own = [prefix + _spelt(name) for name in kind.names]
    deeper = (_paths(f.dataType, prefix + _spelt(f.name)) for f in kind)
    return [*own, *(each for paths in deeper for each in paths)]
