"""Compiles the Protobuf schemas of a registry; it may hold ``.proto`` text or compiled files."""

from __future__ import annotations

import base64
import binascii
import tempfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from ingestion.kafka.schema_registry import WriterSchema

_MAIN = "oncelake_main.proto"


def prepared(schema: WriterSchema) -> WriterSchema:
    """Return a schema that executors can use without a compiler.

    Its text becomes the base64 of its compiled files, dependencies first and the main file last;
    empty if it cannot be compiled.
    """
    if schema.type != "PROTOBUF":
        return schema
    try:
        found = compiled_files(schema.text, dict(schema.references))
    except ValueError:
        return replace(schema, text="")
    return replace(schema, text=base64.b64encode(found.SerializeToString()).decode())


def compiled_files(text: str, references: dict[str, str]) -> FileDescriptorSet:
    """Compile a schema and what it refers to.

    Raises:
        ValueError: it is not valid Protobuf.
    """
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
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        for name, text in texts.items():
            path = (Path(folder) / "in" / name).resolve()
            if not path.is_relative_to(Path(folder).resolve()):
                raise ValueError(f"{name} is no name of a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        includes = [f"-I{folder}/in"] if texts else []
        includes.append(f"-I{files('grpc_tools') / '_proto'}")
        command = ["protoc", *includes, "--include_imports", f"--descriptor_set_out={out}", *names]
        if protoc.main(command) != 0:
            raise ValueError("protoc cannot compile it")
        return FileDescriptorSet.FromString(out.read_bytes())
