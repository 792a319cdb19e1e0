"""A Protobuf schema as the descriptors of its messages; none of Protobuf's own decoding is used.

The compiler is protoc, as it is for everybody; what is compiled is only looked up here.
"""

from __future__ import annotations

import base64
import binascii
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from ingestion.kafka.schema_registry import WriterSchema
from ingestion.verify.decode.strict_json import BadRecordError


def messages_of(schema: WriterSchema) -> list[Any]:
    """Compile a schema, and return the descriptors of its messages in their order.

    Raises:
        BadRecordError: it is no Protobuf.
    """
    files, pool = _compiled_files(schema).file, DescriptorPool()
    try:
        for file in files:
            pool.Add(file)
        by_name = pool.FindFileByName(files[-1].name).message_types_by_name
    except (TypeError, KeyError) as error:
        raise BadRecordError(f"the schema cannot be understood: {error}") from None
    return [by_name[message.name] for message in files[-1].message_type]


def is_map(message: Any) -> bool:
    """Tell whether a message is an entry of a map."""
    return bool(message is not None and message.GetOptions().map_entry)


def _compiled_files(schema: WriterSchema) -> FileDescriptorSet:
    texts = {**dict(schema.references), "the.proto": schema.text}
    compiled = {name: _compiled(name, text) for name, text in texts.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            path = Path(folder, name)
            if compiled[name] is None and ".." not in name:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        given = [file for file in compiled.values() if file is not None]
        needed = sorted({name for file in given for name in file.dependency} - compiled.keys())
        names = needed if given else ["the.proto"]
        files = _run_protoc(folder, names) if names else FileDescriptorSet()
    files.file.extend(given)
    return files


def _compiled(name: str, text: str) -> FileDescriptorProto | None:
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    file.name = name
    return file


def _run_protoc(folder: str, names: list[str]) -> FileDescriptorSet:
    import grpc_tools
    from grpc_tools import protoc

    out, own = Path(folder, "out.bin"), Path(grpc_tools.__file__).parent / "_proto"
    given = ["", f"-I{folder}", f"-I{own}", "--include_imports", f"--descriptor_set_out={out}"]
    if protoc.main([*given, *names]):
        raise BadRecordError("protoc cannot compile the schema")
    return FileDescriptorSet.FromString(out.read_bytes())
