"""Avro, decoded by Apache's own library; the meaning of its values is decided here.

The writer's schema alone decodes a record. What the library would decide itself is removed from
the schema first: logical types, which are ours to understand, and defaults, which are for readers.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from io import BytesIO
from typing import Any, Final

from avro.constants import VALID_TYPES
from avro.errors import AvroException
from avro.io import BinaryDecoder, DatumReader
from avro.name import Names
from avro.schema import Schema, UnionSchema, make_avsc_object

from oncelake.ingestion.declaration.formats import AvroOptions
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import counted
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.storage.processes import deeper_calls
from oncelake.ingestion.verify.decode import (
    Decode,
    DecodedRecord,
    Expected,
    Name,
    ReadFramed,
    coerce,
    single_object,
)
from oncelake.ingestion.verify.decode.coerce import (
    BROKEN,
    TICKS,
    BadRecordError,
    Read,
    UnknownSchemaError,
    refuse,
    undeclared,
)

CLOCKS: Final = {"Timestamp": 10**3, "MicroTimestamp": 10**6, "NanoTimestamp": 10**9}
_KEPT: Final = (*("name", "namespace", "size", "symbols"), *("precision", "scale", "connect.name"))
LOGICAL: Final = "logical"
_MOST_TYPES: Final = 10_000
# What the types of columns call the items of lists, and the values of maps.
_PART: Final = {"ARRAY": "element", "MAP": "value"}


def reading(expected: Expected) -> Decode:
    """Return what reads one framed Avro datum."""
    wanted = expected.row.parts
    options = expected.options

    def read_by(schema: WriterSchema) -> Decode:
        read = opened(schema, wanted, is_key=expected.is_key)
        paths = undeclared(parse_schema(schema), expected.row, inside)
        return lambda payload, *_: expected.checked(read(payload), paths)

    if isinstance(options, AvroOptions) and options.framing == "single_object":
        schemas = {single_object.fingerprint(text): text for text in options.schemas}

        @cache
        def reader(fingerprint: bytes) -> Decode:
            if fingerprint not in schemas:
                raise UnknownSchemaError(f"no schema has the fingerprint {fingerprint.hex()}")
            schema = WriterSchema(id=0, type="AVRO", text=schemas[fingerprint])
            return read_by(schema)

        return single_object.reading(reader)
    return ReadFramed(expected, "AVRO", read_by, naming)


def naming(schema: WriterSchema) -> Name:
    """Return what names the records of a schema: by the full name that its text gives them."""
    try:
        node = json.loads(schema.text)
    except (ValueError, RecursionError):
        node = None
    while isinstance(node, dict) and isinstance(node.get("type"), dict):
        node = node["type"]
    if not isinstance(node, dict) or node.get("type") not in {"record", "error"}:
        return lambda _: None
    name, space = str(node.get("name")), node.get("namespace")
    full = name if "." in name or not space else f"{space}.{name}"
    return lambda _: full


def opened(schema: WriterSchema, wanted: Mapping[str, SqlType], *, is_key: bool) -> Decode:
    """Return what reads payloads of one schema."""
    node = parse_schema(schema)
    if node.type == "record":
        take = coerce.fields(fields_of(node), wanted, fit)
    elif is_key and len(wanted) == 1:
        bare = fit(node, *wanted.values())
        take = lambda value: [None if value is None else bare(value)]  # noqa: E731
    else:
        raise BadRecordError("a record was expected")
    read = datum_reader(node)
    return lambda payload, *_: DecodedRecord(values=tuple(take(read(payload))))


def parse_schema(schema: WriterSchema) -> Schema:
    """Parse a schema, and those that it refers to; refuse one that explodes."""
    names = Names(validate_names=False)
    try:
        for text in (*(text for _, text in schema.references), schema.text):
            parsed = make_avsc_object(_undecorated(json.loads(text)), names, False, False)
        _refuse_explosion(parsed)
    except (AvroException, *BROKEN) as error:
        raise BadRecordError(f"the schema cannot be understood: {error!r:.200}") from None
    return parsed


def _undecorated(schema: Any) -> Any:
    """Return a schema whose logical types are properties that the library does not know."""
    if isinstance(schema, list):
        return [_undecorated(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    type_ = schema["type"]
    if not isinstance(type_, str) or type_ not in VALID_TYPES:
        return _undecorated(type_)
    kept = {name: schema[name] for name in _KEPT if name in schema}
    inner = {name: _undecorated(schema[name]) for name in ("items", "values") if name in schema}
    if "fields" in schema:
        fields = ((_text(field["name"]), field["type"]) for field in schema["fields"])
        inner["fields"] = [{"name": name, "type": _undecorated(each)} for name, each in fields]
    type_ = "record" if type_ == "error" else type_
    return {"type": type_, LOGICAL: schema.get("logicalType"), **kept, **inner}


def _text(name: str) -> str:
    """Return a name that is text; half of a surrogate pair is none."""
    return name.encode().decode()


def _refuse_explosion(node: Schema) -> None:
    known: dict[int, bool] = {}
    arrays = (each for each in _types_in(node) if each.type == "array")
    is_endless = any(_is_of_no_bytes(each.items, known) for each in arrays)
    if is_endless or _size(node, {}) > _MOST_TYPES:
        raise ValueError("it contains too many types, or arrays of nothing")


def _size(node: Any, known: dict[int, int]) -> int:
    """Count the types in a type, those of a name each time, and the type itself once."""
    if id(node) not in known:
        known[id(node)] = 1
        known[id(node)] = 1 + sum(_size(each, known) for each in _parts_of(node))
    return known[id(node)]


def _types_in(node: Any) -> list[Any]:
    """Return a type and all types that it is made of, each once."""
    known: dict[int, Any] = {}
    rest = [node]
    while rest:
        each = rest.pop()
        rest += [] if id(each) in known else _parts_of(each)
        known[id(each)] = each
    return [*known.values()]


def _is_in_itself(node: Any, around: frozenset[int], known: set[int]) -> bool:
    """Tell whether a type, or one that it is made of, contains itself."""
    if id(node) in around or id(node) in known:
        return id(node) in around
    known.add(id(node))
    return any(_is_in_itself(each, around | {id(node)}, known) for each in _parts_of(node))


def _is_of_no_bytes(node: Any, known: dict[int, bool]) -> bool:
    if node.type != "record":
        return bool(node.type == "null" or (node.type == "fixed" and node.size == 0))
    if id(node) not in known:
        known[id(node)] = True
        known[id(node)] = all(_is_of_no_bytes(e, known) for e in fields_of(node).values())
    return known[id(node)]


def _parts_of(node: Any) -> list[Any]:
    return [*fields_of(node).values(), *branches_of(node), *_items_of(node)]


def fields_of(node: Any) -> dict[str, Any]:
    """Return the types of a record's fields by name; none of any other type."""
    return {field.name: field.type for field in node.fields} if node.type == "record" else {}


def branches_of(node: Any) -> list[Any]:
    """Return the branches of a union; none of any other type."""
    return list(node.schemas) if node.type == "union" else []


def inside(node: Any, word: str) -> Iterator[dict[str, Any]]:
    """Yield the parts of a type, of a union those of each branch; see ``coerce.undeclared``."""
    if node.type == "union":
        for branch in node.schemas:
            yield from inside(branch, word)
    elif word == "STRUCT":
        yield fields_of(node)
    elif node.type.upper() == word and word in _PART:
        yield {_PART[word]: _items_of(node)[0]}


def _items_of(node: Any) -> list[Any]:
    return {"array": lambda: [node.items], "map": lambda: [node.values]}.get(node.type, list)()


def datum_reader(node: Schema) -> Callable[[bytes], Any]:
    """Return what reads one value of a type; one of a type that contains itself has a bound."""
    if not _is_in_itself(node, frozenset(), set()):
        return lambda payload: _read_datum(node, payload)

    def read(payload: bytes) -> Any:
        with deeper_calls():
            value = _read_datum(node, payload)
            _as_json(node, value)
        return value

    return read


def _read_datum(node: Schema, payload: bytes) -> Any:
    """Read one value that takes up all of the bytes; of a union, its branch's number beside it."""
    decoder = _StrictDecoder(BytesIO(payload))
    try:
        value = _BranchReader(node).read(decoder)
    except (AvroException, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadRecordError(f"not Avro of its schema: {error}".partition("\n")[0]) from None
    if left_over := decoder.bytes_remaining():
        raise BadRecordError(counted(left_over, "byte is left over", "bytes are left over"))
    return value


class _StrictDecoder(BinaryDecoder):
    """Refuses a boolean that is neither 0 nor 1, and an int of more than 32 bits."""

    def read_int(self) -> int:
        number = self.read_long()
        return number if -(2**31) <= number < 2**31 else refuse(number)

    def read_boolean(self) -> bool:
        byte = self.read(1)[0]
        return bool(byte) if byte < 2 else refuse(byte)


class _BranchReader(DatumReader):
    """Keeps the number of a union's branch, by which its value is understood."""

    def read_union(
        self, writers_schema: UnionSchema, readers_schema: UnionSchema, decoder: BinaryDecoder
    ) -> tuple[int, Any] | None:
        at = decoder.read_long()
        if not 0 <= at < len(writers_schema.schemas):
            refuse(at)
        branch = writers_schema.schemas[at]
        value = self.read_data(branch, branch, decoder)
        return None if branch.type == "null" else (at, value)


def fit(node: Any, type_: SqlType) -> Read:
    """Return what takes a value that is not null as a declared type."""
    if type_.word in coerce.WRITERS:
        return lambda value: _variant(node, value, type_)
    if node.type == "union":
        branches = [fit(each, type_) for each in node.schemas]
        return lambda value: branches[value[0]](value[1])
    if read := _of_connect(node, type_):
        return read
    if node.type == "record":
        return coerce.nested("STRUCT", fields_of(node), type_, fit)
    if node.type in {"array", "map"}:
        return coerce.nested(node.type.upper(), _items_of(node)[0], type_, fit)
    return _scalar(node, type_) or coerce.never(node.type, type_)


def _variant(node: Any, value: Any, type_: SqlType) -> str:
    with deeper_calls():
        return coerce.variant_of(_as_json(node, value), type_)


def _as_json(node: Any, value: Any, levels: int = coerce.DEEPEST) -> Any:
    """Return a value as JSON has it: bytes and decimals as text, a union by its branch's name."""
    if value is None:
        return None
    if node.type == "union":
        branch = node.schemas[value[0]]
        found, names = _as_json(branch, value[1], levels), [e.type for e in node.schemas]
        is_only = len(names) - names.count("null") == 1
        return found if is_only else {getattr(branch, "fullname", branch.type): found}
    if node.type in {"bytes", "fixed", "float", "double"} or _has_scale(node):
        return _leaf_as_json(node, value)
    if node.type not in {"record", "array", "map"}:
        return value
    if not levels:
        raise BadRecordError("nested too deeply")
    if node.type == "record":
        return {n: _as_json(each, value[n], levels - 1) for n, each in fields_of(node).items()}
    item = _items_of(node)[0]
    if node.type == "array":
        return [_as_json(item, each, levels - 1) for each in value]
    return {name: _as_json(item, each, levels - 1) for name, each in value.items()}


def _has_scale(node: Any) -> bool:
    return str(node.get_prop("connect.name")) == "io.debezium.data.VariableScaleDecimal"


def _leaf_as_json(node: Any, value: Any) -> Any:
    if node.type in {"float", "double"}:
        return coerce.real_in_json(value)
    if node.type == "record":
        return coerce.unscaled_text(value["value"], value["scale"])
    logical = str(node.get_prop(LOGICAL))
    if logical == "decimal" and int(node.get_prop("precision") or 0) > 0:
        return coerce.unscaled_text(value, int(node.get_prop("scale") or 0))
    if logical == "uuid" and node.type == "fixed":
        return str(uuid.UUID(bytes=value)) if len(value) == 16 else refuse(value)
    return base64.b64encode(value).decode()


def _of_connect(node: Any, type_: SqlType) -> Read | None:
    """Take a type to which Kafka Connect has given a name of its own."""
    name = str(node.get_prop("connect.name")).removeprefix("io.debezium.").removeprefix("time.")
    if node.type == "long" and name in CLOCKS and type_.word in {"TIMESTAMP", "TIMESTAMP_NTZ"}:
        return coerce.moment(type_, CLOCKS[name], zoned=type_.word == "TIMESTAMP")
    if node.type == "int" and name == "Date" and type_.word == "DATE":
        return coerce.day(type_)
    if node.type == "string" and name == "ZonedTimestamp" and type_.word == "TIMESTAMP":
        return lambda value: coerce.iso_moment(value, zoned=True)
    if node.type == "record" and name == "data.VariableScaleDecimal" and type_.word == "DECIMAL":
        return lambda value: coerce.unscaled(value["value"], value["scale"], type_)
    if node.type == "record" and name == "data.VariableScaleDecimal" and type_.word == "STRING":
        return lambda value: coerce.unscaled_text(value["value"], value["scale"])
    return None


def _scalar(node: Any, type_: SqlType) -> Read | None:
    word, logical = node.type, str(node.get_prop(LOGICAL))
    if word in {"int", "long"}:
        kind, _, unit = logical.rpartition("-")
        if word == "long" and kind in {"timestamp", "local-timestamp"} and unit in TICKS:
            return coerce.moment(type_, TICKS[unit], zoned=kind == "timestamp")
        return coerce.day(type_) if (word, logical) == ("int", "date") else coerce.whole(type_)
    if word in {"float", "double"}:
        return coerce.real(type_)
    if word in {"bytes", "fixed"}:
        return _octets(node, logical, type_)
    if word in {"string", "enum"}:
        return coerce.text(type_)
    return coerce.plain(type_, "BOOLEAN") if word == "boolean" else None


def _octets(node: Any, logical: str, type_: SqlType) -> Read | None:
    if logical == "decimal" and int(node.get_prop("precision") or 0) > 0:
        take = coerce.scaled(type_, int(node.get_prop("scale") or 0))
        return take and (lambda value: take(int.from_bytes(value, signed=True)))
    if logical == "uuid" and node.type == "fixed" and type_.word == "STRING":
        return lambda value: str(uuid.UUID(bytes=value)) if len(value) == 16 else refuse(value)
    return coerce.plain(type_, "BINARY")
