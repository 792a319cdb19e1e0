"""Reads a few rows of a Parquet file by the pages that have them, and not whole columns.

Arrow reads a column of a row group as a whole. So the pages that are needed, as the file's page
index places them, are put together, byte for byte, as a file of one column with a footer of its
own, and Arrow decodes that. Formats: Parquet's ``parquet.thrift``, in Thrift's compact protocol.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
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
# Makes Arrow end a page there: so often it compares what it has encoded with the limit.
SMALL_PAGES: Final[Mapping[str, Any]] = {
    "data_page_size": 1,
    # A dictionary comes with every excerpt of its column.
    "dictionary_pagesize_limit": 64 << 10,
    "write_batch_size": ROWS_IN_PAGE,
    "write_page_index": True,
}
Numbers = npt.NDArray[np.int64]
# A value of Thrift's is its type and itself; a list's is the type of its items, and the items.
Value = tuple[int, Any]
Struct = dict[int, Value]

_MAGIC: Final = b"PAR1"
_INTEGERS: Final = (4, 5, 6)
_I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = 5, 6, 7, 8, 9, 12
_REPEATED: Final = (_I32, 2)
# The bytes of a PageLocation that are no numbers: the headers of its fields, and its end.
_OF_LOCATION: Final = ((0, 0x16), (2, 0x15), (4, 0x16), (6, 0))


class NoPagesError(ValueError):
    """A file does not say where the pages of a column are, or its rows are not of one value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunk:
    """A column in one row group.

    Attributes:
        metadata: Parquet's ``ColumnMetaData``, as far as an excerpt has it.
        rows: How many rows the row group has.
        begin: Where the column's bytes begin, with its dictionary.
        offsets: Where each page begins.
        sizes: How long each page is, in bytes.
        firsts: The first row of each page, within the row group.
    """

    metadata: Struct
    rows: int
    begin: int
    offsets: Numbers
    sizes: Numbers
    firsts: Numbers


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
            for field in schema:
                if field.name in known:
                    values = pa.repeat(known[field.name], len(rows))
                elif (column := _column(path, field.name)) is None:
                    values = pa.nulls(len(rows), field.type)
                else:
                    values = _excerpt(source.fileno(), *column, rows).combine_chunks()
                columns.append(cast_values(values, field.type))
    # Whoever reads it as a whole says what is wrong with it.
    except (pa.ArrowException, LookupError, TypeError, ValueError, struct.error) as error:
        raise NoPagesError(str(error)) from error
    return pa.Table.from_arrays(columns, schema=schema)


def _excerpt(source: int, leaf: Struct, chunks: Sequence[_Chunk], rows: Numbers) -> pa.ChunkedArray:
    """Read one column of some rows by a file that has their pages only."""
    content, groups, positions = bytearray(_MAGIC), list[Struct](), list[Numbers]()
    read = end = 0
    for chunk in chunks:
        end += chunk.rows
        within = rows[slice(*np.searchsorted(rows, (end - chunk.rows, end)))] - (end - chunk.rows)
        if not len(within):
            continue
        of_rows = np.searchsorted(chunk.firsts, within, "right") - 1
        pages, at = np.unique(of_rows, return_inverse=True)
        lengths = (np.append(chunk.firsts[1:], chunk.rows) - chunk.firsts)[pages]
        positions.append(within - chunk.firsts[of_rows] + (read + np.cumsum(lengths) - lengths)[at])
        begin, dictionary = len(content), int(chunk.offsets[0]) - chunk.begin
        content += os.pread(source, dictionary, chunk.begin)
        for page in pages.tolist():
            content += os.pread(source, int(chunk.sizes[page]), int(chunk.offsets[page]))
        group = {5: (_I64, int(lengths.sum())), 7: (_I64, len(content) - begin)}
        group[9] = (_I64, begin + dictionary)
        if dictionary:
            group[11] = (_I64, begin)
        groups.append({**chunk.metadata, **group})
        read += int(lengths.sum())
    footer = _footer(leaf, groups, read)
    content += footer + struct.pack("<i", len(footer)) + _MAGIC
    file = pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us")
    return file.read(use_threads=False).column(0).take(pa.array(np.concatenate(positions)))


def _footer(leaf: Struct, groups: Sequence[Struct], rows: int) -> bytes:
    """Return Parquet's ``FileMetaData`` of a file with one column."""
    root = {4: (_BINARY, b"schema"), 5: (_I32, 1)}
    row_groups = [
        {
            1: (_LIST, (_STRUCT, [{2: (_I64, 0), 3: (_STRUCT, chunk)}])),
            2: chunk[6],
            3: chunk[5],
        }
        for chunk in groups
    ]
    return _written(
        _STRUCT,
        {
            1: (_I32, 2),
            2: (_LIST, (_STRUCT, [root, leaf])),
            3: (_I64, rows),
            4: (_LIST, (_STRUCT, row_groups)),
        },
    )


@lru_cache(maxsize=2048)
def _column(path: Path, name: str) -> tuple[Struct, list[_Chunk]] | None:
    """Return a column's element of the schema, and its chunks; ``None`` where there is none."""
    footer = _footer_of(path)
    leaves = [each for each in footer[2][1][1][1:] if 5 not in each]
    groups = footer[4][1][1]
    of_leaf = [each[3][1][3][1][1] for each in groups[0][1][1][1]] if groups else []
    at = [n for n, names in enumerate(of_leaf) if names[0] == name.encode()]
    if not at:
        return None
    if len(of_leaf[at[0]]) > 1 or leaves[at[0]].get(3) == _REPEATED:
        raise NoPagesError(name)
    with path.open("rb") as source:
        chunks = [_chunk(source.fileno(), each[1][1][1][at[0]], each[3][1]) for each in groups]
    return leaves[at[0]], chunks


@lru_cache(maxsize=1)
def _footer_of(path: Path) -> Struct:
    """Return a file's ``FileMetaData``; the columns of one are asked for one after the other."""
    with path.open("rb") as source:
        source.seek(-8, os.SEEK_END)
        (length,) = struct.unpack("<i", source.read(4))
        source.seek(-8 - length, os.SEEK_END)
        footer: Struct = _parsed(source.read(length), 0, _STRUCT)[0]
    return footer


def _chunk(source: int, chunk: Struct, rows: int) -> _Chunk:
    if 4 not in chunk:
        raise NoPagesError
    content = os.pread(source, chunk[5][1], chunk[4][1])
    # A list of structs, and how many, is the first field.
    count, at = (content[1] >> 4, 2) if content[1] < 0xF0 else _varint(content, 2)
    numbers = _varints(content[at:], 7 * count).reshape(count, 7)
    if content[0] != 0x19 or any((numbers[:, n] != byte).any() for n, byte in _OF_LOCATION):
        raise NoPagesError
    offsets, sizes, firsts = (numbers[:, n].astype(np.int64) >> 1 for n in (1, 3, 5))
    metadata = chunk[3][1]
    begin = metadata.get(11, metadata[9])[1] or metadata[9][1]
    kept = {n: metadata[n] for n in (1, 2, 3, 4, 6)}
    return _Chunk(
        metadata=kept,
        rows=rows,
        begin=min(begin, int(offsets[0])),
        offsets=offsets,
        sizes=sizes.astype(np.int32),
        firsts=firsts.astype(np.int32),
    )


def _varints(content: bytes, count: int) -> npt.NDArray[np.uint64]:
    """Return the first numbers of many, each of seven bits a byte, the last byte below 128."""
    read = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(read < 128)[:count] + 1
    begins = np.append(0, ends[:-1])
    shifts = 7 * (np.arange(ends[-1]) - np.repeat(begins, ends - begins))
    parts = (read[: ends[-1]] & 127).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(parts, begins)


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def _parsed(content: bytes, at: int, type_: int) -> tuple[Any, int]:
    """Read a value of a type, and return it with the place behind it."""
    if type_ in (1, 2):
        return type_ == 1, at
    if type_ in _INTEGERS:
        number, at = _varint(content, at)
        return (number >> 1) ^ -(number & 1), at
    if type_ == _STRUCT:
        return _parsed_struct(content, at)
    if type_ in (_LIST, 10):
        count, of, at = content[at] >> 4, content[at] & 15, at + 1
        if count == 15:
            count, at = _varint(content, at)
        items = []
        for _ in range(count):
            item, at = _parsed(content, at, of)
            items.append(item)
        return (of, items), at
    length = {3: 1, _DOUBLE: 8}.get(type_, 0)
    if type_ == _BINARY:
        length, at = _varint(content, at)
    return content[at : at + length], at + length


def _parsed_struct(content: bytes, at: int) -> tuple[Struct, int]:
    fields, number = Struct(), 0
    while header := content[at]:
        at += 1
        if header >> 4:
            number += header >> 4
        else:
            number, at = _parsed(content, at, _I32)
        value, at = _parsed(content, at, header & 15)
        fields[number] = (header & 15, value)
    return fields, at + 1


def _written(type_: int, value: Any) -> bytes:
    """Write a value of a type."""
    if type_ in (1, 2):
        return b""
    if type_ in _INTEGERS:
        return _as_varint((value << 1) ^ (value >> 63))
    if type_ == _LIST:
        of, items = value
        return b"".join(
            [bytes([0xF0 | of]), _as_varint(len(items)), *(_written(of, n) for n in items)]
        )
    if type_ == _STRUCT:
        return b"".join(_written_fields(value))
    return (_as_varint(len(value)) if type_ == _BINARY else b"") + bytes(value)


def _written_fields(fields: Struct) -> Iterator[bytes]:
    before = 0
    for number in sorted(fields):
        type_, value = fields[number]
        yield bytes([(number - before) << 4 | type_])
        yield _written(type_, value)
        before = number
    yield b"\0"


def _as_varint(number: int) -> bytes:
    written = bytearray()
    while number >= 128:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])
