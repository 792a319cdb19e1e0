"""JSON documents, one a record, decoded strictly, and fast where they are surely sound.

msgspec decodes by the declared types; a doubtful record is read once more by Python's parser, which
decides. Names that are not declared but come often are learnt, so that they cost no second reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import compress
from json import dumps
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from oncelake.ingestion.declaration.formats import JsonKeyOptions
from oncelake.ingestion.formats import decoder
from oncelake.ingestion.formats.arrays import Flags, cast_or_null
from oncelake.ingestion.formats.connect import ConnectKeys
from oncelake.ingestion.formats.decoder import (
    Decode,
    Decoded,
    Encoded,
    arrow_type,
    by_record,
    decoded_struct,
    merged,
    struct_of_parts,
)
from oncelake.ingestion.formats.json.columns import Learned, count_colons, shape_of
from oncelake.ingestion.formats.json.strict import StrictReader
from oncelake.ingestion.formats.spelling import Undeclared, paths_of
from oncelake.ingestion.formats.strict_json import LONGEST_NUMBER, MOST_NESTED
from oncelake.ingestion.formats.variant import LONGEST_VARIANT

REASONS: Final[dict[str, str]] = {
    **decoder.REASONS,
    "invalid_utf8": "the bytes are not UTF-8",
    "empty_value": "the value is empty, or nothing but white space; it is not null",
    "malformed_json": "the text is not JSON as RFC 8259 has it",
    "trailing_data": "something follows the document: garbage, or a second one",
    "duplicate_name": "an object has a name twice",
    "lone_surrogate": "half of a surrogate pair, which is no character",
    "not_an_object": "the document is an array, a scalar or null",
    "wrong_type": "a value is of another type than declared; text is no number, a number no text",
    "out_of_range": "a number does not fit the declared DECIMAL",
    "inexact_number": "a number would be rounded in its DECIMAL, or to zero in a VARIANT",
    "not_finite": "a number overflows to infinity, or text spells NaN or Infinity",
    "bad_time": "no date or time of ISO 8601 between the years 1 and 9999",
    "bad_base64": "the text of a BINARY column is not base64",
    "too_long": "the text is longer than its VARCHAR",
    "wrong_case": "a name is declared in another case, and the declared one is absent",
    "malformed_key": "the Kafka key is not as its `key_format` says",
    "ambiguous_key": "the Kafka key is a bare value, and may be a number as Java writes it",
    "unknown_field": "a name is not declared, and the stream says `extra_fields: reject`, or a "
    "STRUCT that follows its schema cannot get the field",
}
_REFUSED: Final = (msgspec.MsgspecError, ValueError, RecursionError)
# What msgspec takes in no name.
_UNREADABLE: Final = re.compile(r'["\\\x00-\x1f]')
# Records to learn names from before the others of a batch are decoded.
_SAMPLE: Final = 50
# As many as fit into the bits of one whole number.
_MOST_LEARNED: Final = 60
_ESCAPED_COLON: Final = re.compile(rb"\\u003[aA]")
# A number that is too long has three digits or more at these distances.
_STEP: Final = LONGEST_NUMBER // 4
_AS_DIGITS: Final = bytes(ord("0") if byte in b"0123456789.eE+-" else 32 for byte in range(256))


def opened(encoded: Encoded) -> Decode:
    """Decode each value as one JSON object with the declared fields.

    A field that is absent is null. A key that is a single column may be a bare value.
    """
    options = encoded.options
    if isinstance(options, JsonKeyOptions) and options.schemas:
        return by_record(ConnectKeys(encoded.schema), encoded)
    if any(map(_UNREADABLE.search, paths_of(encoded.schema))):
        return by_record(StrictReader(encoded), encoded)
    return _JsonDecoder(encoded)


class _JsonDecoder:
    """Decodes batches: at once the records that are surely sound, and strictly all others."""

    def __init__(self, encoded: Encoded) -> None:
        self._fast, self._strict = FastPath(encoded), StrictReader(encoded)
        self._one_by_one = by_record(self._read, encoded)
        self._is_new = True

    def __call__(self, values: pa.Array) -> pa.StructArray:
        if values.null_count == len(values):
            # As most keys of tombstones are.
            return self._one_by_one(values)
        if self._is_new and len(values) > _SAMPLE:
            # Names are learnt from a sample, before all others are decoded.
            self._is_new = False
            return pa.concat_arrays([self(values[:_SAMPLE]), self(values[_SAMPLE:])])
        try:
            decoded, is_sound = self._fast(values)
        except decoder.UNFORESEEN:
            # Nothing in a record may stop the stream: decoding one by one decides.
            return self._one_by_one(values)
        if is_sound.all():
            return decoded
        others = self._doubtful(values.filter(pa.array(~is_sound)))
        return merged([(np.flatnonzero(is_sound), decoded), (np.flatnonzero(~is_sound), others)])

    def _doubtful(self, values: pa.Array) -> pa.StructArray:
        """Decode a sample one by one, and then the others fast if there was something to learn."""
        sample, others = self._one_by_one(values[:_SAMPLE]), values[_SAMPLE:]
        rest = self if self._fast.learn() else self._one_by_one
        return pa.concat_arrays([sample, rest(others)]) if len(others) else sample

    def _read(self, raw: bytes) -> Decoded:
        decoded, undeclared = self._strict.read(raw)
        self._fast.note(undeclared)
        return decoded


class FastPath:
    """Decodes records that are surely sound, and says which they are."""

    def __init__(self, encoded: Encoded) -> None:
        self._schema, self._is_kept = encoded.schema, encoded.extra_fields == "keep"
        self._paths = {path.lower() for path in paths_of(encoded.schema)}
        self._type = arrow_type(decoded_struct(encoded))
        self._learned: dict[Undeclared, None] = {}
        self._noted: dict[Undeclared, None] = {}
        self._open()

    def __call__(self, values: pa.Array) -> tuple[pa.StructArray, Flags]:
        """Return the records that are sound, decoded, and which they are."""
        raws = values.to_pylist()
        is_sound = _are_plain(values, raws)
        objects = self._objects(raws, is_sound)
        column = self._shape.column(objects)
        adds_up = np.equal(column.colons, count_colons(values)[is_sound])
        is_certain: Flags = adds_up & np.logical_not(column.doubtful)
        is_sound[is_sound] = is_certain
        rows = column.array if is_certain.all() else column.array.filter(pa.array(is_certain))
        extra = self._extra({name: has[is_certain] for name, has in column.undeclared.items()})
        kept = self._kept(objects, is_certain) if self._is_kept else None
        return struct_of_parts(self._type, row=rows, extra=extra, kept=kept), is_sound

    def note(self, undeclared: Iterable[Undeclared]) -> None:
        """Remember names of a good record, to be learnt.

        One that is declared in another case is not: where it stands alone, its record is bad.
        """
        self._noted.update(
            (each, None)
            for each in undeclared
            if not _UNREADABLE.search(each.name) and each.path.lower() not in self._paths
        )

    def learn(self) -> bool:
        """Learn the names noted, as far as there is room; tell whether there is one more."""
        before = len(self._learned)
        self._learned = dict.fromkeys([*self._learned | self._noted][:_MOST_LEARNED])
        self._noted = {}
        if len(self._learned) > before:
            self._open()
        return len(self._learned) > before

    def _open(self) -> None:
        self._shape = shape_of(self._schema, Learned(self._learned, self._is_kept))
        self._decode = msgspec.json.Decoder(self._shape.annotation).decode

    def _objects(self, raws: list[Any], is_sound: Flags) -> list[Any]:
        """Decode records; what msgspec refuses is not sound."""
        if is_sound.all():
            with suppress(*_REFUSED):
                return list(map(self._decode, raws))
        objects = []
        for at in np.flatnonzero(is_sound).tolist():
            try:
                objects.append(self._decode(raws[at]))
            except _REFUSED:
                is_sound[at] = False
        return objects

    def _extra(self, undeclared: Mapping[Undeclared, Flags]) -> pa.Array | None:
        """List the names of each record, each combination of them once."""
        if not undeclared:
            return None
        paths = [name.path for name in undeclared]
        powers = [has.astype(np.int64) << at for at, has in enumerate(undeclared.values())]
        codes, which = np.unique(np.sum(powers, axis=0), return_inverse=True)
        lists = [[p for at, p in enumerate(paths) if code >> at & 1] or None for code in codes]
        return pa.array(lists, pa.list_(pa.string())).take(pa.array(which))

    def _kept(self, objects: list[Any], is_certain: Flags) -> list[str | None]:
        """Write the fields of each record that are not declared as one object again."""
        names = [name for prefix, name in self._learned if not prefix]
        parts = [(f"{dumps(n)}:", f"f{at}") for at, n in enumerate(names, len(self._schema))]
        kept: list[str | None] = []
        for record in compress(objects, is_certain):
            raws = ((label, getattr(record, attribute)) for label, attribute in parts)
            fields = [label + bytes(raw).decode() for label, raw in raws if raw is not UNSET]
            kept.append("{" + ",".join(fields) + "}" if fields else None)
        return kept


def _are_plain(values: pa.Array, raws: list[bytes | None]) -> Flags:
    """Tell which bytes are UTF-8 that msgspec and the count of colons can decode surely."""
    content = values.buffers()[2]
    has_escapes = content is not None and rb"\u003" in content.to_pybytes()
    is_long = (pc.max(pc.binary_length(values)).as_py() or 0) > MOST_NESTED
    are_text: Flags = np.array(cast_or_null(values, pa.string()).is_valid())
    if not (has_escapes or is_long):
        return are_text
    are_plain = (raw is not None and _is_plain(raw) for raw in raws)
    return are_text & np.fromiter(are_plain, np.bool_, len(raws))


def _is_plain(raw: bytes) -> bool:
    """Tell that there is no number or nesting of doubtful size, and no escaped colon."""
    if len(raw) <= MOST_NESTED:
        return not _ESCAPED_COLON.search(raw)
    has_long_number = b"000" in raw[::_STEP].translate(_AS_DIGITS)
    is_deep = raw.count(b"[") + raw.count(b"{") > MOST_NESTED
    is_long = len(raw) > LONGEST_VARIANT
    return not (is_long or has_long_number or is_deep or _ESCAPED_COLON.search(raw))
