"""Conversion of Avro's types, logical ones and Kafka Connect's included, to declared columns."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
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
from oncelake.ingestion.formats.decoder import BadBytesError
from oncelake.ingestion.formats.variant import DEEPEST, real_as_json, variant_text
from oncelake.ingestion.storage.processes import deeper_calls

_LOGICAL: Final = "oncelakeLogicalType"
# Of a linked type: whether it is met again within itself.
_IN_ITSELF: Final = "oncelakeInItself"
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
_TEXT, _VARIANT = sql.StringType(), sql.VariantType()
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
    """Give the branches names by which their values are known, where Python's types do not do."""
    plain = [_PYTHON[word] for word, _ in map(kind, branches) if word in _PYTHON]
    if len({*plain}) == len(plain):
        return branches
    return [
        _named(branch, f"{_BRANCH}_{place}_{at}") if kind(branch)[0] in _PYTHON else branch
        for at, branch in enumerate(branches)
    ]


def _named(branch: Any, name: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": _VALUE, "type": branch}]}


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


def undeclared(node: Any, target: sql.DataType, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of records for which the STRUCT in their place has none."""
    word, found = kind(node)
    if word == "union":
        for each in node:
            yield from undeclared(each, target, path)
    elif word == "record" and isinstance(target, sql.StructType):
        for name, each in fields(node).items():
            at = f"{path}.{name}" if path else name
            yield from (
                undeclared(each, target[name].dataType, at) if name in target.names else (at,)
            )
    elif word == "array" and isinstance(target, sql.ArrayType):
        yield from undeclared(found["items"], target.elementType, f"{path}[]")
    elif word == "map" and isinstance(target, sql.MapType):
        yield from undeclared(found["values"], target.valueType, f"{path}{{}}")


def parts_of(node: Any) -> list[Any]:
    """Return the types that a type is made of."""
    word, found = kind(node)
    if word == "union":
        return list(node)
    inner = {"array": "items", "map": "values"}.get(word)
    return [found[inner]] if inner else list(fields(node).values())


def linked(node: Any, named: Mapping[str, Any], known: dict[str, Any]) -> Any:
    """Return a type with types in the places of their names; one may be in itself then.

    Args:
        node: The type, parsed.
        named: The types that have names.
        known: Takes those that are linked.
    """
    if isinstance(node, list):
        return [linked(each, named, known) for each in node]
    found = node if isinstance(node, dict) else named.get(node, node)
    if isinstance(found, str):
        return found
    if (name := found.get("name")) in known:
        # It is not complete yet, or says already whether it is in itself.
        known[name].setdefault(_IN_ITSELF, True)
        return known[name]
    type_ = dict(found)
    if name:
        known[name] = type_
    for part in type_.keys() & {"items", "values"}:
        type_[part] = linked(type_[part], named, known)
    if "fields" in type_:
        type_["fields"] = [
            {**each, "type": linked(each["type"], named, known)} for each in type_["fields"]
        ]
    type_.setdefault(_IN_ITSELF, False)
    return type_


def is_recursive(node: Any) -> bool:
    """Tell whether a linked type is met again within itself, where a circle of types closes."""
    return bool(kind(node)[1].get(_IN_ITSELF))


def has_circles(node: Any) -> bool:
    """Tell whether a linked type, or one that it is made of, is met again within itself."""
    return any(map(is_recursive, _types_in(node)))


def _types_in(node: Any) -> list[Any]:
    """Return a linked type and all types that it is made of, each once."""
    known: dict[int, Any] = {}
    rest = [node]
    while rest:
        each = rest.pop()
        rest += [] if id(each) in known else parts_of(each)
        known[id(each)] = each
    return [*known.values()]


def expanded_size(node: Any, known: dict[int, int]) -> int:
    """Count the types in a linked type, those of a name each time; a type in itself once.

    ``known`` takes the sizes of types, so that each is counted once.
    """
    if id(node) not in known:
        known[id(node)] = 1
        known[id(node)] = 1 + sum(expanded_size(each, known) for each in parts_of(node))
    return known[id(node)]


def has_endless_arrays(node: Any) -> bool:
    """Tell whether a few bytes can stand for any number of items, since an item takes none."""
    known: dict[int, bool] = {}
    arrays = (each for each in _types_in(node) if kind(each)[0] == "array")
    return any(_takes_no_bytes(parts_of(each)[0], known) for each in arrays)


def _takes_no_bytes(node: Any, known: dict[int, bool]) -> bool:
    word, found = kind(node)
    if word != "record":
        return word == "null" or found.get("size") == 0
    if id(node) not in known:
        known[id(node)] = True
        known[id(node)] = all(_takes_no_bytes(each, known) for each in parts_of(node))
    return known[id(node)]


def converter(node: Any, target: sql.DataType) -> Convert:
    """Return the conversion of a non-null value to the declared type."""
    if isinstance(target, sql.VariantType):
        return lambda value: _variant(node, value)
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
    by_branch = {_as_read(branch): converter(branch, target) for branch in branches}
    if len(branches) == 1 and kind(branches[0])[0] in _PYTHON:
        return by_branch.popitem()[1]

    def convert_branch(value: Any) -> Any:
        branch, value = _branch_of(value)
        return by_branch[branch](value)

    return convert_branch


def _as_read(branch: Any) -> type | str:
    """Return by what the values of a branch are known: by its name, or by Python's type."""
    word = kind(branch)[0]
    is_plain = word in _PYTHON and not _is_named_branch(branch)
    return _PYTHON[word] if is_plain else str(branch["name"])


def _branch_of(value: Any) -> tuple[type | str, Any]:
    """Return the branch of a union's value, as it is read, and the value itself."""
    if type(value) is not tuple:
        return type(value), value
    name, value = value
    return name, value[_VALUE] if _is_of_branch(name) else value


def _variant(node: Any, value: Any) -> str:
    with deeper_calls():
        return variant_text(as_json(node, value), "type_mismatch")


def as_json(node: Any, value: Any, levels: int = DEEPEST) -> Any:
    """Return a value as JSON has it, with texts for bytes and decimals.

    A union of several types is an object of one field, which has the name of its branch.

    Raises:
        BadBytesError: it is nested too deeply.
    """
    word, found = kind(node)
    if value is None:
        return None
    if word == "union":
        return _branch_as_json([each for each in node if each != "null"], value, levels)
    if _is_decimal(word, found):
        return decimal_text(value, int(found.get("scale", 0)), _VARIANT)
    if convert := _special(word, found, _TEXT):
        return convert(value)
    if word in {"float", "double"}:
        return real_as_json(value)
    if word not in {"record", "array", "map"}:
        return value
    if not levels:
        raise BadBytesError("malformed_avro", f"nested more than {DEEPEST} levels deep")
    if word == "record":
        return {n: as_json(each, value[n], levels - 1) for n, each in fields(node).items()}
    if word == "array":
        return [as_json(found["items"], each, levels - 1) for each in value]
    return {n: as_json(found["values"], each, levels - 1) for n, each in value.items()}


def _branch_as_json(branches: list[Any], value: Any, levels: int) -> Any:
    read_as, value = _branch_of(value)
    branch = next(each for each in branches if _as_read(each) == read_as)
    written = as_json(branch, value, levels)
    word, found = kind(branch)
    return written if len(branches) == 1 else {found["name"] if word in _NAMED else word: written}


def _source(word: str, found: Mapping[str, Any]) -> Source:
    logical = str(found.get(_LOGICAL, ""))
    if logical == "date" and word == "int":
        return Source("date")
    form, _, unit = logical.rpartition("-")
    if word == "long" and unit in _TICKS and form in {"timestamp", "local-timestamp"}:
        return Source(form.replace("-", "_"), _TICKS[unit])
    return _PLAIN[word]


def _is_decimal(word: str, found: Mapping[str, Any]) -> bool:
    is_of_bytes = word in {"bytes", "fixed"} and found.get(_LOGICAL) == "decimal"
    return is_of_bytes and found.get("precision", 0) > 0


def _special(word: str, found: Mapping[str, Any], target: sql.DataType) -> Convert | None:
    """Return the conversion of a type whose ``connect.name`` or scale says more than its word."""
    logical, name = found.get(_LOGICAL), found.get("connect.name")
    if _is_decimal(word, found):
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
