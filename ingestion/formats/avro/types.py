"""Conversion of Avro's types, logical ones included, to declared columns."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql.types import DataType, DecimalType, StringType

from ingestion.formats.coerce import Convert, MisfitError, Source, exact, mismatch, unscaled
from ingestion.formats.connect.avro import connect_type
from ingestion.formats.nested import array_of, map_of, struct_of

_LOGICAL: Final = "oncelakeLogicalType"
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


def logical_types_set_aside(schema: Any) -> Any:
    """Rename ``logicalType`` everywhere, so that fastavro returns the values as written."""
    if isinstance(schema, list):
        return [logical_types_set_aside(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {_LOGICAL if name == "logicalType" else name: each for name, each in schema.items()}
    return {name: logical_types_set_aside(each) for name, each in renamed.items()}


class AvroTypes:
    """The types of one parsed schema; ``named`` has its named types."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named

    def is_record(self, node: Any) -> bool:
        """Tell whether a type is a record."""
        return self.kind(node)[0] == "record"

    def record_in(self, node: Any) -> Any:
        """Return a record type, or the record branch of a union."""
        if isinstance(node, list):
            return next((each for each in node if self.is_record(each)), node)
        return node

    def fields(self, record: Any) -> dict[str, Any]:
        """Return the types of a record's fields, by name."""
        found = self.kind(record)[1].get("fields", ())
        return {each["name"]: each["type"] for each in found}

    def is_recursive(self, node: Any, inside: frozenset[str] = frozenset()) -> bool:
        """Tell whether a type contains itself."""
        word, found = self.kind(node)
        name = found.get("name") if word in {"record", "enum", "fixed"} else None
        if name in inside:
            return True
        inside = inside | {name} if name else inside
        return any(self.is_recursive(each, inside) for each in self._parts(node))

    def converter(self, node: Any, target: DataType) -> Convert:
        """Return the conversion of a non-null value to the declared type."""
        word, found = self.kind(node)
        if word == "union":
            return self._union([each for each in node if each != "null"], target)
        if word == "record" and isinstance(target, DecimalType):
            return connect_type(word, found, target) or mismatch("a record", target)
        if word == "record":
            return struct_of(self.fields(node), target, self.converter)
        if word == "array":
            return array_of(found["items"], target, self.converter)
        if word == "map":
            return map_of(found["values"], target, self.converter)
        if word == "null":
            return mismatch("null", target)
        return _scalar(word, found, target)

    def kind(self, node: Any) -> tuple[str, Mapping[str, Any]]:
        """Return the word for a type, and what else its schema says."""
        if isinstance(node, list):
            return "union", {}
        if isinstance(node, str):
            return self.kind(self._named[node]) if node in self._named else (node, {})
        word = node["type"]
        # {"type": "some.Name"} and {"type": {"type": ...}} are allowed.
        is_plain = isinstance(word, str) and word not in self._named
        return (word, node) if is_plain else self.kind(word)

    def source(self, node: Any, target: DataType) -> Source | None:
        """Return the type of scalar values; ``None`` where its name, or a scale, says more."""
        word, found = self.kind(node)
        is_special = _special(word, found, target) or word not in _PLAIN
        return None if is_special else _source(word, found)

    def _parts(self, node: Any) -> Iterator[Any]:
        word, found = self.kind(node)
        if word == "union":
            yield from node if isinstance(node, list) else node["type"]
        elif word == "record":
            yield from self.fields(node).values()
        elif word in {"array", "map"}:
            yield found["items" if word == "array" else "values"]

    def _union(self, branches: list[Any], target: DataType) -> Convert:
        """Convert each value by its own branch; fastavro returns named types with their names."""
        named: dict[str, Convert] = {}
        plain: dict[type, Convert] = {}
        logical: dict[type, Any] = {}
        for branch in branches:
            word, found = self.kind(branch)
            convert = self.converter(branch, target)
            if word in {"record", "enum", "fixed"}:
                named[found["name"]] = convert
                continue
            kind = _PYTHON[word]
            if kind in plain and logical[kind] != found.get(_LOGICAL):
                convert = _ambiguous
            plain[kind], logical[kind] = convert, found.get(_LOGICAL)
        if len(branches) == len(plain) == 1:
            return plain.popitem()[1]

        def convert_branch(value: Any) -> Any:
            if type(value) is tuple:
                name, value = value
                return named[name](value)
            return plain[type(value)](value)

        return convert_branch


def _ambiguous(_: Any) -> Any:
    raise MisfitError("two branches of the union cannot be distinguished")


def _scalar(word: str, found: Mapping[str, Any], target: DataType) -> Convert:
    return _special(word, found, target) or exact(_source(word, found), target)


def _special(word: str, found: Mapping[str, Any], target: DataType) -> Convert | None:
    logical = found.get(_LOGICAL)
    if logical == "decimal" and word in {"bytes", "fixed"} and found.get("precision", 0) > 0:
        return _decimal(int(found.get("scale", 0)), target)
    if logical == "uuid" and word == "fixed" and isinstance(target, StringType):
        return lambda value: str(uuid.UUID(bytes=value))
    return connect_type(word, found, target)


def _source(word: str, found: Mapping[str, Any]) -> Source:
    logical = str(found.get(_LOGICAL, ""))
    if logical == "date" and word == "int":
        return Source("date")
    kind, _, unit = logical.rpartition("-")
    if word == "long" and unit in _TICKS and kind in {"timestamp", "local-timestamp"}:
        return Source(kind.replace("-", "_"), _TICKS[unit])
    return _PLAIN[word]


def _decimal(scale: int, target: DataType) -> Convert:
    convert = exact(Source("decimal", scale), target)
    return lambda value: convert(unscaled(int.from_bytes(value, signed=True), scale))
