"""Reads a few rows of a Parquet file by the pages that have them, and not whole columns.

Arrow reads a column of a row group as a whole. So the pages that are needed, as the file's page
index places them, are put together, byte for byte, as a file of one column with a footer of its
own, and Arrow decodes that. Formats: Parquet's ``parquet.thrift``, in Thrift's compact protocol.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from oncelake.ingestion.tables.arrow_types import cast_values

# So many rows are in a page of a file that is written to be read by excerpts.
ROWS_IN_PAGE: Final = 512
# What makes Arrow write such files.
SMALL_PAGES: Final[Mapping[str, Any]] = {
    "max_rows_per_page": ROWS_IN_PAGE,
    "write_page_index": True,
}
Numbers = npt.NDArray[np.int64]
# A struct's fields by their numbers; by 0 where it begins, by -n where its nth field ends,
# and by _END where it ends.
Struct = dict[int, Any]

_MAGIC: Final = b"PAR1"
# Thrift's types; 1 and 2 are true and false as a field, and a byte in a list.
_INTEGERS: Final = (4, 5, 6)
_BINARY, _STRUCT = 8, 12
_LISTS: Final = (9, 10)
_BYTE: Final = 3
_LENGTHS: Final = {1: 0, 2: 0, _BYTE: 1, 7: 8}
# As the number of a field: where a struct ends.
_END: Final = -(1 << 16)
_REPEATED: Final = 2
# The bytes of a PageLocation that are no numbers: the headers of its fields, and its end.
_OF_LOCATION: Final = {0: 0x16, 2: 0x15, 4: 0x16, 6: 0}
_OPTIONS: Final = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
# What comes of a footer or a page that is not as it was written.
_DAMAGED: Final = (ArithmeticError, LookupError, MemoryError, OSError, TypeError, ValueError)
# So many rows are decoded for an excerpt, however few the file has.
_ROWS_DECODED: Final = 1 << 16


class NoPagesError(ValueError):
    """Rows of a file are better read as a whole, or cannot be read by pages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunk:
    """A column in one row group.

    Attributes:
        metadata: The first four fields of Parquet's ``ColumnMetaData``, as they are written.
        rows: How many rows the row group has.
        begin: Where the column's bytes begin, with its dictionary.
        pages: Where, from there, each page begins, how long it is, and which is its first row.
    """

    metadata: bytes
    rows: int
    begin: int
    pages: Numbers


Column = tuple[bytes, Sequence[_Chunk]]
# A column of a file that does not say where its pages are, or whose rows are not of one value.
_NO_PAGES: Final[Column] = (b"", ())


def read_rows(
    path: Path, schema: pa.Schema, rows: Numbers, known: Mapping[str, pa.Scalar]
) -> pa.Table:
    """Read some columns of some rows of a file; those that it does not have are null.

    Args:
        path: The file, which never changes.
        schema: The columns.
        rows: Numbers of rows, in their order.
        known: What some columns are in every row.

    Raises:
        NoPagesError: the rows cannot be read by themselves.
    """
    columns = list[pa.Array]()
    try:
        with path.open("rb") as source:
            size = source.seek(0, os.SEEK_END)
            stored = {n: _column(path, size, n) for n in schema.names if n not in known}
            if _NO_PAGES in stored.values():
                raise NoPagesError(path.name)
            for field in schema:
                if field.name in known:
                    values = pa.repeat(known[field.name], len(rows))
                elif (column := stored[field.name]) is None:
                    values = pa.nulls(len(rows), field.type)
                else:
                    values = _excerpt(source.fileno(), *column, rows).combine_chunks()
                columns.append(cast_values(values, field.type))
        return pa.Table.from_arrays(columns, schema=schema)
    # Whoever reads it as a whole says what is wrong with it.
    except (*_DAMAGED, RecursionError, struct.error, pa.ArrowException) as error:
        raise NoPagesError(str(error)) from error


def _excerpt(source: int, leaf: bytes, chunks: Sequence[_Chunk], rows: Numbers) -> pa.ChunkedArray:
    """Read one column of some rows by a file that has their pages only."""
    content, groups, positions = bytearray(_MAGIC), list[bytes](), list[Numbers]()
    read = end = 0
    most = max(_ROWS_DECODED, sum(chunk.rows for chunk in chunks) // 4)
    for chunk in chunks:
        start, end = end, end + chunk.rows
        within = rows[slice(*np.searchsorted(rows, (start, end)))] - start
        if not len(within):
            continue
        firsts = chunk.pages[:, 2]
        pages, at = np.unique(np.searchsorted(firsts, within, "right") - 1, return_inverse=True)
        lengths = np.append(firsts[1:], chunk.rows)[pages] - firsts[pages]
        # Of each row that is wanted: its page's place among those that are read, and its own.
        befores = read + np.cumsum(lengths) - lengths
        positions.append(befores[at] + within - firsts[pages][at])
        count, begin = int(lengths.sum()), len(content)
        content += os.pread(source, int(chunk.pages[0, 0]), chunk.begin)
        first = len(content)
        for offset, size, _ in chunk.pages[pages].tolist():
            content += os.pread(source, size, chunk.begin + offset)
        groups.append(_row_group(chunk.metadata, count, (begin, first, len(content))))
        read += count
        if read > most:
            raise NoPagesError("to read it as a whole takes less")
    footer = _footer(leaf, groups, read)
    content += footer + struct.pack("<i", len(footer)) + _MAGIC
    column = pq.ParquetFile(pa.BufferReader(content), **_OPTIONS).read(use_threads=False).column(0)
    if len(column) != read:
        raise NoPagesError("pages of other lengths")
    return column.take(pa.array(np.concatenate(positions)))


def _footer(leaf: bytes, groups: Sequence[bytes], rows: int) -> bytes:
    """Write a ``FileMetaData``: version, schema of a root and a leaf, rows, row groups."""
    root = b"\x48\x06schema" + _field(1, 1) + b"\0"
    listed = b"\x19\xfc" + _varint(len(groups)) + b"".join(groups)
    return _field(1, 2) + b"\x19\x2c" + root + leaf + _field(1, rows, 6) + listed + b"\0"


def _row_group(metadata: bytes, rows: int, places: tuple[int, int, int]) -> bytes:
    """Write a ``RowGroup``: its one column, where that is, its bytes, its rows."""
    begin, first, end = places
    # Values, bytes, bytes as compressed, where pages begin, and where the dictionary.
    metadata += _field(1, rows, 6) + _field(1, end - begin, 6) + _field(1, end - begin, 6)
    metadata += _field(2, first, 6) + (_field(2, begin, 6) if begin < first else b"") + b"\0"
    chunk = b"\x26\0\x1c" + metadata + b"\0"
    return b"\x19\x1c" + chunk + _field(1, end - begin, 6) + _field(1, rows, 6) + b"\0"


def _field(more: int, number: int, type_: int = 5) -> bytes:
    """Write a field that is a whole number and not negative, so many behind the one before."""
    return bytes([more << 4 | type_]) + _varint(number << 1)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number >= 128:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


# Of a file of five million rows it takes some 100 KB.
@lru_cache(maxsize=4096)
def _column(path: Path, size: int, name: str) -> Column | None:
    """Return a column's element of the schema, and its chunks; ``None`` where there is none."""
    try:
        footer, content = _footer_of(path, size)
        groups, leaves = footer[4], [leaf for leaf in footer[2][1:] if 5 not in leaf]
        paths = [chunk[3][3] for chunk in groups[0][1]] if groups else []
        at = [n for n, names in enumerate(paths) if names[0] == name.encode()]
        if not at:
            return None
        leaf = leaves[at[0]]
        if len(paths[at[0]]) > 1 or leaf.get(3) == _REPEATED:
            return _NO_PAGES
        with path.open("rb") as source:
            chunks = [_chunk(source.fileno(), of[1][at[0]], content, of[3]) for of in groups]
        return content[leaf[0] : leaf[_END]], chunks
    except (LookupError, NoPagesError):
        return _NO_PAGES


@lru_cache(maxsize=1)
def _footer_of(path: Path, size: int) -> tuple[Struct, bytes]:
    """Return a ``FileMetaData``; the columns of one file are asked for one after the other."""
    with path.open("rb") as source:
        (length,) = struct.unpack("<i", os.pread(source.fileno(), 4, size - 8))
        content = os.pread(source.fileno(), length, size - 8 - length)
    return _Reader(content).struct(), content


def _chunk(source: int, chunk: Struct, footer: bytes, rows: int) -> _Chunk:
    index, metadata = os.pread(source, chunk[5], chunk[4]), chunk[3]
    # A list of structs is the first field.
    reader = _Reader(index[1:])
    count = reader.length()
    numbers = _varints(index[1 + reader.at :], 7 * count).reshape(count, 7)
    pages = (numbers[:, 1::2] >> np.uint64(1)).astype(np.int64)
    begins, sizes, firsts = pages.T
    is_odd = index[0] != 0x19 or any((numbers[:, n] != b).any() for n, b in _OF_LOCATION.items())
    begin = min(metadata.get(11) or metadata[9], int(pages[0, 0]))
    pages[:, 0] -= begin
    # Pages follow one another, and so do their rows.
    is_odd |= bool((begins[:-1] + sizes[:-1] != begins[1:]).any() or firsts[0])
    if is_odd or (np.diff(firsts, append=rows) <= 0).any() or (pages >> 31).any():
        raise NoPagesError
    return _Chunk(
        metadata=footer[metadata[0] : metadata[-4]],
        rows=rows,
        begin=begin,
        pages=pages.astype(np.int32),
    )


def _varints(content: bytes, count: int) -> npt.NDArray[np.uint64]:
    """Return the first numbers of many, each of seven bits a byte, the last byte below 128."""
    read = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(read < 128)[:count] + 1
    begins = np.append(0, ends[:-1])
    shifts = 7 * (np.arange(ends[-1]) - np.repeat(begins, ends - begins))
    parts = (read[: ends[-1]] & 127).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, begins)


class _Reader:
    """Reads values that follow one another."""

    def __init__(self, content: bytes) -> None:
        self._content, self.at = content, 0

    def byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def varint(self) -> int:
        number = shift = 0
        while (byte := self.byte()) >= 128:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift

    def length(self) -> int:
        """Read the header of a list."""
        self.of = (byte := self.byte()) & 15
        return self.varint() if byte >> 4 == 15 else byte >> 4

    def value(self, type_: int) -> Any:
        if type_ in _INTEGERS:
            return (number := self.varint()) >> 1 ^ -(number & 1)
        if type_ in _LISTS:
            length, of = self.length(), max(self.of, _BYTE)
            return [self.value(of) for _ in range(length)]
        if type_ == _STRUCT:
            return self.struct()
        length = self.varint() if type_ == _BINARY else _LENGTHS[type_]
        self.at += length
        if self.at > len(self._content):
            raise NoPagesError
        return self._content[self.at - length : self.at]

    def struct(self) -> Struct:
        fields, number = Struct({0: self.at}), 0
        while header := self.byte():
            number = number + (header >> 4) if header >> 4 else self.value(_INTEGERS[1])
            fields[number] = self.value(header & 15)
            fields[-number] = self.at
        fields[_END] = self.at
        return fields
