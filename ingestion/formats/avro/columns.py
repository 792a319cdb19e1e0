"""Records of Avro, decoded column by column for a whole batch.

Each field is read from all records before the next one is; numpy keeps where each record stands.
Of lists, the first items of all records are read, then the second ones, and so on. A doubtful
record is read once more by fastavro, which decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from oncelake.ingestion.formats.arrays import Bytes, Flags, Numbers, cast_or_null
from oncelake.ingestion.formats.avro.conversion import conversion
from oncelake.ingestion.formats.avro.types import fields, has_circles, is_record, kind, undeclared
from oncelake.ingestion.formats.decoder import Encoded, arrow_type, decoded_struct, struct_of_parts
from oncelake.ingestion.formats.registry.wire_format import DecodeMany

_LAST_SHIFT: Final = 56
# Arrow would follow a deeper type until the stack overflows.
_MOST_LEVELS: Final = 32
# If fewer items are read at once, in the mean, whole columns are not worth the effort.
_MANY_ITEMS: Final = 64


class _Cursors:
    """The position of the reader in each record: never after its end."""

    def __init__(self, content: Bytes, at: Numbers, end: Numbers) -> None:
        self.content, self.at, self.end = content, at, end
        self.is_sound: Flags = np.ones(len(at), np.bool_)

    def doubt(self, flags: Flags | bool) -> None:
        """Leave records to another reader."""
        self.is_sound &= np.logical_not(flags)

    def step(self, sizes: Any) -> tuple[Numbers, Numbers]:
        """Step over bytes; return where they begin, and how many are really there."""
        at, after = self.at, self.at + sizes
        self.doubt((after < at) | (after > self.end))
        self.at = np.where(self.is_sound, after, self.end)
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

    def some(self, at: Numbers, read: Read) -> pa.Array:
        """Read on in the records of some places."""
        if len(at) == len(self.at):
            return read(self)
        some = _Cursors(self.content, self.at[at], self.end[at])
        values = read(some)
        self.at = self.at.copy()
        self.at[at], self.is_sound[at] = some.at, self.is_sound[at] & some.is_sound
        return values

    def where(self, which: Flags, read: Read) -> pa.Array:
        """Read on in some records; the others have null."""
        values = self.some(np.flatnonzero(which), read)
        return values if which.all() else values.take(pa.array(np.cumsum(which) - 1, mask=~which))


Read = Callable[[_Cursors], pa.Array]


def column_decoding(root: Any, encoded: Encoded) -> DecodeMany | None:
    """Return the decoding of one schema's payloads; ``None`` where one by one is the only way."""
    nodes = fields(root) if is_record(root) else {}
    # Records that contain themselves have no end as columns.
    read = None if has_circles(root) else _reader(root, _MOST_LEVELS)
    extra = [*dict.fromkeys(undeclared(root, encoded.schema))]
    if read is None or not nodes or encoded.refused(extra):
        return None
    type_ = arrow_type(decoded_struct(encoded))
    row_type = type_.field("row").type
    converts = {
        column.name: conversion(nodes[column.name], column.dataType)
        for column in encoded.schema
        if column.name in nodes
    }

    def decode(content: Bytes, at: Numbers, end: Numbers) -> tuple[pa.StructArray, Flags]:
        cursors, columns = _Cursors(content, at, end), {}
        record = read(cursors)
        cursors.doubt(cursors.at != end)
        for name, convert in converts.items():
            columns[name], are_lost = convert(record.field(name))
            cursors.doubt(are_lost)
        arrays = [columns.get(f.name, pa.nulls(len(at), f.type)) for f in row_type]
        row = pa.StructArray.from_arrays(arrays, fields=list(row_type))
        names = pa.array([extra], pa.list_(pa.string())).take(pa.array(np.zeros(len(at), int)))
        return struct_of_parts(type_, row=row, extra=names if extra else None), cursors.is_sound

    return decode


def _reader(node: Any, levels: int) -> Read | None:
    """Return what reads a type so many levels deep, if it can be read in columns."""
    word, found = kind(node)
    if word == "fixed":
        return lambda cursors: _gathered(cursors, found["size"])
    if word == "enum":
        return _enum(found["symbols"])
    make = {"union": _union, "record": _record, "array": _list, "map": _map}.get(word)
    return make(node, levels - 1) if make and levels else _READERS.get(word)


def _union(branches: list[Any], levels: int) -> Read | None:
    """Return what reads the only branch that is not null, or a struct of one field a branch."""
    readers = [(2 * at, _reader(node, levels)) for at, node in enumerate(branches)]
    some = [
        (byte, read)
        for (byte, read), node in zip(readers, branches, strict=True)
        if read and node != "null"
    ]
    if len(some) + branches.count("null") < len(branches) or not some:
        return None
    most = min(2 * len(branches), 128)

    def read_union(cursors: _Cursors) -> pa.Array:
        byte = cursors.byte()
        cursors.doubt((byte % 2 == 1) | (byte >= most))
        values = [cursors.where(byte == branch, read) for branch, read in some]
        names = [str(at) for at in range(len(values))]
        return values[0] if len(some) == 1 else pa.StructArray.from_arrays(values, names)

    return read_union


def _record(node: Any, levels: int) -> Read | None:
    nodes = fields(node)
    readers = [reader for each in nodes.values() if (reader := _reader(each, levels))]
    if len(readers) < len(nodes) or not nodes:
        return None
    return lambda cursors: pa.StructArray.from_arrays(
        [read(cursors) for read in readers], list(nodes)
    )


def _list(node: Any, levels: int) -> Read | None:
    read = _reader(node["items"], levels)
    return read and _items(read)


def _map(node: Any, levels: int) -> Read | None:
    """Return what reads a list of keys and values."""
    read = _reader(node["values"], levels)
    return read and _items(
        lambda cursors: pa.StructArray.from_arrays(
            [_text(cursors), read(cursors)], ["key", "value"]
        )
    )


def _items(read: Read) -> Read:
    """Return what reads lists of one block; a list of several, or of a known size, is doubtful."""

    def read_items(cursors: _Cursors) -> pa.Array:
        count = cursors.number()
        cursors.doubt((count < 0) | (count > cursors.end - cursors.at))
        count[~cursors.is_sound] = 0
        cursors.doubt(count > _longest_worthwhile(count))
        filled = at = np.flatnonzero(cursors.is_sound & (count > 0))
        places, parts = [at], [cursors.some(at, read)]
        while len(at := at[cursors.is_sound[at] & (count[at] > len(parts))]):
            places.append(at)
            parts.append(cursors.some(at, read))
        no_more = cursors.some(filled, lambda some: some.byte()) == 0
        cursors.is_sound[filled] &= no_more
        return _in_order(places, parts, len(count))

    return read_items


def _longest_worthwhile(counts: Numbers) -> Any:
    """Return the length of the longest lists worth reading: their items are read so many times."""
    falling = np.sort(counts)[::-1]
    of_shorter = falling.sum() - np.cumsum(falling)
    items = np.arange(1, len(counts) + 1) * falling + of_shorter
    return falling[items >= _MANY_ITEMS * falling].max(initial=0)


def _in_order(places: list[Numbers], parts: list[pa.Array], length: int) -> pa.Array:
    """Return lists of the first items of the lists at some places, the second ones, and so on."""
    sizes = np.bincount(np.concatenate(places), minlength=length)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    order = np.empty(offsets[-1], np.int64)
    order[np.concatenate([offsets[at] + n for n, at in enumerate(places)])] = np.arange(len(order))
    items = pa.concat_arrays(parts).take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items)


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
    "null": lambda cursors: pa.nulls(len(cursors.at)),
    "boolean": _boolean,
    "int": lambda cursors: pa.array(cursors.number()),
    "long": lambda cursors: pa.array(cursors.number()),
    "float": lambda cursors: _real(cursors, "<f4"),
    "double": lambda cursors: _real(cursors, "<f8"),
    "bytes": lambda cursors: _gathered(cursors, cursors.number()),
    "string": _text,
}
