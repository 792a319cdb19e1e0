"""Protobuf: each record is decoded with its writer's schema; fields are matched by name.

A registry may hold ``.proto`` text or compiled files: the driver compiles them, and executors need
no compiler. The files that every registry knows by itself are known here, too. An absent field
without presence has its default, as in proto3; every other absent field is null.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from oncelake.ingestion.formats.coerce import (
    Convert,
    MisfitError,
    Source,
    array_of,
    columns_of,
    exact,
    exact_ticks,
    map_of,
    mismatch,
    struct_of,
)
from oncelake.ingestion.formats.decoder import (
    BadBytesError,
    Decode,
    Decoded,
    Encoded,
    Read,
    text_of,
)
from oncelake.ingestion.formats.registry import wire_format
from oncelake.ingestion.formats.registry.wire_format import FramedDecoder, message_path, varint
from oncelake.ingestion.formats.variant import real_as_json, variant_text
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.storage.processes import deeper_calls

REASONS: Final[dict[str, str]] = {
    **wire_format.REASONS,
    "malformed_protobuf": "the bytes are not what the schema says, or name no message of it",
}
_MAIN: Final = "oncelake_main.proto"
# Packages whose modules have compiled files that no schema needs to bring along.
_KNOWN: Final = (
    "google.type",
    "confluent_kafka.schema_registry.confluent",
    "confluent_kafka.schema_registry.confluent.type",
)
# Of protoc: what its library logs about itself.
_LOGGED: Final = re.compile(r"[IWEF]\d{4} |WARNING: All log messages")
_MOST_SAID: Final = 400
_KINDS: Final = {
    Field.CPPTYPE_BOOL: "boolean",
    Field.CPPTYPE_INT32: "integer",
    Field.CPPTYPE_INT64: "integer",
    Field.CPPTYPE_UINT32: "integer",
    Field.CPPTYPE_UINT64: "integer",
    Field.CPPTYPE_FLOAT: "float",
    Field.CPPTYPE_DOUBLE: "double",
    Field.CPPTYPE_STRING: "string",
}
_NANOS: Final = 10**9
# Messages that stand for JSON, of one field each.
_OF_JSON: Final = frozenset(f"google.protobuf.{each}" for each in ("Struct", "Value", "ListValue"))
WRAPPERS: Final = frozenset(
    f"google.protobuf.{each}Value"
    for each in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)


def opened(encoded: Encoded) -> Decode:
    """Decode each value with its writer's schema, as any of its messages."""
    name = partial(full_name, in_glue=encoded.in_glue)
    return FramedDecoder(encoded, "PROTOBUF", _Messages, name=name)


def full_name(schema: WriterSchema, *, in_glue: bool = False) -> Callable[[bytes], str]:
    """Return what names the message that a payload of a prepared schema is."""
    find = _finder(schema, in_glue=in_glue)
    return lambda payload: str(find(payload)[0].full_name)


class _Messages:
    """Reads the payloads of one schema; opens each of its messages once."""

    def __init__(self, schema: WriterSchema, encoded: Encoded) -> None:
        self._encoded, self._reader = encoded, cache(self._opened)
        self._find = _finder(schema, in_glue=encoded.in_glue)

    def __call__(self, payload: bytes) -> Decoded:
        message, rest = self._find(payload)
        return self._reader(message)(rest)

    def _opened(self, message: Any) -> Read:
        make = message_factory.GetMessageClass(message)
        to_row = columns_of(_nodes(message), self._encoded.schema, _converter)
        extra = tuple(_undeclared(message, self._encoded.schema))

        def read(payload: bytes) -> Decoded:
            try:
                found = make.FromString(payload)
            except DecodeError as error:
                raise BadBytesError("malformed_protobuf", f"{error!s:.200}") from None
            return Decoded(to_row(_View(found)), [*extra, *_unknown(found)])

        return read


def message_of(schema: WriterSchema, record: Sequence[str] = ()) -> Any:
    """Return the descriptor of the first message of a prepared schema that is meant, or ``None``.

    Raises:
        BadBytesError: the schema cannot be used.
    """
    main, in_order = _main_file(schema)
    if not record:
        return main.message_types_by_name[in_order[0]] if in_order else None
    for name in record:
        with suppress(KeyError):
            return main.pool.FindMessageTypeByName(name)
    return None


def _finder(schema: WriterSchema, *, in_glue: bool) -> Callable[[bytes], tuple[Any, bytes]]:
    """Return what finds the message that a payload of a prepared schema is, and its bytes."""
    main, in_order = _main_file(schema)
    messages = [main.message_types_by_name[name] for name in in_order]
    if in_glue:
        # Its serializers count all of them.
        messages = sorted(_all(messages), key=lambda each: str(each.full_name))

    def find(payload: bytes) -> tuple[Any, bytes]:
        if not in_glue:
            path, rest = message_path(payload)
        else:
            number, at = varint(payload, 0)
            path, rest = (number,), payload[at:]
        try:
            message = messages[path[0]]
            for index in path[1:]:
                message = message.nested_types[index]
        except IndexError:
            raise BadBytesError("malformed_protobuf", f"no message at {list(path)}") from None
        return message, rest

    return find


def _all(messages: Iterable[Any]) -> Iterator[Any]:
    """Yield messages, and those in them."""
    for each in messages:
        yield each
        yield from _all(each.nested_types)


def _main_file(schema: WriterSchema) -> tuple[Any, list[str]]:
    """Return the descriptor of the main file of a prepared schema, and its messages in order."""
    if schema.problem:
        raise BadBytesError("unusable_schema", schema.problem)
    try:
        found = FileDescriptorSet.FromString(base64.b64decode(schema.text))
        pool = descriptor_pool.DescriptorPool()
        for each in found.file:
            pool.Add(each)
        main = pool.FindFileByName(found.file[-1].name)
    except (DecodeError, TypeError, KeyError) as error:
        raise BadBytesError("unusable_schema", f"{error!s:.200}") from None
    return main, [each.name for each in found.file[-1].message_type]


def _unknown(message: Any) -> list[str]:
    """Return the fields that the schema does not have, by number: ``#9``."""
    found: Mapping[int, None] = dict.fromkeys(e.field_number for e in UnknownFieldSet(message))
    # What it has may be among them, as an unknown value of an enum is.
    return [f"#{number}" for number in found if number not in message.DESCRIPTOR.fields_by_number]


def _undeclared(message: Any, target: DataType, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of messages for which the STRUCT in their place has none."""
    if message is None or not isinstance(target, StructType):
        return
    for field in message.fields:
        at = f"{path}.{field.name}" if path else field.name
        if field.name in target.names:
            yield from _undeclared(*_inside(field, target[field.name].dataType, at))
        else:
            yield at


def _inside(field: Any, target: DataType, path: str) -> tuple[Any, DataType, str]:
    """Return the message that one value of a field is, if it is one, its type, and its path."""
    inner = field.message_type
    if isinstance(target, MapType) and inner is not None and inner.GetOptions().map_entry:
        return inner.fields_by_name["value"].message_type, target.valueType, f"{path}{{}}"
    if isinstance(target, ArrayType) and field.is_repeated:
        return inner, target.elementType, f"{path}[]"
    return inner, target, path


def is_recursive(message: Any) -> bool:
    """Tell whether a message contains itself."""
    known: set[str] = set()
    rest = [message]
    while rest:
        inner = [each.message_type for each in rest.pop().fields if each.message_type is not None]
        rest += (each for each in inner if each.full_name not in known)
        known |= {each.full_name for each in inner}
    return message.full_name in known


class _Node(NamedTuple):
    """A field, or one item of a repeated field."""

    field: Any
    is_item: bool = False


class _View(NamedTuple):
    """A message as a mapping by field name; an absent field with presence is null."""

    message: Any

    def get(self, name: str) -> Any:
        field = self.message.DESCRIPTOR.fields_by_name.get(name)
        if field is None or (field.has_presence and not self.message.HasField(name)):
            return None
        return getattr(self.message, name)


def _nodes(message: Any) -> dict[str, _Node]:
    return {each.name: _Node(each) for each in message.fields}


def _converter(node: _Node, target: DataType) -> Convert:
    field = node.field
    if isinstance(target, VariantType):
        return lambda value: _variant(node, value)
    if field.is_repeated and not node.is_item:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            return _map(entry, target)
        return array_of(_Node(field, is_item=True), target, _converter)
    if field.cpp_type == Field.CPPTYPE_MESSAGE:
        return _message(field.message_type, target)
    if field.cpp_type == Field.CPPTYPE_ENUM:
        return _enum(field.enum_type, target)
    if field.type == Field.TYPE_BYTES:
        return exact(Source("bytes"), target)
    convert = exact(Source(_KINDS[field.cpp_type]), target)
    return (lambda v: convert(_text(v))) if field.type == Field.TYPE_STRING else convert


def _text(value: str | bytes) -> str:
    """Return a text; in a file of proto2 it is bytes where it is not UTF-8."""
    return value if isinstance(value, str) else text_of(value)


def _map(entry: Any, target: DataType) -> Convert:
    key, value = (entry.fields_by_name[name] for name in ("key", "value"))
    if key.type != Field.TYPE_STRING:
        return mismatch("a map without text keys", target)
    convert = map_of(_Node(value), target, _converter)
    return lambda items: convert({_text(name): each for name, each in items.items()})


def _message(message: Any, target: DataType) -> Convert:
    if message.full_name == "google.protobuf.Timestamp" and isinstance(target, TimestampType):
        moment = exact_ticks(_NANOS, target)
        return lambda value: moment(value.seconds * _NANOS + value.nanos)
    if message.full_name in WRAPPERS and not isinstance(target, StructType):
        inner = _converter(_Node(message.fields_by_name["value"]), target)
        return lambda value: inner(value.value)
    to_struct = struct_of(_nodes(message), target, _converter)
    return lambda value: to_struct(_View(value))


def _variant(node: _Node, value: Any) -> str:
    with deeper_calls():
        is_item = node.is_item or not node.field.is_repeated
        found = _item_as_json(node.field, value) if is_item else _as_json(node.field, value)
        return variant_text(found, "type_mismatch")


def _as_json(field: Any, value: Any) -> Any:
    """Return a field's value as JSON has it, with texts for bytes and for the keys of maps."""
    entry = field.message_type
    if not field.is_repeated:
        return _item_as_json(field, value)
    if entry is None or not entry.GetOptions().map_entry:
        return [_item_as_json(field, each) for each in value]
    inner = entry.fields_by_name["value"]
    return {_key_as_json(name): _item_as_json(inner, each) for name, each in value.items()}


def _key_as_json(key: Any) -> str:
    if isinstance(key, str | bytes):
        return _text(key)
    return str(key).lower() if isinstance(key, bool) else str(key)


def _item_as_json(field: Any, value: Any) -> Any:
    if field.cpp_type == Field.CPPTYPE_MESSAGE:
        return _message_as_json(value)
    if field.cpp_type == Field.CPPTYPE_ENUM:
        symbol = field.enum_type.values_by_number.get(value)
        return symbol.name if symbol else value
    if field.type == Field.TYPE_STRING:
        return _text(value)
    return real_as_json(value) if isinstance(value, float) else value


def _message_as_json(message: Any) -> Any:
    """Return the fields of a message that it has; those of `struct.proto` are JSON themselves."""
    view = _View(message)
    plain = {
        each.name: _as_json(each, value)
        for each in message.DESCRIPTOR.fields
        if (value := view.get(each.name)) is not None
    }
    name = message.DESCRIPTOR.full_name
    if name not in _OF_JSON:
        return plain
    if len(plain) != 1 or plain.get("number_value") in ("NaN", "Infinity", "-Infinity"):
        raise MisfitError("a value that JSON does not have")
    return None if "null_value" in plain else plain.popitem()[1]


def _enum(enum: Any, target: DataType) -> Convert:
    if not isinstance(target, StringType):
        return exact(Source("integer"), target)
    names = {number: each.name for number, each in enum.values_by_number.items()}

    def convert(number: int) -> str:
        if number not in names:
            raise MisfitError(f"expected a name of {enum.name}, found BIGINT: {number}")
        return str(names[number])

    return convert


def prepared(schema: WriterSchema) -> WriterSchema:
    """Return a schema that executors can use without a compiler.

    Its text becomes the base64 of its compiled files, dependencies first and the main file last;
    where it cannot be compiled, its problem is what the compiler says.
    """
    if schema.type != "PROTOBUF" or schema.problem:
        return schema
    try:
        found = _compiled_files(schema.text, dict(schema.references))
    except ValueError as error:
        return replace(schema, problem=str(error))
    return replace(schema, text=base64.b64encode(found.SerializeToString()).decode())


def _compiled_files(text: str, references: dict[str, str]) -> FileDescriptorSet:
    """Compile a schema and what it refers to; raise ``ValueError`` if it is not valid."""
    found = FileDescriptorSet()
    texts = {**references, _MAIN: text}
    compiled = {name: _already_compiled(name, each) for name, each in texts.items()}
    if all(compiled.values()):
        # Serializers leave out the files that come with every compiler.
        needed = {name for each in compiled.values() if each for name in each.dependency}
        known = _protoc({}, sorted(needed - compiled.keys())) if needed - compiled.keys() else found
        known.file.extend(each for each in compiled.values() if each)
        return known
    if any(compiled.values()):
        raise ValueError("some of its files are text, and some are compiled")
    return _protoc(texts, [_MAIN])


def _already_compiled(name: str, text: str) -> FileDescriptorProto | None:
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    found.name = name
    return found


def _protoc(texts: dict[str, str], names: list[str]) -> FileDescriptorSet:
    """Compile in a process of its own; raise ``ValueError`` with what it says.

    The names come from the registry: none may be an option of the compiler, or leave the folder.
    """
    for name in (*texts, *names):
        _refuse_no_file_name(name)
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "in")
        for name, text in texts.items():
            try:
                (given / name).parent.mkdir(parents=True, exist_ok=True)
                (given / name).write_text(text)
            except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                raise ValueError(f"{name} is a file and a folder at once") from error
        known, out = Path(folder, "known"), Path(folder, "descriptors")
        others = [file for file in _known_files() if file.name not in texts]
        known.write_bytes(FileDescriptorSet(file=others).SerializeToString())
        includes = [f"-I{given}"] if texts else []
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *includes]
        command += [f"--descriptor_set_in={known}", "--include_imports"]
        command += [f"--descriptor_set_out={out}", *names]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0:
            raise ValueError(_refusal(done.stderr.decode("utf-8", "replace"), given))
        return FileDescriptorSet.FromString(out.read_bytes())


def _refusal(said: str, folder: Path) -> str:
    """Return what protoc says of a schema, without the names that files have only here."""
    lines = [each for each in said.splitlines() if each and not _LOGGED.match(each)]
    text = " ".join(lines).replace(f"{folder}/", "").replace(_MAIN, "the schema")
    return f"protoc refuses it: {text[:_MOST_SAID]}"


@cache
def _known_files() -> list[FileDescriptorProto]:
    """Return what a registry knows without a reference to it, beside the compiler's own files."""
    modules = [
        import_module(f"{package}.{found.name}")
        for package in _KNOWN
        for found in iter_modules(import_module(package).__path__)
        if found.name.endswith("_pb2")
    ]
    return [FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb) for each in modules]


def _refuse_no_file_name(name: str) -> None:
    is_path = all(part.strip(".") for part in name.split("/")) and len(name.encode()) <= 250
    if not (is_path and name.isprintable()) or name.startswith(("-", "@")):
        raise ValueError(f"{name!r} is no name of a file")
