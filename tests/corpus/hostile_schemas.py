"""Schemas that a registry may hold to harm who reads by them; none of them gives a row."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from oncelake.ingestion.kafka.schema_registry import WriterSchema


class HostileSchema(NamedTuple):
    """A schema, and the payload of a record that is written by it."""

    name: str
    schema: WriterSchema
    payload: bytes


_ROW: Final = 'syntax = "proto3"; message Row { int64 id = 1; }'
_ID: Final = {"name": "id", "type": "long"}
# The id 1, then 200,000,000 items of no bytes, in one block.
_ENDLESS: Final = b"\x02" + b"\x80\x88\xde\xbe\x01" + b"\x00"


def _record(name: str, *types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{n}", "type": each} for n, each in enumerate(types)]
    return {"type": "record", "name": name, "fields": [_ID, *fields]}


def _doubling(levels: int) -> tuple[tuple[str, str], ...]:
    """Return records, each of which holds the one before it twice."""
    types = ["string", *(f"R{n}" for n in range(levels))]
    return tuple(
        (name, json.dumps(_record(name, types[n], types[n]))) for n, name in enumerate(types[1:])
    )


def _compiled(**fields: Any) -> str:
    return base64.b64encode(FileDescriptorProto(name="m", **fields).SerializeToString()).decode()


def _avro() -> Iterator[tuple[str, Any, bytes, tuple[tuple[str, str], ...]]]:
    nested = '{"type":"array","items":'
    empty = {"type": "record", "name": "Empty", "fields": []}
    nothing = {"type": "fixed", "name": "Nothing", "size": 0}
    yield "2^40 types", _record("Row", ["null", "R39"]), b"\x02\x00", _doubling(40)
    itself = _record("Row", ["null", "Row"], ["null", "R39"])
    yield "2^40 types in a type in itself", itself, b"\x02\x00\x00", _doubling(40)
    voids = tuple((name, text.replace(f"{json.dumps(_ID)}, ", "")) for name, text in _doubling(40))
    voids = (("R0", json.dumps(empty | {"name": "R0"})), *voids[1:])
    yield (
        "an array of 2^40 voids",
        _record("Row", {"type": "array", "items": "R39"}),
        _ENDLESS,
        voids,
    )
    for name, items in {"nulls": "null", "records": empty, "fixed": nothing}.items():
        yield f"endless {name}", _record("Row", {"type": "array", "items": items}), _ENDLESS, ()
    yield "1 MB of brackets", "[" * 1_000_000, b"", ()
    yield "arrays in arrays", f"{nested * 40_000}null{'}' * 40_000}", b"", ()
    yield "no schema", 7, b"", ()
    symbols = {"no names": ["a-b"], "one symbol twice": ["a", "a"]}
    for name, each in symbols.items():
        yield name, _record("Row", {"type": "enum", "name": "E", "symbols": each}), b"\2\0", ()
    yield "one type twice", _record("Row", _record("Row")), b"\2\2", ()
    for name in (5, None, "\ud800", "id"):
        fields = [_ID, {"name": name, "type": "int"}]
        yield f"a field named {name!r}", {**_record("Row"), "fields": fields}, b"\2\0", ()
    yield "a namespace of 5", {**_record("Row"), "namespace": 5}, b"\2", ()
    yield "a union in a union", _record("Row", ["null", ["int"]]), b"\2\0", ()
    yield "a union of twins", _record("Row", ["int", "int"]), b"\2\0\0", ()


def _protobuf() -> Iterator[tuple[str, str, tuple[tuple[str, str], ...]]]:
    harmless = 'syntax = "proto3";'
    for name in ("../escaped.proto", "/escaped.proto", "", "a\0b", "a" * 300, "a//b", "-I", "@a"):
        yield f"a file named {name[:20]!r}", _ROW, ((name, harmless),)
    yield "a file that is a folder", _ROW, (("a", harmless), ("a/b", harmless))
    yield "half a character", f"{_ROW} // \ud800", ()
    yield "messages in messages", harmless + "message A {" * 50_000 + "}" * 50_000, ()
    yield "an import of escapes", f'{harmless} import "\x1b]0;owned\x07"; message A {{}}', ()


AVRO: Final = tuple(
    HostileSchema(
        name,
        WriterSchema(
            id=1,
            type="AVRO",
            text=schema if isinstance(schema, str) else json.dumps(schema),
            references=references,
        ),
        payload,
    )
    for name, schema, payload, references in _avro()
)
PROTOBUF: Final = tuple(
    HostileSchema(
        name, WriterSchema(id=1, type="PROTOBUF", text=text, references=references), b"\0\x08\x01"
    )
    for name, text, references in _protobuf()
)


def plugin_schema(program: str, folder: str) -> WriterSchema:
    """Return a compiled schema whose imports are options that make the compiler run a program."""
    options = [f"--plugin=protoc-gen-x={program}", f"--x_out={folder}"]
    text = _compiled(dependency=[*options, "google/protobuf/any.proto"])
    return WriterSchema(id=1, type="PROTOBUF", text=text)
