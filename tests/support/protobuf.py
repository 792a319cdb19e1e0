"""Messages of a .proto text, made without writing code for them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc


class Compiled:
    """The messages of one file."""

    def __init__(self, text: str) -> None:
        """Compile it, in a pool of its own."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a.proto").write_text(text)
            own = Path(grpc_tools.__file__).parent / "_proto"
            out = f"--descriptor_set_out={folder}/out"
            assert (
                protoc.main(["", f"-I{folder}", f"-I{own}", "--include_imports", out, "a.proto"])
                == 0
            )
            found = FileDescriptorSet.FromString((Path(folder) / "out").read_bytes())
        self._pool = descriptor_pool.DescriptorPool()
        for each in found.file:
            self._pool.Add(each)

    def make(self, name: str, /, **fields: Any) -> Any:
        """Make a message."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))(**fields)
