"""Protobuf, read by this proof's own reader of the binary encoding.

The compiler is protoc, as it is for everybody; its descriptors are only looked up here.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.storage.processes import deeper_calls
from oncelake.ingestion.verify.decode import (
    Decode,
    DecodedRecord,
    Expected,
    Name,
    ReadFramed,
    coerce,
    glue_frame,
    protobuf_binary,
)
from oncelake.ingestion.verify.decode.coerce import BadRecordError, Read, refuse

# Of a file that a schema names: no option of the compiler, and nothing outside of its folder.
_PART: Final = r"(?!\.+(/|$))[^/]+"
_FILE: Final = re.compile(f"(?![-@]){_PART}(/{_PART})*")
# Files that a registry knows by itself, beside the compiler's own: modules that have them compiled.
_OF_REGISTRIES: Final = (
    "confluent_kafka.schema_registry.confluent.meta_pb2",
    "confluent_kafka.schema_registry.confluent.type.decimal_pb2",
    "confluent_kafka.schema_registry.confluent.type.variant_pb2",
)
# Makes what finds the message that a payload is, among those of a file, and what is behind that.
Finding = Callable[[Sequence[Any]], Callable[[bytes], tuple[Any, bytes]]]
_MOST_INDEXES: Final = 100
_BYTES_OF_INDEX: Final = 5
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{each}Value"
    for each in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)


def reading(expected: Expected) -> ReadFramed:
    """Return what reads one framed message."""
    wanted = expected.row.parts
    in_glue = expected.settings is not None and expected.settings.in_glue
    finding = glue_frame.by_number if in_glue else by_indexes
    return ReadFramed(
        expected,
        "PROTOBUF",
        lambda s: opened(s, wanted, finding, expected.checked),
        lambda s: naming(s, finding),
        _are_indexes,
    )


def _are_indexes(rest: bytes) -> bool:
    """Tell whether bytes are message indexes, and nothing more."""
    try:
        return not _path_in(rest)[1]
    except BadRecordError:
        return False


def naming(written: WriterSchema, finding: Finding) -> Name:
    """Return what names the message that a payload is."""
    find = finding(_messages_of(written))
    return lambda payload: str(find(payload)[0].full_name)


def opened(
    written: WriterSchema,
    wanted: Mapping[str, SqlType],
    finding: Finding,
    checked: Callable[[DecodedRecord, set[coerce.Path]], DecodedRecord] = lambda record, _: record,
) -> Decode:
    """Return what reads payloads of one schema."""
    find, row = finding(_messages_of(written)), SqlType(word="STRUCT", parts=wanted)

    @cache
    def undeclared(message: Any) -> set[coerce.Path]:
        return coerce.undeclared(_Value(message), row, _inside)

    def read(payload: bytes, *_: object) -> DecodedRecord:
        message, rest = find(payload)
        unknown = protobuf_binary.numbers(rest) - {*message.fields_by_number}
        take = coerce.fields(message.fields_by_name, wanted, fit)
        values = tuple(take(protobuf_binary.read_message(rest, message)))
        paths = {*undeclared(message), *((f"#{number}",) for number in unknown)}
        return checked(DecodedRecord(values=values), paths)

    return read


class _Value(NamedTuple):
    """One value of a field: a message, if it is one."""

    message_type: Any
    is_repeated: bool = False


def _inside(field: Any, word: str) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a field, or of one value; see ``coerce.undeclared``."""
    message = field.message_type
    if message is None:
        return
    if word == "MAP" and protobuf_binary.is_map(message):
        yield {"value": message.fields_by_name["value"]}
    elif word == "ARRAY" and field.is_repeated:
        yield {"element": _Value(message)}
    elif word == "STRUCT":
        yield message.fields_by_name


def fit(field: Any, type_: SqlType, *, is_item: bool = False) -> Read:
    """Return what takes a value that is not null as a declared type.

    Of a field that is repeated, it is all of its items, or one.
    """
    word = protobuf_binary.word_of(field)
    if type_.word in coerce.WRITERS:
        return lambda value: _variant(field, value, type_, is_item=is_item)
    if field.is_repeated and not is_item:
        if not protobuf_binary.is_map(field.message_type):
            return coerce.nested("ARRAY", field, type_, partial(fit, is_item=True))
        entry = field.message_type.fields_by_name
        if protobuf_binary.word_of(entry["key"]) != "string":
            return coerce.never("a map", type_)
        return coerce.nested("MAP", entry["value"], type_, fit)
    if word in {"message", "group"}:
        return _message(field.message_type, type_)
    if word == "enum" and type_.word == "STRING":
        symbols = field.enum_type.values_by_number
        return lambda value: symbols[value].name if value in symbols else refuse(value)
    kinds = {
        "bool": coerce.plain(type_, "BOOLEAN"),
        "string": _text(type_),
        "bytes": coerce.plain(type_, "BINARY"),
        **dict.fromkeys(("float", "double"), coerce.real(type_)),
    }
    return kinds.get(word, coerce.whole(type_)) or coerce.never(word, type_)


def _variant(field: Any, value: Any, type_: SqlType, *, is_item: bool = False) -> str:
    with deeper_calls():
        return coerce.variant_of(_as_json(field, value, is_item=is_item), type_)


def _as_json(field: Any, value: Any, *, is_item: bool = False) -> Any:
    """Return a value as JSON has it: bytes and keys as text, a message by the fields it has."""
    inner, word = field.message_type, protobuf_binary.word_of(field)
    if field.is_repeated and not is_item:
        if not protobuf_binary.is_map(inner):
            return [_as_json(field, each, is_item=True) for each in value]
        part = inner.fields_by_name["value"]
        return {_key(name): _as_json(part, each) for name, each in value.items()}
    if inner is not None:
        return _message_as_json(inner, value)
    if word == "enum":
        symbols = field.enum_type.values_by_number
        return symbols[value].name if value in symbols else value
    if word in {"float", "double"}:
        return coerce.real_in_json(value)
    if word == "bytes":
        return base64.b64encode(value).decode()
    return coerce.utf8(value) if type(value) is bytes else value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key)


def _message_as_json(message: Any, value: Mapping[str, Any]) -> Any:
    has = {each.name: each for each in message.fields if value[each.name] is not None}
    found = {name: _as_json(field, value[name]) for name, field in has.items()}
    kind = message.full_name.removeprefix("google.protobuf.")
    if kind == message.full_name or kind not in {"Struct", "ListValue", "Value"}:
        return found
    if kind != "Value":
        (found,) = found.values()
        return found
    if len(found) != 1 or not math.isfinite(value["number_value"] or 0):
        refuse(value)
    (name,) = found
    return None if name == "null_value" else found[name]


def _text(type_: SqlType) -> Read | None:
    """Take a text, of which bytes are still to be read."""
    take = coerce.text(type_)
    return take and (lambda value: take(coerce.utf8(value) if type(value) is bytes else value))


def _message(message: Any, type_: SqlType) -> Read:
    if message.full_name == "google.protobuf.Timestamp" and type_.word == "TIMESTAMP":
        moment = coerce.moment(type_, 10**9, zoned=True) or coerce.never(message.full_name, type_)
        return lambda value: moment(value["seconds"] * 10**9 + value["nanos"])
    if message.full_name in _WRAPPERS and type_.word != "STRUCT":
        inner = fit(message.fields_by_name["value"], type_)
        return lambda value: inner(value["value"])
    return coerce.nested("STRUCT", message.fields_by_name, type_, fit)


def by_indexes(messages: Sequence[Any]) -> Callable[[bytes], tuple[Any, bytes]]:
    """Return what finds a message by the indexes in front of a payload; none means the first."""

    def find(payload: bytes) -> tuple[Any, bytes]:
        (path, rest), level, message = _path_in(payload), messages, None
        for number in path or [0]:
            if number >= len(level):
                raise BadRecordError(f"no message at {path}")
            message = level[number]
            level = message.nested_types
        return message, rest

    return find


def _path_in(payload: bytes) -> tuple[list[int], bytes]:
    path: list[int] = []
    count, at = _index(payload, 0)
    if count > _MOST_INDEXES:
        raise BadRecordError(f"{count} message indexes")
    for _ in range(count):
        number, at = _index(payload, at)
        path.append(number)
    return path, payload[at:]


def _index(payload: bytes, at: int) -> tuple[int, int]:
    number, at = protobuf_binary.varint(payload, at, _BYTES_OF_INDEX)
    value = (number >> 1) ^ -(number & 1)
    if value < 0:
        raise BadRecordError(f"a message index of {value}")
    return value, at


@lru_cache(maxsize=100)
def _messages_of(schema: WriterSchema) -> list[Any]:
    """Compile a schema, and return the descriptors of its messages in their order."""
    files, pool = _compiled_files(schema).file, DescriptorPool()
    try:
        for file in files:
            pool.Add(file)
        by_name = pool.FindFileByName(files[-1].name).message_types_by_name
    except (TypeError, KeyError) as error:
        raise BadRecordError(f"the schema cannot be understood: {error}") from None
    return [by_name[message.name] for message in files[-1].message_type]


def _compiled_files(schema: WriterSchema) -> FileDescriptorSet:
    texts = {**dict(schema.references), "the.proto": schema.text}
    compiled = {name: _compiled(name, text) for name, text in texts.items()}
    given = [file for file in compiled.values() if file is not None]
    needed = sorted({name for file in given for name in file.dependency} - compiled.keys())
    names = needed if given else ["the.proto"]
    written = {name: text for name, text in texts.items() if compiled[name] is None}
    for name in (*written, *names):
        if not (_FILE.fullmatch(name) and name.isprintable() and len(name.encode()) <= 250):
            raise BadRecordError(f"{name!r:.200} is no name of a file")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in written.items():
            _write(Path(folder, name), text)
        files = _run_protoc(folder, names) if names else FileDescriptorSet()
    files.file.extend(given)
    return files


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except (FileExistsError, IsADirectoryError, NotADirectoryError, UnicodeError) as error:
        raise BadRecordError(f"the schema cannot be written down: {error}") from None


def _compiled(name: str, text: str) -> FileDescriptorProto | None:
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    file.name = name
    return file


def _run_protoc(folder: str, names: list[str]) -> FileDescriptorSet:
    out, known = Path(folder, "out.bin"), Path(folder, "known.bin")
    known.write_bytes(_files_of_registries(folder).SerializeToString())
    options = [f"-I{folder}", f"--descriptor_set_in={known}"]
    options += ["--include_imports", f"--descriptor_set_out={out}"]
    command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *options, *names]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise BadRecordError("protoc cannot compile the schema")
    return FileDescriptorSet.FromString(out.read_bytes())


def _files_of_registries(folder: str) -> FileDescriptorSet:
    """Return the files that a registry knows by itself, but for those that a schema brings along.

    The compiler's own come with the compiler.
    """
    of_google = (each.name for each in resources.files("google.type").iterdir())
    modules = [f"google.type.{n.removesuffix('.py')}" for n in of_google if n.endswith("_pb2.py")]
    compiled = (
        import_module(name).DESCRIPTOR.serialized_pb for name in (*modules, *_OF_REGISTRIES)
    )
    files = map(FileDescriptorProto.FromString, compiled)
    return FileDescriptorSet(file=[each for each in files if not Path(folder, each.name).exists()])
