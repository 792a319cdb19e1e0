"""Hadoop's checksum files: what Spark wrote, sealed, so that one flipped bit can be told.

Beside every ``name`` that the JVM writes on a local disk it leaves ``.name.crc``: a header, the
length of a chunk, and a CRC-32 of each. Spark itself checks it on every read; delta-rs does not,
and would take a digit that a disk has flipped for the offset that was committed.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

_HEADER = struct.Struct(">4sI")
_MAGIC = b"crc\0"


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
    chunks = (content[at : at + length] for at in range(0, len(content), length))
    return sealed[_HEADER.size :] == b"".join(zlib.crc32(each).to_bytes(4) for each in chunks)
