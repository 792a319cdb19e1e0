"""Deletion vectors: rows of a data file that are gone, although the file has not changed.

A vector is a set of row numbers. It stands in a file beside the data, with others, or in the log
itself; the log says of a data file which vector is its own. delta-rs reads rows by them, and tells
neither where they stand nor the statistics of their files as text, so that the files of a version
are read of its log here. The formats: Delta's protocol, "Deletion Vector Format".
"""

from __future__ import annotations

import re
import struct
import uuid
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyroaring import BitMap64

from oncelake.ingestion.delta.log_files import actions_in, commit_file, log_files
from oncelake.ingestion.errors import counted
from oncelake.ingestion.storage.damage import damaged_table
from oncelake.ingestion.storage.location import Location

FEATURE: Final = "deletionVectors"
PROPERTY: Final = "delta.enableDeletionVectors"
Mask = npt.NDArray[np.bool_]
Action = Mapping[str, Any]

_MAGIC: Final = 1681511377
_VERSION: Final = b"\x01"
_UUID_CHARACTERS: Final = 20
# What an action calls the parts of a vector.
_FIELDS: Final = {
    "storage": "storageType",
    "place": "pathOrInlineDv",
    "offset": "offset",
    "size": "sizeInBytes",
    "rows": "cardinality",
}
# The digits of base 85, as ZeroMQ writes it, and as Python does.
_DIGITS: Final = (
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)
# Python's digits that are not ZeroMQ's are none.
_TO_PYTHONS: Final = bytes.maketrans(_DIGITS[0] + b";_`|~", _DIGITS[1] + b"     ")
_FROM_PYTHONS: Final = bytes.maketrans(*reversed(_DIGITS))
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
# Who has clustered a file.
PROVIDER: Final = "clusteringProvider"
# The fields of an ``add`` that a later one repeats.
ROW_IDS: Final = ("baseRowId", "defaultRowCommitVersion")
_KEPT: Final = (
    *("path", "partitionValues", "size", "modificationTime", "stats", "tags", *ROW_IDS),
    *(PROVIDER, "deletionVector"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vector:
    """Where a vector stands, by the fields of Delta's ``deletionVector``.

    Attributes:
        storage: ``u``: a file in the table's folder; ``p``: one by its URI; ``i``: the log itself.
        place: An id of the file, its URI, or the vector.
        offset: Of the vector in its file, in bytes.
        size: Of the vector, in bytes.
        rows: How many rows are gone.
    """

    storage: str
    place: str
    offset: int | None
    size: int
    rows: int

    @classmethod
    def of(cls, action: Action) -> Vector | None:
        """Read it of the action that adds or removes its data file, if that has one."""
        found = action.get("deletionVector")
        if not found:
            return None
        return cls(**{name: found.get(field) for name, field in _FIELDS.items()})

    def as_field(self) -> dict[str, Any]:
        """Return what an action says of it."""
        found = {field: getattr(self, name) for name, field in _FIELDS.items()}
        return {field: value for field, value in found.items() if value is not None}

    @property
    def file(self) -> str | None:
        """The name of its file in the table's folder; ``None`` where it is not in one there."""
        if self.storage != "u":
            return None
        folder, digits = self.place[:-_UUID_CHARACTERS], self.place[-_UUID_CHARACTERS:]
        name = f"deletion_vector_{uuid.UUID(bytes=_from_digits(digits))}.bin"
        return f"{folder}/{name}" if folder else name

    @property
    def end(self) -> int:
        """How long its file must be, at least: size, vector and checksum stand there."""
        return (self.offset or 0) + 4 + self.size + 4

    def rows_of(self, table: Location) -> BitMap64:
        """Return the numbers of the rows that are gone.

        Raises:
            DamagedTableError: its file is not as it was written.
        """
        try:
            found = _parsed(self._bytes(table))
        except (FileNotFoundError, ValueError, struct.error) as error:
            what = f"deletion vector {self._name} cannot be read ({error})"
            raise damaged_table(table, what) from error
        if len(found) != self.rows:
            what = f"deletion vector {self._name} marks {counted(len(found), 'row')}"
            raise damaged_table(table, f"{what}, and the log says {self.rows:,}")
        return found

    @property
    def _name(self) -> str:
        """Its file for people or, where the log does not tell that, what the log has."""
        with suppress(ValueError):
            return self.file or self.place
        return self.place

    def _bytes(self, table: Location) -> bytes:
        if self.storage == "i":
            return _from_digits(self.place)[: self.size]
        file = Location.of(unquote(self.place)) if self.file is None else table / self.file
        content, begin = file.read(), (self.offset or 0) + 4
        found = content[begin : begin + self.size]
        (size,) = struct.unpack(">i", content[begin - 4 : begin])
        (checksum,) = struct.unpack(">I", content[begin + self.size : begin + self.size + 4])
        if content[:1] != _VERSION or size != self.size or checksum != zlib.crc32(found):
            raise ValueError("it is not as it was written")
        return found


class VectorWriter:
    """Writes the vectors of one commit to one file."""

    def __init__(self, table: Location) -> None:
        """Take the table; nothing is written before ``close``."""
        self._id = uuid.uuid4()
        self._file = table / f"deletion_vector_{self._id}.bin"
        self._content = bytearray(_VERSION)

    def add(self, rows: npt.NDArray[np.int64]) -> Vector:
        """Take the numbers of the rows of one file that are gone."""
        vector = struct.pack("<i", _MAGIC) + BitMap64(rows.tolist()).serialize()
        offset = len(self._content)
        checksum = struct.pack(">I", zlib.crc32(vector))
        self._content += struct.pack(">i", len(vector)) + vector + checksum
        place = _as_digits(self._id.bytes)
        return Vector(storage="u", place=place, offset=offset, size=len(vector), rows=len(rows))

    def close(self) -> None:
        """Write the file, if there are any."""
        if len(self._content) > len(_VERSION):
            self._file.put(bytes(self._content))

    def discard(self) -> None:
        """Delete the file."""
        self._file.delete()


def has_vectors(table: DeltaTable) -> bool:
    """Tell whether files of a table may have vectors."""
    return FEATURE in (table.protocol().reader_features or ())


def living_files(table: Location, snapshot: DeltaTable) -> dict[str, Action]:
    """Return the files of a version, as they were added, by their paths in the log."""
    log, version = log_files(table), snapshot.version()
    begin, parts = newest_checkpoint(log.names(), version)
    files = {action["path"]: action for part in parts for action in _adds_in(log.read(part))}
    for number in range(begin + 1, version + 1):
        actions = actions_in(log.read(commit_file(number)))
        # Of one commit that gives a file another vector, both are about one path.
        for action in actions:
            files.pop(action.get("remove", {}).get("path"), None)
        for add in (action["add"] for action in actions if "add" in action):
            files[add["path"]] = _kept(add)
    return files


def vectors_of(table: Location, snapshot: DeltaTable) -> dict[str, Vector]:
    """Return the vectors of a version, by the names of their data files in the folder."""
    if not has_vectors(snapshot):
        return {}
    found = {path: Vector.of(add) for path, add in living_files(table, snapshot).items()}
    return {unquote(path): vector for path, vector in found.items() if vector is not None}


def vector_files(vectors: Iterable[Vector | None]) -> frozenset[str]:
    """Return the names of the files in the table's folder in which vectors stand."""
    return frozenset(vector.file for vector in vectors if vector and vector.file)


@lru_cache(maxsize=64)
def mask_of(table: Location, vector: Vector, rows: int) -> Mask:
    """Flag the rows of a file that are gone; a vector never changes.

    Args:
        table: The table.
        vector: The file's.
        rows: How many rows the file has.
    """
    mask = np.zeros(rows, dtype=np.bool_)
    mask[np.array(vector.rows_of(table).to_array(), dtype=np.int64)] = True
    mask.flags.writeable = False
    return mask


def newest_checkpoint(names: Iterable[str], version: int) -> tuple[int, list[str]]:
    """Find the newest whole checkpoint up to a version: its own, and its files; -1 without any."""
    parts: dict[int, list[str]] = {}
    for found in filter(None, map(_CHECKPOINT.fullmatch, names)):
        if int(found[1]) <= version:
            parts.setdefault(int(found[1]), []).append(found[0])
    whole = {
        number: files
        for number, files in parts.items()
        if any(_CHECKPOINT.fullmatch(name)[2] in (None, f"{len(files):010d}") for name in files)  # type: ignore[index]
    }
    newest = max(whole, default=-1)
    return newest, whole.get(newest, [])


def _adds_in(checkpoint: bytes) -> Iterator[Action]:
    adds = pq.read_table(pa.BufferReader(checkpoint), columns=["add"]).column("add")
    for add in adds.drop_null().to_pylist(maps_as_pydicts="strict"):
        yield _kept(add)


def _kept(add: Action) -> Action:
    return {name: add[name] for name in _KEPT if add.get(name) is not None}


def _parsed(vector: bytes) -> BitMap64:
    (magic,) = struct.unpack("<i", vector[:4])
    if magic != _MAGIC:
        raise ValueError(f"it is of another format, {magic}")
    return BitMap64.deserialize(vector[4:])


def _as_digits(content: bytes) -> str:
    """Write bytes, of which there are four or a multiple of it, by five digits for each four."""
    return b85encode(content).translate(_FROM_PYTHONS).decode()


def _from_digits(digits: str) -> bytes:
    return b85decode(digits.encode().translate(_TO_PYTHONS))
