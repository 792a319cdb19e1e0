"""Columns of a record that its headers and its Kafka key give, put beside those of its value.

The value is not looked at for them. A header is text in UTF-8, which its column takes as a field of
CSV, or what a Java serializer of its format writes; a BINARY takes the bytes. Of headers of one
name the last counts; without any the column is null, and so it is without a Kafka key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as sql

from oncelake.ingestion.declaration.formats import FORMATS, Header
from oncelake.ingestion.formats import java
from oncelake.ingestion.formats.arrays import last_of
from oncelake.ingestion.formats.csv import from_text
from oncelake.ingestion.formats.decoder import (
    UNFORESEEN,
    BadBytesError,
    Decode,
    Encoded,
    arrow_type,
    decoded_struct,
    printable,
    struct_of_parts,
    text_of,
)

Parts = dict[str, pa.Array]


class MetadataDecoder:
    """Decodes bytes, Kafka keys and headers into the columns of all of them."""

    def __init__(
        self,
        encoded: Encoded,
        decode_bytes: Decode | None,
        *,
        headers: Mapping[str, Header],
        decode_key: Decode | None,
    ) -> None:
        """Compile the decoding.

        Args:
            encoded: The expected content, with the columns of headers and key among the others.
            decode_bytes: Decodes the bytes into the other columns, if there are any.
            headers: The headers that give columns, by these.
            decode_key: Decodes Kafka keys; its columns are taken.
        """
        self._encoded, self._type = encoded, arrow_type(decoded_struct(encoded))
        self._decode_bytes, self._decode_key, self._headers = decode_bytes, decode_key, headers
        self._converts = {
            name: _conversion(encoded.schema[name].dataType, header.format)
            for name, header in headers.items()
        }

    def __call__(self, values: pa.Array, keys: pa.Array, headers: pa.Array) -> pa.StructArray:
        """Decode a batch."""
        parts, given = self._parts(values, keys, headers), dict[str, pa.Array]()
        is_meant = _is_meant(values, parts, self._encoded)
        if self._decode_key is not None:
            key = _fields_of(self._decode_key(keys))
            given |= _fields_of(key["row"])
            fault = _joined(key["reason"], key["detail"])
            parts = _refused(parts, "bad_key", pc.if_else(is_meant, fault, None))
        for name, header in self._headers.items():
            raws = headers.flatten().field("value").take(last_of(headers, [header.name]))
            given[name], fault = self._converts[name](raws)
            fault = pc.if_else(is_meant, _joined(f"header {header.name}", fault), None)
            parts = _refused(parts, "bad_header", fault)
        is_good = pc.and_(is_meant, pc.is_null(parts["reason"]))
        return _assembled(self._type, parts, given, is_good)

    def _parts(self, values: pa.Array, keys: pa.Array, headers: pa.Array) -> Parts:
        """Return what the bytes alone say."""
        if self._decode_bytes is None:
            return dict.fromkeys(("reason", "detail"), pa.nulls(len(values), pa.string()))
        options = self._encoded.options
        more = [keys] if options.reads_key else []
        more += [headers] if options.reads_headers else []
        return _fields_of(self._decode_bytes(values, *more))


def without_columns(encoded: Encoded, names: Collection[str]) -> Encoded:
    """Return the expected content but for some columns."""
    return replace(
        encoded,
        schema=sql.StructType([each for each in encoded.schema if each.name not in names]),
        keys=[name for name in encoded.keys if name not in names],
        lenient=encoded.lenient.difference(names),
    )


def _reading(target: sql.DataType, format_: str | None) -> Callable[[bytes], Any]:
    """Return what takes the bytes of a header."""
    if format_ is not None:
        read_number = java.reader(FORMATS[format_].options())
        return lambda raw: read_number(raw).row[0]
    take = from_text(None, target)
    return bytes if isinstance(target, sql.BinaryType) else lambda raw: take(text_of(raw))


def _conversion(
    target: sql.DataType, format_: str | None
) -> Callable[[pa.Array], tuple[pa.Array, pa.Array]]:
    """Return what converts header values, each distinct one once, and says which it could not."""
    read, type_ = _reading(target, format_), arrow_type(target)

    def attempt(raw: bytes) -> tuple[Any, str | None]:
        try:
            return read(raw), None
        except BadBytesError as error:
            return None, f"{f'no {format_}' if format_ else error.reason}: {printable(error)}"
        except UNFORESEEN as error:
            return None, f"undecodable: {printable(error)}"

    def convert(raws: pa.Array) -> tuple[pa.Array, pa.Array]:
        distinct = raws.dictionary_encode()
        outcomes = [attempt(raw) for raw in distinct.dictionary.to_pylist()]
        values = pa.array([value for value, _ in outcomes], type_)
        faults = pa.array([fault for _, fault in outcomes], pa.string())
        return values.take(distinct.indices), faults.take(distinct.indices)

    return convert


def _joined(what: pa.Array | str, detail: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(what, detail, ": ")


def _is_meant(values: pa.Array, parts: Parts, encoded: Encoded) -> pa.Array:
    """Tell which bytes are there, and not of another record type than those that are meant."""
    is_there = pc.is_valid(values)
    if not encoded.record:
        return is_there
    is_of_type = pc.is_in(parts["record"], pa.array(encoded.record, pa.string()))
    return pc.and_(is_there, pc.or_(is_of_type, pc.is_null(parts["record"])))


def _refused(parts: Parts, reason: str, fault: pa.Array) -> Parts:
    """Give records that have no reason yet this one where there is a fault, and no row."""
    is_bad = pc.and_(pc.is_valid(fault), pc.is_null(parts["reason"]))
    if not is_bad.true_count:
        return parts
    refused = {
        name: pc.if_else(is_bad, pa.scalar(None, part.type), part) for name, part in parts.items()
    }
    refused["reason"] = pc.if_else(is_bad, reason, parts["reason"])
    refused["detail"] = pc.if_else(is_bad, fault, parts["detail"])
    return refused


def _assembled(
    type_: pa.StructType, parts: Parts, given: Parts, is_good: pa.Array
) -> pa.StructArray:
    """Put the given columns into every row that was decoded, and a row where that is all."""
    has_row = pc.is_valid(parts["row"]) if "row" in parts else is_good
    rows = {"row": has_row}
    rows |= {name: pc.is_valid(parts[name]) for name in ("ended", "moved_from") if name in parts}
    whole = {}
    for name, is_row in rows.items():
        fields = list(type_.field(name).type)
        columns = {**(_fields_of(parts[name]) if name in parts else {}), **given}
        arrays = [columns[field.name].cast(field.type) for field in fields]
        whole[name] = pa.StructArray.from_arrays(arrays, fields=fields, mask=pc.invert(is_row))
    return struct_of_parts(type_, **{**parts, **whole})


def _fields_of(struct: pa.StructArray) -> Parts:
    """Return the fields of a struct, null where it is."""
    names = (field.name for field in struct.type)
    return dict(zip(names, struct.flatten(), strict=True))
