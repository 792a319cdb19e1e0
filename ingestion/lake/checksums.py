"""The checksums of a table's files: a bit that a disk has flipped is not taken for data.

Beside every ``name`` that the JVM writes on a local disk Hadoop leaves ``.name.crc``: a header, the
length of a chunk, and a CRC-32 of each. Spark checks it on every read. delta-rs neither writes nor
checks it, and would take a flipped digit for the offset that was committed: so what delta-rs has
committed is sealed here, in Hadoop's words, and every run checks what it builds on.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_HEADER = struct.Struct(">4sI")
_MAGIC = b"crc\0"
# Hadoop reads the length from the header; its own, 512 bytes, is thrice the work.
_CHUNK_BYTES: Final = 64 * 1024


def sidecar_of(file: Path) -> Path:
    """Return where the checksums of a file lie."""
    return file.with_name(f".{file.name}.crc")


def matches_checksum(file: Path) -> bool:
    """Tell whether a file is as it was written; one without checksums is not doubted.

    Raises:
        OSError: the file cannot be read.
    """
    content, sidecar = file.read_bytes(), sidecar_of(file)
    if not sidecar.exists():
        return True
    sealed = sidecar.read_bytes()
    if len(sealed) < _HEADER.size:
        return False
    magic, length = _HEADER.unpack_from(sealed)
    if magic != _MAGIC or not length:
        return False
    return sealed[_HEADER.size :] == _checksums(content, length)


def seal(file: Path) -> None:
    """Write the checksums of a file as it is now."""
    sidecar = sidecar_of(file)
    draft = sidecar.with_suffix(f".{os.getpid()}")
    draft.write_bytes(_HEADER.pack(_MAGIC, _CHUNK_BYTES) + _checksums(file.read_bytes()))
    draft.replace(sidecar)


def seal_commit(table: Path, version: int) -> None:
    """Seal what delta-rs has just committed: the data files, and then the log's.

    A crash before the end leaves files that nobody doubts, as they are without this.
    """
    log = table / "_delta_log"
    commit = log / f"{version:020d}.json"
    actions = [json.loads(line) for line in commit.read_bytes().splitlines()]
    for added in (action["add"] for action in actions if "add" in action):
        seal(table / unquote(added["path"]))
    for file in (commit, log / f"{version:020d}.checkpoint.parquet"):
        if file.exists():
            seal(file)


def _checksums(content: bytes, length: int = _CHUNK_BYTES) -> bytes:
    chunks = (content[at : at + length] for at in range(0, len(content), length))
    return b"".join(zlib.crc32(each).to_bytes(4) for each in chunks)
