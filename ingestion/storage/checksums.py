"""The checksums of a table's files: a bit that a disk has flipped is not taken for data.

Beside every ``name`` that the JVM writes on a local disk Hadoop leaves ``.name.crc``: a header, the
length of a chunk, and a CRC-32 of each. Spark checks it on every read. delta-rs neither writes nor
checks it, and would take a flipped digit for the offset that was committed: so what delta-rs has
committed is sealed, in Hadoop's format, and every run checks what it builds on.

A store keeps checksums of its own, and checks them: nothing is sealed or checked there.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from oncelake.ingestion.storage.location import Location

_HEADER = struct.Struct(">4sI")
_MAGIC = b"crc\0"
# Hadoop reads the length from the header; its own, 512 bytes, is thrice the work.
_CHUNK_BYTES: Final = 64 * 1024
_OURS: Final = _HEADER.pack(_MAGIC, _CHUNK_BYTES)


def sidecar_of(file: Location) -> Location:
    """Return where the checksums of a file lie."""
    return file.with_name(f".{file.name}.crc")


def matches_checksum(file: Location, content: bytes | None = None) -> bool:
    """Tell whether a file is as it was written; one without checksums passes.

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
    """Write a file to the disk as it is now, and then its checksums, whole or not at all."""
    if file.is_local:
        file.sync()
        sidecar_of(file).put_durably(_sidecar(file))


def has_seal(file: Location) -> bool:
    """Tell whether ``seal`` has written a file's checksums: the JVM's are of smaller chunks."""
    return (sidecar_of(file).read_if_there() or b"").startswith(_OURS)


def seal_data(file: Location) -> None:
    """Write a file, if it is there, and the JVM's checksums or else our own to the disk."""
    if file.size() is None:
        return
    if (sidecar := sidecar_of(file)).size() is None or are_checksums_cut(file):
        sidecar.put(_sidecar(file))
    file.sync()
    sidecar.sync()


def are_checksums_cut(file: Location) -> bool:
    """Tell whether there are checksums of a file that is there, and fewer than it needs."""
    sidecar, size = sidecar_of(file).read_if_there(), file.size() or 0
    if sidecar is None:
        return False
    length = _HEADER.unpack_from(sidecar)[1] if len(sidecar) >= _HEADER.size else 0
    return not length or len(sidecar) < _HEADER.size + 4 * -(-size // length)


def _sidecar(file: Location) -> bytes:
    return _OURS + _checksums(file.read())


def _checksums(content: bytes, length: int = _CHUNK_BYTES) -> bytes:
    chunks = (content[at : at + length] for at in range(0, len(content), length))
    return b"".join(zlib.crc32(each).to_bytes(4) for each in chunks)
