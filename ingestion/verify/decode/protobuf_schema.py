"""A Protobuf schema as tables of fields by number, without Protobuf's own runtime.

The compiler is protoc, as it is for everybody; what is compiled is only looked up here.
"""

from __future__ import annotations

import base64
import binascii
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from ingestion.kafka.schema_registry import WriterSchema
from ingestion.verify.decode.strict_json import BadRecordError

_TYPES: Final = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("group", "message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
_REPEATED: Final = 3


@dataclass(kw_only=True, slots=True)
class Member:
    """One field of a message.

    Attributes:
        type: Protobuf's name of its type.
        default: What it is where it is absent; none where that shows.
    """

    name: str
    number: int
    type: str
    is_repeated: bool = False
    oneof: int | None = None
    default: Any = None
    message: Shape | None = None
    symbols: dict[int, str] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class Shape:
    """One message."""

    name: str
    is_map: bool = False
    members: dict[int, Member] = field(default_factory=dict)
    inner: list[Shape] = field(default_factory=list)

    @property
    def by_name(self) -> dict[str, Member]:
        """The fields by name."""
        return {each.name: each for each in self.members.values()}


class Schema:
    """The messages of one file, in its order, and all that they are made of."""

    def __init__(self, written: WriterSchema) -> None:
        """Compile and link.

        Raises:
            BadRecordError: it is no Protobuf.
        """
        self._shapes: dict[str, Shape] = {}
        self._enums: dict[str, dict[int, str]] = {}
        found = _files(written)
        for file in found.file:
            self._gather(f".{file.package}" if file.package else "", file)
        for file in found.file:
            is_proto3 = file.syntax == "proto3"
            self._link(f".{file.package}" if file.package else "", file.message_type, is_proto3)
        self.messages = [
            self._shapes[f".{found.file[-1].package}.{each.name}".replace("..", ".")]
            for each in found.file[-1].message_type
        ]

    def _gather(self, prefix: str, holder: Any) -> list[Shape]:
        for enum in holder.enum_type:
            self._enums[f"{prefix}.{enum.name}"] = {
                each.number: each.name for each in reversed(enum.value)
            }
        messages = holder.nested_type if hasattr(holder, "nested_type") else holder.message_type
        found = []
        for each in messages:
            name = f"{prefix}.{each.name}"
            shape = self._shapes[name] = Shape(name=name[1:], is_map=each.options.map_entry)
            shape.inner = self._gather(name, each)
            found.append(shape)
        return found

    def _link(self, prefix: str, messages: Any, is_proto3: bool) -> None:
        for message in messages:
            name = f"{prefix}.{message.name}"
            for each in message.field:
                self._shapes[name].members[each.number] = self._member(each, is_proto3)
            self._link(name, message.nested_type, is_proto3)

    def _member(self, told: Any, is_proto3: bool) -> Member:
        type_ = _TYPES[told.type]
        is_repeated = told.label == _REPEATED
        shows = not is_proto3 or type_ == "message" or told.HasField("oneof_index")
        return Member(
            name=told.name,
            number=told.number,
            type=type_,
            is_repeated=is_repeated,
            oneof=told.oneof_index if told.HasField("oneof_index") else None,
            default=[] if is_repeated else None if shows else _ZERO.get(type_, 0),
            message=self._shapes.get(told.type_name),
            symbols=self._enums.get(told.type_name, {}),
        )


_ZERO: Final[dict[str, Any]] = {
    "string": "",
    "bytes": b"",
    "bool": False,
    "float": 0.0,
    "double": 0.0,
}


def _files(written: WriterSchema) -> FileDescriptorSet:
    texts = {**dict(written.references), "the.proto": written.text}
    compiled = {name: _compiled(name, text) for name, text in texts.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            path = Path(folder, name)
            if compiled[name] is None and ".." not in name:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        given = [each for each in compiled.values() if each is not None]
        needed = sorted({name for each in given for name in each.dependency} - compiled.keys())
        names = needed if given else ["the.proto"]
        found = _run_protoc(folder, names) if names else FileDescriptorSet()
    found.file.extend(given)
    return found


def _compiled(name: str, text: str) -> FileDescriptorProto | None:
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    found.name = name
    return found


def _run_protoc(folder: str, names: list[str]) -> FileDescriptorSet:
    import grpc_tools
    from grpc_tools import protoc

    out, own = Path(folder, "out.bin"), Path(grpc_tools.__file__).parent / "_proto"
    given = ["", f"-I{folder}", f"-I{own}", "--include_imports", f"--descriptor_set_out={out}"]
    if protoc.main([*given, *names]):
        raise BadRecordError("protoc cannot compile the schema")
    return FileDescriptorSet.FromString(out.read_bytes())
