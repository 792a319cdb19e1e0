"""Flat records of Avro, decoded column by column for a whole batch.

Each field is read from all records before the next one is; numpy keeps where each record stands. A
doubtful record is read once more by fastavro, which decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as sql

from oncelake.ingestion.formats.arrays import (
    Bytes,
    Flags,
    Numbers,
    are_lost,
    cast_or_null,
    converted,
    within,
)
from oncelake.ingestion.formats.avro.types import converter, fields, is_record, kind, source
from oncelake.ingestion.formats.coerce import FIRST_DAY, FIRST_MOMENT, LAST_DAY, LAST_MOMENT
from oncelake.ingestion.formats.decoder import Encoded, arrow_type, decoded_struct, struct_of_parts
from oncelake.ingestion.formats.wire_format import DecodeMany

_MICROS: Final = 10**6
_LAST_SHIFT: Final = 56
_AS_THEY_ARE: Final = {
    *(("integer", t) for t in (sql.ByteType, sql.ShortType, sql.IntegerType, sql.LongType)),
    *(("float", sql.FloatType), ("float", sql.DoubleType), ("double", sql.DoubleType)),
    *(("boolean", sql.BooleanType), ("string", sql.StringType), ("bytes", sql.BinaryType)),
}
_MOMENTS: Final = {("timestamp", sql.TimestampType), ("local_timestamp", sql.TimestampNTZType)}


class _Cursors:
    """The position of the reader in each record: never after its end."""

    def __init__(self, content: Bytes, at: Numbers, end: Numbers) -> None:
        self.content, self.at, self._end = content, at, end
        self.is_sound: Flags = np.ones(len(at), np.bool_)

    def doubt(self, flags: Flags) -> None:
        """Leave records to another reader."""
        self.is_sound &= ~flags

    def step(self, sizes: Any) -> tuple[Numbers, Numbers]:
        """Step over bytes; return where they begin, and how many are really there."""
        at, after = self.at, self.at + sizes
        self.doubt((after < at) | (after > self._end))
        self.at = np.where(self.is_sound, after, self._end)
        return at, np.where(self.is_sound, after - at, 0)

    def byte(self) -> Bytes:
        return self.content[self.step(1)[0]]

    def number(self) -> Numbers:
        """Read a whole number of variable length; the longest are doubtful."""
        behind = self.at + 1
        byte = self.content[self.at]
        number, more = (byte & 0x7F).astype(np.int64), np.flatnonzero(byte > 0x7F)
        for shift in range(7, _LAST_SHIFT + 1, 7):
            if not len(more):
                break
            byte = self.content[behind[more]]
            number[more] |= (byte & 0x7F).astype(np.int64) << shift
            behind[more] += 1
            more = more[byte > 0x7F]
        self.is_sound[more] = False
        self.step(behind - self.at)
        return (number >> 1) ^ -(number & 1)

    def some(self, which: Flags, read: Callable[[_Cursors], pa.Array]) -> pa.Array:
        """Read on in some records; the others have null."""
        if which.all():
            return read(self)
        at = np.flatnonzero(which)
        some = _Cursors(self.content, self.at[at], self._end[at])
        values = read(some)
        self.at = self.at.copy()
        self.at[at], self.is_sound[at] = some.at, self.is_sound[at] & some.is_sound
        return values.take(pa.array(np.cumsum(which) - 1, mask=~which))


Read = Callable[[_Cursors], pa.Array]


def flat_decoding(root: Any, encoded: Encoded) -> DecodeMany | None:
    """Return the decoding of one schema's payloads; ``None`` where one by one is the only way."""
    nodes = fields(root) if is_record(root) else {}
    readers = [(name, reader) for name, node in nodes.items() if (reader := _reader(node))]
    extra = [name for name in nodes if name not in encoded.schema.names]
    if len(readers) < len(nodes) or not nodes or (extra and encoded.extra_fields == "reject"):
        return None
    type_ = arrow_type(decoded_struct(encoded))
    row_type = type_.field("row").type
    converts = {
        column.name: _conversion(nodes[column.name], column.dataType)
        for column in encoded.schema
        if column.name in nodes
    }

    def decode(content: Bytes, at: Numbers, end: Numbers) -> tuple[pa.StructArray, Flags]:
        cursors, columns = _Cursors(content, at, end), {}
        for name, read in readers:
            values = read(cursors)
            if convert := converts.get(name):
                columns[name] = convert(values)
                cursors.doubt(np.asarray(are_lost(columns[name], values)))
        cursors.doubt(cursors.at != end)
        arrays = [columns.get(f.name, pa.nulls(len(at), f.type)) for f in row_type]
        row = pa.StructArray.from_arrays(arrays, fields=list(row_type))
        names = pa.array([extra], pa.list_(pa.string())).take(pa.array(np.zeros(len(at), int)))
        return struct_of_parts(type_, row=row, extra=names if extra else None), cursors.is_sound

    return decode


def _reader(node: Any) -> Read | None:
    if isinstance(node, list):
        return _nullable(node)
    word, found = kind(node)
    if word == "fixed":
        return lambda cursors: _gathered(cursors, found["size"])
    return _enum(found["symbols"]) if word == "enum" else _READERS.get(word)


def _nullable(branches: list[Any]) -> Read | None:
    others = [at for at, branch in enumerate(branches) if branch != "null"]
    if len(branches) != 2 or len(others) != 1:
        return None
    (other,) = others
    read = _reader(branches[other])
    if read is None:
        return None

    def read_nullable(cursors: _Cursors) -> pa.Array:
        branch = cursors.byte()
        cursors.doubt((branch != 0) & (branch != 2))
        return cursors.some(branch == 2 * other, read)

    return read_nullable


def _boolean(cursors: _Cursors) -> pa.Array:
    byte = cursors.byte()
    cursors.doubt(byte > 1)
    return pa.array(byte == 1)


def _real(cursors: _Cursors, type_: str) -> pa.Array:
    size = np.dtype(type_).itemsize
    at, _ = cursors.step(size)
    return pa.array(cursors.content[at[:, None] + np.arange(size)].view(type_).ravel())


def _gathered(cursors: _Cursors, sizes: Any) -> pa.Array:
    at, sizes = cursors.step(sizes)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    content = cursors.content[np.arange(ends[-1]) + np.repeat(at - ends[:-1], sizes)]
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def _text(cursors: _Cursors) -> pa.Array:
    texts = cast_or_null(_gathered(cursors, cursors.number()), pa.string())
    cursors.doubt(np.asarray(texts.is_null()))
    return texts


def _enum(symbols: list[str]) -> Read:
    names = pa.array(symbols, pa.string())

    def read(cursors: _Cursors) -> pa.Array:
        at = cursors.number()
        cursors.doubt((at < 0) | (at >= len(symbols)))
        return names.take(pa.array(np.where(cursors.is_sound, at, 0)))

    return read


_READERS: Final[dict[str, Read]] = {
    "boolean": _boolean,
    "int": lambda cursors: pa.array(cursors.number()),
    "long": lambda cursors: pa.array(cursors.number()),
    "float": lambda cursors: _real(cursors, "<f4"),
    "double": lambda cursors: _real(cursors, "<f8"),
    "bytes": lambda cursors: _gathered(cursors, cursors.number()),
    "string": _text,
}


def _conversion(node: Any, target: sql.DataType) -> Callable[[pa.Array], Any]:
    """Return the conversion to the declared type; what does not fit becomes null."""
    node = next(each for each in node if each != "null") if isinstance(node, list) else node
    found, type_ = source(node, target), arrow_type(target)
    way = (found.kind, type(target)) if found else None
    if way in _AS_THEY_ARE:
        return lambda values: cast_or_null(values, type_)
    if way == ("date", sql.DateType):
        return lambda values: _days(values, type_)
    if found and way in _MOMENTS and _MICROS % found.unit == 0:
        micros = _MICROS // found.unit
        return lambda values: _moments(values, micros, type_)
    convert = converter(node, target)
    return lambda values: converted(values.to_pylist(), convert, type_)


def _days(values: pa.Array, type_: pa.DataType) -> pa.Array:
    return within(values, pa.int64(), FIRST_DAY, LAST_DAY).cast(pa.int32()).cast(type_)


def _moments(values: pa.Array, micros: int, type_: pa.DataType) -> pa.Array:
    sane = within(values, pa.int64(), -(-FIRST_MOMENT // micros), LAST_MOMENT // micros)
    return pc.multiply(sane, micros).cast(type_)
