"""The checksums of a table's files: a bit that a disk has flipped is not taken for data.

Beside every ``name`` that the JVM writes on a local disk Hadoop leaves ``.name.crc``: a header, the
length of a chunk, and a CRC-32 of each. Spark checks it on every read. delta-rs neither writes nor
checks it, and would take a flipped digit for the offset that was committed: so what delta-rs has
committed is sealed here, in Hadoop's words, and every run checks what it builds on.

A store keeps checksums of its own, and checks them: nothing is sealed there, and nothing doubted.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Final
from urllib.parse import unquote

from ingestion.lake.location import Location

_HEADER = struct.Struct(">4sI")
_MAGIC = b"crc\0"
# Hadoop reads the length from the header; its own, 512 bytes, is thrice the work.
_CHUNK_BYTES: Final = 64 * 1024


def sidecar_of(file: Location) -> Location:
    """Return where the checksums of a file lie."""
    return file.with_name(f".{file.name}.crc")


def matches_checksum(file: Location, content: bytes | None = None) -> bool:
    """Tell whether a file is as it was written; one without checksums is not doubted.

    Args:
        file: The file.
        content: What it holds, where that was read already.

    Raises:
        OSError: the file cannot be read.
    """
    if not file.is_local:
        return True
    content = file.read() if content is None else content
    sealed = sidecar_of(file).read_if_there()
    if sealed is None:
        return True
    if len(sealed) < _HEADER.size:
        return False
    magic, length = _HEADER.unpack_from(sealed)
    if magic != _MAGIC or not length:
        return False
    return sealed[_HEADER.size :] == _checksums(content, length)


def seal(file: Location) -> None:
    """Write the checksums of a file as it is now."""
    if file.is_local:
        header = _HEADER.pack(_MAGIC, _CHUNK_BYTES)
        sidecar_of(file).put(header + _checksums(file.read()))


def seal_commit(table: Location, version: int) -> None:
    """Seal what delta-rs has just committed: the data files, and then the log's.

    A crash before the end leaves files that nobody doubts, as they are without this.
    """
    if not table.is_local:
        return
    log = table / "_delta_log"
    commit = log / f"{version:020d}.json"
    actions = [json.loads(line) for line in commit.read().splitlines()]
    for added in (action["add"] for action in actions if "add" in action):
        seal(table / unquote(added["path"]))
    seal(commit)
    if (checkpoint := log / f"{version:020d}.checkpoint.parquet").exists():
        seal(checkpoint)


def _checksums(content: bytes, length: int = _CHUNK_BYTES) -> bytes:
    chunks = (content[at : at + length] for at in range(0, len(content), length))
    return b"".join(zlib.crc32(each).to_bytes(4) for each in chunks)
