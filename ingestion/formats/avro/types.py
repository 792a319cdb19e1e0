"""Conversion of Avro's types, logical ones and Kafka Connect's included, to declared columns."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import types as sql

from oncelake.ingestion.formats.coerce import (
    Convert,
    Source,
    array_of,
    decimal_of,
    decimal_text,
    exact,
    exact_ticks,
    map_of,
    mismatch,
    struct_of,
)
from oncelake.ingestion.formats.connect import DEBEZIUM_TICKS, Hint, json_value

_LOGICAL: Final = "oncelakeLogicalType"
# Begins the names of records that stand for the branches of a union.
_BRANCH: Final = "oncelake_branch"
# Their only field.
_VALUE: Final = "value"
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_PLAIN: Final = {
    "boolean": Source("boolean"),
    "int": Source("integer"),
    "long": Source("integer"),
    "float": Source("float"),
    "double": Source("double"),
    "string": Source("string"),
    "bytes": Source("bytes"),
    "enum": Source("string"),
    "fixed": Source("bytes"),
}
_TICKS: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_PYTHON: Final[dict[str, type]] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "bytes": bytes,
    "array": list,
    "map": dict,
}


def as_written(schema: Any, place: str) -> Any:
    """Return a schema by which fastavro returns the values as they were written.

    ``logicalType`` has another name, and what is for readers is gone: defaults and aliases. A union
    of several types that are one in Python has each as the only field of a record, which takes the
    same bytes and has a name.

    Args:
        schema: The schema, or a part of it.
        place: Where it is, as letters and digits: what distinguishes it from all other parts.

    Raises:
        ValueError, AttributeError: it breaks a rule that fastavro does not know.
    """
    if isinstance(schema, list):
        return [as_written(each, f"{place}_{at}") for at, each in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    if "type" in schema:
        _refuse_misnamed(schema)
    renamed = {_LOGICAL if name == "logicalType" else name: each for name, each in schema.items()}
    kept = [name for name in renamed if name not in ("default", "aliases")]
    written = {name: as_written(renamed[name], f"{place}_{at}") for at, name in enumerate(kept)}
    for at, name in enumerate(kept):
        if name in ("type", "items", "values") and isinstance(written[name], list):
            _refuse_ambiguous(written[name])
            written[name] = _with_names(written[name], f"{place}_{at}")
    return "null" if written.get("type") == "null" and "name" not in written else written


def _with_names(branches: list[Any], place: str) -> list[Any]:
    """Give the branches names by which their values are known, where their types do not do."""
    if not _has_unlike_twins(branches):
        return branches
    return [
        _named(branch, f"{_BRANCH}_{place}_{at}") if kind(branch)[0] in _PYTHON else branch
        for at, branch in enumerate(branches)
    ]


def _named(branch: Any, name: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": _VALUE, "type": branch}]}


def _has_unlike_twins(branches: list[Any]) -> bool:
    """Tell whether two branches, which Python's types do not distinguish, mean different things."""
    plain = [(_PYTHON[word], found) for word, found in map(kind, branches) if word in _PYTHON]
    names = [found.get(name) for _, found in plain for name in (_LOGICAL, "connect.name")]
    return len({python for python, _ in plain}) < len(plain) and any(names)


def _refuse_ambiguous(union: list[Any]) -> None:
    words = [each.get("type") if isinstance(each, dict) else each for each in union]
    unnamed = [each for each in words if isinstance(each, str) and each not in _NAMED]
    if any(isinstance(each, list) for each in words) or len({*unnamed}) < len(unnamed):
        raise ValueError("a union in a union, or of one type twice")


def _refuse_misnamed(schema: Mapping[str, Any]) -> None:
    for name in (schema.get("name", ""), schema.get("namespace", "")):
        # Not every value of JSON is a text, and half of a surrogate pair is none.
        name.encode()
    names = [each.get("name") for each in schema.get("fields", ()) if isinstance(each, dict)]
    if len({*map(str, names)}) < len(names):
        raise ValueError("two fields of one name")


def kind(node: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the word for a type, and what else its schema says; of a named branch, its type's."""
    if isinstance(node, list):
        return "union", {}
    if _is_named_branch(node):
        return kind(node["fields"][0]["type"])
    return (node["type"], node) if isinstance(node, dict) else (node, {})


def _is_named_branch(node: Any) -> bool:
    return isinstance(node, dict) and _is_of_branch(str(node.get("name")))


def _is_of_branch(name: str) -> bool:
    """Tell whether a name stands for a branch; it is in the namespace of the record around it."""
    return name.rpartition(".")[2].startswith(_BRANCH)


def logical_type(node: Any) -> str:
    """Return the logical type of an expanded type; empty if it has none."""
    return str(kind(node)[1].get(_LOGICAL, ""))


def is_record(node: Any) -> bool:
    """Tell whether a type is a record."""
    return kind(node)[0] == "record"


def record_in(node: Any) -> Any:
    """Return a record type, or the record branch of a union."""
    return next(filter(is_record, node), node) if isinstance(node, list) else node


def fields(record: Any) -> dict[str, Any]:
    """Return the types of a record's fields, by name."""
    return {each["name"]: each["type"] for each in kind(record)[1].get("fields", ())}


def parts_of(node: Any) -> list[Any]:
    """Return the types that a type is made of."""
    word, found = kind(node)
    if word == "union":
        return list(node)
    inner = {"array": "items", "map": "values"}.get(word)
    return [found[inner]] if inner else list(fields(node).values())


def expanded_size(node: Any, named: Mapping[str, Any], known: dict[str, float]) -> float:
    """Count the types in a type with all names expanded; infinite where one contains itself.

    Args:
        node: The type, parsed and not expanded.
        named: The types that have names.
        known: Takes the sizes of these, so that each is counted once.
    """
    word, found = kind(node)
    name = found.get("name") or word
    if name not in named:
        return 1 + sum(expanded_size(each, named, known) for each in parts_of(node))
    if name not in known:
        known[name] = math.inf
        of_parts = (expanded_size(each, named, known) for each in parts_of(named[name]))
        known[name] = 1 + sum(of_parts)
    return known[name]


def has_endless_arrays(node: Any) -> bool:
    """Tell whether a few bytes can stand for any number of items, since an item takes none."""
    is_endless = kind(node)[0] == "array" and _takes_no_bytes(parts_of(node)[0])
    return is_endless or any(map(has_endless_arrays, parts_of(node)))


def _takes_no_bytes(node: Any) -> bool:
    word, found = kind(node)
    is_empty_record = word == "record" and all(map(_takes_no_bytes, parts_of(node)))
    return word == "null" or found.get("size") == 0 or is_empty_record


def converter(node: Any, target: sql.DataType) -> Convert:
    """Return the conversion of a non-null value to the declared type."""
    word, found = kind(node)
    if word == "union":
        return _union([each for each in node if each != "null"], target)
    if convert := _special(word, found, target):
        return convert
    if word == "record":
        return struct_of(fields(node), target, converter)
    if word == "array":
        return array_of(found["items"], target, converter)
    if word == "map":
        return map_of(found["values"], target, converter)
    return mismatch("null", target) if word == "null" else exact(_source(word, found), target)


def source(node: Any, target: sql.DataType) -> Source | None:
    """Return the type of scalar values; ``None`` where its name, or a scale, says more."""
    word, found = kind(node)
    is_special = _special(word, found, target) or word not in _PLAIN
    return None if is_special else _source(word, found)


def _union(branches: list[Any], target: sql.DataType) -> Convert:
    """Convert each value by its own branch; fastavro returns named types with their names."""
    named: dict[str, Convert] = {}
    plain: dict[type, Convert] = {}
    for branch in branches:
        convert = converter(branch, target)
        if _is_named_branch(branch):
            named[branch["name"]] = _of_branch(convert)
        elif (word := kind(branch)[0]) in _PYTHON:
            plain[_PYTHON[word]] = convert
        else:
            named[branch["name"]] = convert
    if len(branches) == len(plain) == 1:
        return plain.popitem()[1]

    def convert_branch(value: Any) -> Any:
        if type(value) is tuple:
            name, value = value
            return named[name](value)
        return plain[type(value)](value)

    return convert_branch


def _of_branch(convert: Convert) -> Convert:
    return lambda record: convert(record[_VALUE])


def _source(word: str, found: Mapping[str, Any]) -> Source:
    logical = str(found.get(_LOGICAL, ""))
    if logical == "date" and word == "int":
        return Source("date")
    form, _, unit = logical.rpartition("-")
    if word == "long" and unit in _TICKS and form in {"timestamp", "local-timestamp"}:
        return Source(form.replace("-", "_"), _TICKS[unit])
    return _PLAIN[word]


def _special(word: str, found: Mapping[str, Any], target: sql.DataType) -> Convert | None:
    """Return the conversion of a type whose ``connect.name`` or scale says more than its word."""
    logical, name = found.get(_LOGICAL), found.get("connect.name")
    if logical == "decimal" and word in {"bytes", "fixed"} and found.get("precision", 0) > 0:
        scale, convert = int(found.get("scale", 0)), exact(Source("decimal"), target)
        return lambda value: convert(decimal_of(value, scale, target))
    if logical == "uuid" and word == "fixed" and isinstance(target, sql.StringType):
        return lambda value: str(uuid.UUID(bytes=value))
    way = (word, name, type(target))
    if way == ("record", "io.debezium.data.VariableScaleDecimal", sql.DecimalType):
        convert = exact(Source("decimal"), target)
        return lambda value: convert(decimal_of(value["value"], value["scale"], target))
    if way == ("record", "io.debezium.data.VariableScaleDecimal", sql.StringType):
        return lambda value: decimal_text(value["value"], value["scale"], target)
    if way == ("int", "io.debezium.time.Date", sql.DateType):
        return exact(Source("date"), target)
    if way == ("string", "io.debezium.time.ZonedTimestamp", sql.TimestampType):
        return json_value(Hint(), target)
    is_moment = isinstance(target, sql.TimestampType | sql.TimestampNTZType)
    if word == "long" and name in DEBEZIUM_TICKS and is_moment:
        return exact_ticks(DEBEZIUM_TICKS[name], target)
    return None
