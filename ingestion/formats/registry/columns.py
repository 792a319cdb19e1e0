"""Column types for the fields of a schema that comes with the records.

Avro's, Protobuf's, JSON Schema's, and Kafka Connect's own. A type holds every value of its field,
and is the narrowest that does; a field without one gets ``None``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor as Field

from oncelake.ingestion.declaration.formats import DebeziumOptions
from oncelake.ingestion.declaration.parts import FormatSpec
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import counted
from oncelake.ingestion.formats import avro, json_schema, protobuf
from oncelake.ingestion.formats.avro.types import (
    fields,
    is_record,
    is_recursive,
    kind,
    logical_type,
    record_in,
)
from oncelake.ingestion.formats.decoder import BadBytesError
from oncelake.ingestion.kafka.schema_registry import WriterSchema

Types = Mapping[str, SqlType | None]

_PLAIN: Final[Mapping[str, str]] = {
    "boolean": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    **dict.fromkeys(("int", "int32"), "INT"),
    **dict.fromkeys(("long", "int64"), "BIGINT"),
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
# The types that a logical type may describe; on any other it says nothing, as Avro has it.
_DESCRIBED: Final[Mapping[str, frozenset[str]]] = {
    "date": frozenset({"int"}),
    "timestamp": frozenset({"long"}),
    "local-timestamp": frozenset({"long"}),
    "decimal": frozenset({"bytes", "fixed"}),
    "uuid": frozenset({"string", "fixed"}),
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
_FORMATS: Final = {"PROTOBUF": "protobuf", "JSON": "json_schema"}
_CONNECT_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_STRING: Final = SqlType(word="STRING")
_PROTOBUF: Final[Mapping[int, str]] = {
    Field.CPPTYPE_BOOL: "BOOLEAN",
    Field.CPPTYPE_INT32: "INT",
    Field.CPPTYPE_INT64: "BIGINT",
    Field.CPPTYPE_UINT32: "BIGINT",
    Field.CPPTYPE_FLOAT: "FLOAT",
    Field.CPPTYPE_DOUBLE: "DOUBLE",
    Field.CPPTYPE_ENUM: "STRING",
}
_JSON: Final[Mapping[str, str]] = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
_JSON_TEXTS: Final[Mapping[str, str]] = {"date": "DATE", "date-time": "TIMESTAMP"}
# Any value of JSON.
_VARIANT: Final = SqlType(word="VARIANT")


def column_types(schema: WriterSchema, format_: FormatSpec, record: Sequence[str] = ()) -> Types:
    """Return the types of the fields of a registry's schema, by name, in its order.

    Args:
        schema: The schema; one of Protobuf as it is prepared for executors.
        format_: The format of the records.
        record: Full names of the record types that are meant; none where any is.

    Raises:
        BadBytesError: the schema cannot be used, or is not one of the format.
    """
    if schema.type == "JSON":
        root = json.loads(schema.text)
        is_meant = not record or root.get("title") in record
        return _json_properties(root, _Whole(root), ()) if is_meant else {}
    if schema.type == "PROTOBUF":
        message = protobuf.message_of(schema, record)
        return {} if message is None else _messages(message.fields, _Whole())
    if record and avro.record_name(schema)(b"") not in record:
        return {}
    root = avro.parsed(schema)[1]
    if isinstance(format_.options, DebeziumOptions):
        root = record_in(fields(root).get("after"))
    return avro_types(root) if is_record(root) else {}


def record_name(schema: WriterSchema) -> str:
    """Return the full name of a schema's first record type; empty where it has none."""
    if schema.type == "PROTOBUF":
        message = protobuf.message_of(schema)
        return "" if message is None else str(message.full_name)
    named = json_schema.title if schema.type == "JSON" else avro.record_name
    return named(schema)(b"") or ""


def key_names(schema: WriterSchema) -> tuple[str, ...]:
    """Return the names of the fields of a key's schema; none where it is no record.

    Raises:
        BadBytesError: the schema cannot be used.
    """
    if schema.type == "AVRO":
        root = avro.parsed(schema)[1]
        return tuple(fields(root)) if is_record(root) else ()
    return tuple(column_types(schema, FormatSpec(type=_FORMATS[schema.type])))


def avro_types(record: Any) -> Types:
    """Return the types of the fields of an expanded record type."""
    return {
        name: None if node in ("null", ["null"]) else _avro(node)
        for name, node in fields(record).items()
    }


def embedded_types(schema: Any) -> Types:
    """Return the types of the columns of a row, by the schema in an envelope of Debezium's."""
    return connect_types(row_fields(schema))


def struct_types(schema: Any) -> Types:
    """Return the types of the fields of a struct, such as a key; none of any other schema."""
    return connect_types(schema.get("fields", ()) if isinstance(schema, dict) else ())


def connect_types(of_fields: Iterable[Mapping[str, Any]]) -> Types:
    """Return the types of the fields of a struct, as Kafka Connect's converter describes it."""
    return {name: _connect(each) for name, each in _by_field(of_fields).items()}


def row_fields(schema: Any) -> Sequence[Mapping[str, Any]]:
    """Return the fields of a row, as the schema of Debezium's envelope describes them."""
    sides = schema.get("fields") if isinstance(schema, dict) else None
    of_side = {each.get("field"): each.get("fields", ()) for each in sides or ()}
    return of_side.get("after") or of_side.get("before") or ()


def _by_field(of_fields: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {str(each["field"]): each for each in of_fields if "field" in each}


def _avro(node: Any) -> SqlType:
    """Return the type of a node; a VARIANT where no other holds all of its values."""
    return _avro_type(node) or _VARIANT


def _avro_type(node: Any) -> SqlType | None:
    word, found = kind(node)
    logical, name = _logical_type(node), found.get("connect.name")
    if word == "union":
        return _union([_avro(each) for each in node if each != "null"])
    if is_recursive(node):
        return None
    if logical == "decimal":
        return _decimal(int(found.get("precision", 0)), int(found.get("scale", 0)))
    if logical in _LOGICAL or name in _NAMED:
        return SqlType(word=_LOGICAL.get(logical) or _NAMED[str(name)])
    if word == "record":
        return _struct({n: _avro(each) for n, each in fields(node).items()})
    if word == "array":
        return _nested("ARRAY", element=_avro(found["items"]))
    if word == "map":
        return _nested("MAP", key=_STRING, value=_avro(found["values"]))
    return _scalar(str(found.get("connect.type", word)))


def _logical_type(node: Any) -> str:
    """Return the logical type of an expanded type; empty where it describes another type."""
    logical = logical_type(node)
    described = _DESCRIBED.get(re.sub("-(milli|micro|nano)s$", "", logical), frozenset())
    return logical if kind(node)[0] in described else ""


def _union(branches: Sequence[SqlType | None]) -> SqlType | None:
    """Return the type that holds the values of each branch as what they are."""
    known = [each for each in branches if each is not None]
    if not known or len(known) < len(branches):
        return None
    of_all: SqlType | None = known[0]
    for each in known[1:]:
        of_all = of_all and of_all.united_with(each)
    return of_all


def _connect(schema: Mapping[str, Any]) -> SqlType | None:
    word, name = str(schema.get("type")), str(schema.get("name"))
    if name in _NAMED:
        return SqlType(word=_NAMED[name])
    if name == _CONNECT_DECIMAL:
        return _decimal_of(schema.get("parameters", {}))
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


class _Whole:
    """A schema as a whole: what references lead to, and how many types it may still have."""

    def __init__(self, root: Any = None) -> None:
        self.root = root
        self._left = avro.MOST_TYPES

    def count(self) -> None:
        """Count a type; a schema that names each of its parts twice has them without end."""
        self._left -= 1
        if self._left < 0:
            types = counted(avro.MOST_TYPES, "type")
            raise BadBytesError("unusable_schema", f"more than {types} once names are expanded")


def _messages(of_fields: Iterable[Any], whole: _Whole) -> Types:
    return {each.name: _protobuf(each, whole) for each in of_fields}


def _protobuf(field: Any, whole: _Whole) -> SqlType:
    """Return the type of a field; a VARIANT where no other holds all of its values."""
    whole.count()
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = (message.fields_by_name[name] for name in ("key", "value"))
        is_text = key.type == Field.TYPE_STRING
        parts = {"key": _STRING, "value": _protobuf(value, whole)}
        return SqlType(word="MAP", parts=parts) if is_text else _VARIANT
    item = _protobuf_item(field, whole) or _VARIANT
    return SqlType(word="ARRAY", parts={"element": item}) if field.is_repeated else item


def _protobuf_item(field: Any, whole: _Whole) -> SqlType | None:
    message = field.message_type
    if message is None:
        if field.cpp_type == Field.CPPTYPE_UINT64:
            return _decimal(20, 0)
        is_binary = field.type == Field.TYPE_BYTES
        return SqlType(word=_PROTOBUF.get(field.cpp_type, "BINARY" if is_binary else "STRING"))
    if message.full_name == "google.protobuf.Timestamp":
        return SqlType(word="TIMESTAMP")
    if message.full_name in protobuf.WRAPPERS:
        return _protobuf_item(message.fields_by_name["value"], whole)
    return None if protobuf.is_recursive(message) else _struct(_messages(message.fields, whole))


def _json_properties(schema: Any, whole: _Whole, around: tuple[str, ...]) -> Types:
    found = schema.get("properties", {}) if isinstance(schema, dict) else {}
    return {name: _json(each, whole, around) for name, each in found.items()}


def _json(schema: Any, whole: _Whole, around: tuple[str, ...]) -> SqlType:
    """Return the type of what a schema allows; a VARIANT where that may be of several."""
    whole.count()
    schema, around = _resolved(schema, whole.root, around)
    if not isinstance(schema, dict):
        return _VARIANT
    said: Any = schema.get("type", ())
    words = {said} if isinstance(said, str) else {*said} - {"null"}
    branches: Any = schema.get("oneOf", schema.get("anyOf", ()))
    options = [each for each in branches if each != _NULL]
    if not words and len(options) == 1:
        return _json(options[0], whole, around)
    if words == {"string"}:
        return SqlType(word=_JSON_TEXTS.get(str(schema.get("format")), "STRING"))
    if words == {"array"} and isinstance(schema.get("items"), dict):
        return SqlType(word="ARRAY", parts={"element": _json(schema["items"], whole, around)})
    if words == {"object"} and (struct := _struct(_json_properties(schema, whole, around))):
        return struct
    if words == {"object"} and isinstance(schema.get("additionalProperties"), dict):
        value = _json(schema["additionalProperties"], whole, around)
        return SqlType(word="MAP", parts={"key": _STRING, "value": value})
    if words == {"number"} and schema.get("title") == _CONNECT_DECIMAL:
        return _decimal_of(schema.get("connect.parameters")) or SqlType(word="DOUBLE")
    return SqlType(word=_JSON[words.pop()]) if len(words) == 1 and words <= {*_JSON} else _VARIANT


_NULL: Final = {"type": "null"}


def _resolved(schema: Any, root: Any, around: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """Follow a reference within the schema; what leads to itself, or out of it, has no type."""
    while isinstance(schema, dict) and "$ref" in schema:
        path = str(schema["$ref"])
        if path in around or not path.startswith("#"):
            return None, around
        around, schema = (*around, path), root
        with suppress(LookupError, TypeError):
            for name in path.removeprefix("#").split("/")[1:]:
                schema = schema[name]
            continue
        return None, around
    return schema, around


def _scalar(word: str) -> SqlType | None:
    return SqlType(word=_PLAIN[word]) if word in _PLAIN else None


def _decimal(precision: int, scale: int) -> SqlType | None:
    is_held = 0 <= scale <= precision <= 38 and precision > 0
    return SqlType(word="DECIMAL", precision=precision, scale=scale) if is_held else None


def _decimal_of(parameters: Any) -> SqlType | None:
    """Return the type of Kafka Connect's Decimal; ``None`` where no type has its digits."""
    try:
        precision = int(parameters.get("connect.decimal.precision", 38))
        return _decimal(precision, int(parameters.get("scale", 0)))
    except (AttributeError, TypeError, ValueError):
        return None


def _struct(parts: Types) -> SqlType | None:
    """Return the STRUCT of fields; ``None`` where one of them has no type, or there is none."""
    known = {name: part for name, part in parts.items() if part is not None}
    return SqlType(word="STRUCT", parts=known) if known and len(known) == len(parts) else None


def _nested(word: str, **parts: SqlType | None) -> SqlType | None:
    known = {name: part for name, part in parts.items() if part}
    return SqlType(word=word, parts=known) if len(known) == len(parts) else None
