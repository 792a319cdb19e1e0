"""Types for the fields of a schema that comes with the records: Avro's, or Kafka Connect's; pure.

Whole numbers become BIGINT, so that a schema that widens them needs no other table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.formats.avro.types import fields, kind, logical_type
from oncelake.ingestion.operations.init.json_types import Guess, is_storable, name_trouble

_PLAIN: Final[Mapping[str, str]] = {
    "boolean": "BOOLEAN",
    **dict.fromkeys(("int", "long", "int8", "int16", "int32", "int64"), "BIGINT"),
    **dict.fromkeys(("float", "float32"), "FLOAT"),
    **dict.fromkeys(("double", "float64"), "DOUBLE"),
    **dict.fromkeys(("string", "enum"), "STRING"),
    **dict.fromkeys(("bytes", "fixed"), "BINARY"),
}

_LOGICAL: Final[Mapping[str, str]] = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
    "uuid": "STRING",
}
# What Kafka Connect and Debezium call a type, whatever it is encoded as.
_NAMED: Final[Mapping[str, str]] = {
    "io.debezium.time.Date": "DATE",
    "io.debezium.time.Timestamp": "TIMESTAMP_NTZ",
    "io.debezium.time.MicroTimestamp": "TIMESTAMP_NTZ",
    "io.debezium.time.ZonedTimestamp": "TIMESTAMP",
    "io.debezium.data.VariableScaleDecimal": "STRING",
    "org.apache.kafka.connect.data.Date": "DATE",
    "org.apache.kafka.connect.data.Timestamp": "TIMESTAMP_NTZ",
}
_CONNECT_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_NO_COLUMN: Final = "no column type holds all of its values"


def guess_avro_columns(record: Any) -> dict[str, Guess]:
    """Propose a type for each field of an expanded record type."""
    return {name: _named(name, _avro(node)) for name, node in fields(record).items()}


def guess_connect_columns(of_fields: Iterable[Mapping[str, Any]]) -> dict[str, Guess]:
    """Propose a type for each field of a struct, as Kafka Connect's converter describes it."""
    return {name: _named(name, _connect(each)) for name, each in _by_field(of_fields).items()}


def _by_field(of_fields: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {str(each["field"]): each for each in of_fields if "field" in each}


def _named(name: str, type_: SqlType | None) -> Guess:
    if trouble := name_trouble(name):
        return Guess(None, trouble)
    return Guess(type_) if type_ else Guess(None, _NO_COLUMN)


def _avro(node: Any) -> SqlType | None:
    word, found = kind(node)
    logical, name = logical_type(node), found.get("connect.name")
    if word == "union":
        branches = {_avro(each) for each in node if each != "null"}
        return branches.pop() if len(branches) == 1 else None
    if logical == "decimal":
        return _decimal(int(found.get("precision", 0)), int(found.get("scale", 0)))
    if logical in _LOGICAL or name in _NAMED:
        return SqlType(word=_LOGICAL.get(logical) or _NAMED[str(name)])
    if word == "record":
        return _struct({n: _avro(each) for n, each in fields(node).items()})
    if word == "array":
        return _nested("ARRAY", element=_avro(found["items"]))
    if word == "map":
        return _nested("MAP", key=SqlType(word="STRING"), value=_avro(found["values"]))
    return _scalar(word)


def _connect(schema: Mapping[str, Any]) -> SqlType | None:
    word, name = str(schema.get("type")), str(schema.get("name"))
    if name in _NAMED:
        return SqlType(word=_NAMED[name])
    if name == _CONNECT_DECIMAL:
        of_decimal = schema.get("parameters", {})
        precision = int(of_decimal.get("connect.decimal.precision", 38))
        return _decimal(precision, int(of_decimal.get("scale", 0)))
    if word == "struct":
        parts = _by_field(schema.get("fields", ()))
        return _struct({name: _connect(each) for name, each in parts.items()})
    if word == "array":
        return _nested("ARRAY", element=_connect(schema.get("items", {})))
    if word == "map":
        key, value = (_connect(schema.get(part, {})) for part in ("keys", "values"))
        is_text = key is not None and key.word == "STRING"
        return _nested("MAP", key=key if is_text else None, value=value)
    return _scalar(word)


def _scalar(word: str) -> SqlType | None:
    return SqlType(word=_PLAIN[word]) if word in _PLAIN else None


def _decimal(precision: int, scale: int) -> SqlType | None:
    is_held = 0 <= scale <= precision <= 38 and precision > 0
    return SqlType(word="DECIMAL", precision=precision, scale=scale) if is_held else None


def _struct(parts: Mapping[str, SqlType | None]) -> SqlType | None:
    """Return the STRUCT of those fields that have a type."""
    struct = SqlType(word="STRUCT", parts={name: part for name, part in parts.items() if part})
    return struct if struct.parts and is_storable(struct) else None


def _nested(word: str, **parts: SqlType | None) -> SqlType | None:
    known = {name: part for name, part in parts.items() if part}
    return SqlType(word=word, parts=known) if len(known) == len(parts) else None
