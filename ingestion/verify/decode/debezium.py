"""Debezium's envelopes, read again: JSON with or without its schema, or framed Avro.

What the values mean in JSON is as its documentation says.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

from oncelake.ingestion.declaration.formats import DebeziumOptions, JsonKeyOptions
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.verify.decode import (
    Decode,
    DecodedRecord,
    Expected,
    Headers,
    ReadFramed,
    coerce,
)
from oncelake.ingestion.verify.decode.avro import (
    CLOCKS,
    branches_of,
    datum_reader,
    fields_of,
    inside,
    naming,
    parse_schema,
)
from oncelake.ingestion.verify.decode.avro import fit as fit_avro
from oncelake.ingestion.verify.decode.coerce import (
    TICKS,
    BadRecordError,
    Read,
    TruncateError,
    refuse,
)
from oncelake.ingestion.verify.decode.json import parse
from oncelake.ingestion.verify.read.record import Row

_CLOCKS: Final = {"ts_ms": 10**3, "ts_us": 10**6, "ts_ns": 10**9}
_TICKS: Final = {
    "org.apache.kafka.connect.data.Timestamp": 10**3,
    **{f"io.debezium.time.{name}": ticks for name, ticks in CLOCKS.items()},
}
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?0*[0-9]{1,3})?")
_SCALE: Final = re.compile(r"-?[0-9]{1,6}")
_PLACEHOLDER: Final = "__debezium_unavailable_value"
# The text, its base64, and the UUID of version 3 that Java makes of it.
_PLACEHOLDERS: Final = (
    _PLACEHOLDER,
    "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    "b68a35a7-17ad-35b3-af2a-ae46edb4545a",
)


def reading(expected: Expected) -> Decode:
    """Return what reads one envelope."""
    if isinstance(expected.options, JsonKeyOptions):
        return _reading_of_keys(expected.row.parts)
    assert isinstance(expected.options, DebeziumOptions), "options are of the format's model"
    if expected.options.encoding == "json":
        return ReadJsonEnvelope(expected, expected.options)
    row = _RowOfEnvelope(expected, expected.options)
    return ReadFramed(expected, "AVRO", lambda schema: _avro_reader(schema, row), naming)


class _RowOfEnvelope:
    """Takes the declared columns from an envelope, however it is encoded."""

    def __init__(self, expected: Expected, options: DebeziumOptions) -> None:
        self.options, self.expected, self.wanted = options, expected, expected.row.parts
        self._movable = self.wanted.keys() - options.columns.keys()

    def record(
        self,
        envelope: Any,
        key: Mapping[str, Any],
        headers: Headers,
        readers: Callable[[str], Mapping[str, Read]],
    ) -> DecodedRecord:
        """Return the row of a parsed envelope; ``key`` is for a delete that leaves it out.

        ``readers`` returns what takes each column from ``before``, or from ``after``.
        """
        op = envelope.get("op") if isinstance(envelope, dict) else None
        if op == "t":
            raise TruncateError("the source was truncated")
        if op not in ("c", "r", "u", "d"):
            raise BadRecordError(f"no envelope of a changed row: op {op!r:.20}")
        side, is_delete = ("before", True) if op == "d" else ("after", False)
        row = envelope.get(side)
        row = {} if row is None and is_delete else row
        if not isinstance(row, dict):
            raise BadRecordError("an envelope without its row")
        if is_delete:
            row = {**key, **{name: value for name, value in row.items() if value is not None}}
        moved_from = self._old_key(headers) if op == "c" else None
        moves_away = is_delete and any(name == "__debezium.newkey" for name, _ in headers)
        # A row that is new is sent whole, unless it is an old one under another key.
        may_lack = op == "u" or moved_from is not None
        ends_here = is_delete or self.expected.is_elsewhere
        values, left_out = self._values(
            envelope, row, readers(side), may_lack=may_lack, is_gone=ends_here
        )
        left_out = set() if self.expected.is_elsewhere else left_out
        moves = moves_away or moved_from is not None
        ended = self._ended(envelope, values, readers) if op == "u" else None
        if ended is not None:
            moved_from = dict(zip(self.wanted, ended.values, strict=True))
        return DecodedRecord(
            values=values,
            is_delete=ends_here,
            left_out=frozenset(self._movable if moves_away else left_out),
            moved_from=moved_from,
            ended=ended,
            moves=moves,
            is_gone=is_delete,
            tells_nothing=is_delete and all(value is None for value in row.values()),
        )

    def _values(
        self,
        envelope: Any,
        row: Mapping[str, Any],
        readers: Mapping[str, Read],
        *,
        may_lack: bool,
        is_gone: bool,
    ) -> tuple[Row, set[str]]:
        """Read the columns of one side of an envelope, and name those that it leaves out."""
        values, left_out = [], set()
        for name, read in readers.items():
            path = self.options.columns.get(name)
            value = _at(envelope, path) if path else row.get(name)
            if may_lack and not path and _is_placeholder(value):
                value = None
                left_out.add(name)
            try:
                values.append(None if value is None else read(value))
            except (ValueError, OverflowError):
                # A value of a row that is gone only counts where it is part of the key.
                if path or not is_gone:
                    raise
                values.append(None)
        return tuple(values), left_out

    def _ended(
        self, envelope: Any, values: Row, readers: Callable[[str], Mapping[str, Read]]
    ) -> DecodedRecord | None:
        """Return the delete of the row before an update if it had, as far as told, another key."""
        before = envelope.get("before")
        if not isinstance(before, dict) or not self.expected.moved_by:
            return None
        ended, _ = self._values(envelope, before, readers("before"), may_lack=True, is_gone=True)
        at = [number for number, name in enumerate(self.wanted) if name in self.expected.moved_by]
        differs = any(ended[i] is not None and ended[i] != values[i] for i in at)
        left_out = frozenset(self._movable)
        return DecodedRecord(values=ended, is_delete=True, left_out=left_out) if differs else None

    def _declared(self, type_: SqlType, unit: str | None = None) -> Meaning:
        """Return what the declaration alone says of values; of a list, what holds for its items."""
        item = type_
        while item.word == "ARRAY":
            item = item.parts["element"]
        mode = self.options.decimals if item.word == "DECIMAL" else "string"
        scale = None if mode == "string" else item.scale
        return Meaning(TICKS.get(unit or ""), True, scale, is_told=mode != "precise")

    def _old_key(self, headers: Headers) -> dict[str, Any] | None:
        """Read the key that the row had before; empty if it cannot be read, none if there is none.

        It is JSON, as the default converter of headers writes it.
        """
        named = [value for name, value in headers if name == "__debezium.oldkey"]
        if not named:
            return None
        try:
            found = parse(named[-1] or b"")
            if isinstance(found, dict) and sorted(found) == ["payload", "schema"]:
                found = found["payload"]
            known = found if isinstance(found, dict) else {}
            return {
                name: _fit(self._declared(type_), type_)(known[name])
                for name, type_ in self.wanted.items()
                if known.get(name) is not None
            }
        except (ValueError, OverflowError):
            return {}


def _at(envelope: Any, path: str) -> Any:
    for name in path.split("."):
        envelope = _bare(envelope).get(name) if isinstance(_bare(envelope), dict) else None
    return envelope


def _bare(value: Any) -> Any:
    """Take a value of one of Avro's unions without the number of its branch."""
    return value[1] if isinstance(value, tuple) else value


def _is_placeholder(value: Any) -> bool:
    value = _bare(value)
    if isinstance(value, list):
        return value == list(_PLACEHOLDER.encode()) or (
            len(value) == 1 and _is_placeholder(value[0])
        )
    if isinstance(value, dict):
        return value == {_PLACEHOLDER: _PLACEHOLDER}
    return value in _PLACEHOLDERS or value == _PLACEHOLDER.encode()


class ReadJsonEnvelope(_RowOfEnvelope):
    """Reads envelopes that are JSON; what takes their values is made once a schema."""

    def __init__(self, expected: Expected, options: DebeziumOptions) -> None:
        super().__init__(expected, options)
        self._readers: dict[str, dict[str, Read]] = {}

    def __call__(
        self, raw: bytes, key: bytes | None = None, headers: Headers = ()
    ) -> DecodedRecord:
        """Read one envelope, and from the key what a delete leaves out."""
        schema, envelope = self._split(raw)
        readers = partial(self._readers_of, schema)
        record = self.record(envelope, self._key(key), headers, readers)
        row = coerce.undeclared(envelope.get("after"), self.expected.row, coerce.inside_json)
        return self.expected.checked(record, row)

    def _split(self, raw: bytes) -> tuple[Any, Any]:
        document = parse(raw)
        if not self.options.schemas:
            return None, document
        if not isinstance(document, dict) or sorted(document) != ["payload", "schema"]:
            raise BadRecordError("schema and payload were expected")
        return document["schema"], document["payload"]

    def _key(self, key: bytes | None) -> Mapping[str, Any]:
        try:
            payload = self._split(key)[1] if key else {}
        except BadRecordError:
            return {}
        return payload if isinstance(payload, dict) else {}

    def _readers_of(self, schema: Any, side: str) -> dict[str, Read]:
        key = f"{side} {schema!r}"
        if key not in self._readers:
            meanings = meanings_of(schema, side) if self.options.schemas else None
            self._readers[key] = {
                name: _fit(self._meaning(name, type_, meanings), type_)
                for name, type_ in self.wanted.items()
            }
        return self._readers[key]

    def _meaning(self, name: str, type_: SqlType, meanings: dict[str, Meaning] | None) -> Meaning:
        if path := self.options.columns.get(name):
            return Meaning(ticks=_CLOCKS.get(path.rpartition(".")[2]))
        if meanings is not None:
            return meanings.get(name, Meaning())
        unit = self.options.timestamps
        return self._declared(type_, unit.get(name) if isinstance(unit, dict) else unit)


class Meaning(NamedTuple):
    """The meaning of a value by its schema, or by the declaration.

    Attributes:
        ticks: A number is a moment, of so many ticks a second.
        is_days: A number is a date.
        scale: A text is the base64 of an unscaled decimal.
        items: What is said of a list's items.
        is_told: Whether a text cannot be a plain number all the same.
    """

    ticks: int | None = None
    is_days: bool = False
    scale: int | None = None
    items: Any = None
    is_told: bool = True


def _fields_of(schema: Any) -> list[dict[str, Any]]:
    """Return the fields that a schema lists; what is no field, or no schema, counts for nothing."""
    listed = schema.get("fields") if isinstance(schema, dict) else None
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def meanings_of(schema: Any, side: str) -> dict[str, Meaning]:
    """Read what an envelope's schema says of the columns of one side."""
    sides = [each for each in _fields_of(schema) if each.get("field") == side]
    fields = _fields_of(sides[0]) if sides else []
    return {str(each.get("field")): _meaning_of(each) for each in fields}


def _meaning_of(schema: Mapping[str, Any]) -> Meaning:
    """Read what a schema of Kafka Connect says of its values."""
    name, items = str(schema.get("name")), schema.get("items")
    if name == "org.apache.kafka.connect.data.Decimal":
        told = schema.get("parameters")
        scale = told.get("scale", 0) if isinstance(told, dict) else 0
        if type(scale) not in (int, str) or not _SCALE.fullmatch(str(scale)):
            raise BadRecordError(f"a decimal of scale {scale!r:.80}")
        return Meaning(scale=int(scale))
    is_days = name in {"io.debezium.time.Date", "org.apache.kafka.connect.data.Date"}
    inner = _meaning_of(items) if isinstance(items, dict) else None
    return Meaning(_TICKS.get(name), is_days, None, inner)


def _fit(meaning: Meaning, type_: SqlType) -> Read:
    """Return what takes a parsed value that is not null as a declared type."""
    word = type_.word
    if word in {"STRUCT", "ARRAY", "MAP"}:
        kind = list if word == "ARRAY" else dict
        inner: Any = meaning.items or meaning
        parts = dict.fromkeys(type_.parts, meaning) if word == "STRUCT" else inner
        read = coerce.nested(word, parts, type_, _fit)
        return lambda value: read(value) if type(value) is kind else refuse(value)
    if word == "DECIMAL":
        return lambda value: _decimal(value, meaning, type_)
    if word == "DATE":
        days = (coerce.day(type_) if meaning.is_days else None) or refuse
        return lambda value: days(value) if type(value) is int else coerce.SCALARS[word](value)
    if word in {"TIMESTAMP", "TIMESTAMP_NTZ"}:
        zoned, ticks = word == "TIMESTAMP", meaning.ticks
        number = (coerce.moment(type_, ticks, zoned=zoned) if ticks else None) or refuse
        return lambda value: (
            number(value) if type(value) is int else coerce.iso_moment(value, zoned)
        )
    if word in {"FLOAT", "DOUBLE"}:
        return lambda value: (
            coerce.NOT_FINITE[value]
            if type(value) is str and value in coerce.NOT_FINITE
            else coerce.SCALARS[word](value)
        )
    plain = coerce.of_json(type_)
    if word == "STRING":
        return lambda value: _decimal_text(value) if type(value) is dict else plain(value)
    return plain


def _decimal_text(value: dict[str, Any]) -> str:
    digits, scale = _variable_scale(value)
    return coerce.unscaled_text(base64.b64decode(digits, validate=True), scale)


def _variable_scale(value: dict[str, Any]) -> tuple[str, int]:
    """Take digits and scale of a number that has its own scale."""
    if sorted(value) != ["scale", "value"]:
        refuse(value)
    digits, scale = value["value"], value["scale"]
    if type(digits) is not str or type(scale) is not int:
        refuse(digits)
    return digits, scale


def _decimal(value: Any, meaning: Meaning, type_: SqlType) -> Decimal:
    digits, scale = value, meaning.scale
    if type(value) is dict:
        digits, scale = _variable_scale(value)
    if type(digits) is str and scale is not None:
        if type(value) is str and not meaning.is_told:
            _refuse_doubtful(value)
        return coerce.unscaled(base64.b64decode(digits, validate=True), scale, type_)
    if type(value) not in (int, str, coerce.WrittenNumber):
        refuse(value)
    if type(value) is str:
        coerce.written(_NUMBER, value)
    return coerce.exact_decimal(coerce.number_in(str(value)), type_)


def _refuse_doubtful(text: str) -> None:
    """Refuse what may be a number as text, and what no connector would write of one."""
    digits = base64.b64decode(text, validate=True)
    number = int.from_bytes(digits, signed=True)
    # Java's bitLength() knows no sign.
    shortest = (number if number >= 0 else ~number).bit_length() // 8 + 1
    parts = [part.removeprefix("+") for part in text.lower().split("e", 1)]
    if all(part.isdigit() for part in parts) or len(digits) != shortest:
        raise BadRecordError(f"a plain number, or base64: {text:.80}")


def _reading_of_keys(columns: Mapping[str, SqlType]) -> Decode:
    """Return what reads a Kafka key with its schema beside it, a bare payload as the one column."""

    def read(raw: bytes, *_: object) -> DecodedRecord:
        document = parse(raw)
        if not isinstance(document, dict) or sorted(document) != ["payload", "schema"]:
            raise BadRecordError("schema and payload were expected")
        schema, payload = document["schema"], document["payload"]
        fields = {str(each.get("field")): each for each in _fields_of(schema)}
        if not isinstance(payload, dict):
            if len(columns) != 1:
                raise BadRecordError("a bare payload, and several columns")
            payload = dict.fromkeys(columns, payload)
        if not fields and isinstance(schema, dict):
            fields = dict.fromkeys(columns, schema)
        values = []
        for name, type_ in columns.items():
            value = payload.get(name)
            take = _fit(_meaning_of(fields.get(name, {})), type_)
            values.append(None if value is None else take(value))
        return DecodedRecord(values=tuple(values))

    return read


def _avro_reader(schema: WriterSchema, row: _RowOfEnvelope) -> Decode:
    root = parse_schema(schema)
    if not {"op", "before", "after"} <= fields_of(root).keys():
        raise BadRecordError("no schema of an envelope")
    readers = {side: _avro_readers(root, side, row) for side in ("before", "after")}
    read_datum, expected = datum_reader(root), row.expected
    paths = coerce.undeclared(_record_in(fields_of(root)["after"]), expected.row, inside)

    def read(payload: bytes, key: object = None, headers: Headers = ()) -> DecodedRecord:
        envelope = {name: _bare(value) for name, value in read_datum(payload).items()}
        return expected.checked(row.record(envelope, {}, headers, readers.__getitem__), paths)

    return read


def _avro_readers(root: Any, side: str, row: _RowOfEnvelope) -> dict[str, Read]:
    columns = fields_of(_record_in(fields_of(root)[side]))
    readers: dict[str, Read] = {}
    for name, type_ in row.wanted.items():
        path = row.options.columns.get(name)
        node = _node_at(root, path) if path else columns.get(name)
        last = (path or "").rpartition(".")[2]
        if node is None:
            readers[name] = lambda _: None
        elif last in _CLOCKS and type_.word == "TIMESTAMP":
            readers[name] = _clock(type_, _CLOCKS[last])
        else:
            readers[name] = fit_avro(node, type_)
    return readers


def _record_in(node: Any) -> Any:
    return next((branch for branch in branches_of(node) if branch.type == "record"), node)


def _node_at(node: Any, path: str) -> Any:
    for name in path.split("."):
        node = fields_of(_record_in(node)).get(name)
        if node is None:
            return None
    # The envelope's own fields are taken without the number of their branch.
    others = [branch for branch in branches_of(node) if branch.type != "null"]
    return others[0] if "." not in path and len(others) == 1 else node


def _clock(type_: SqlType, ticks: int) -> Read:
    read = coerce.moment(type_, ticks, zoned=True) or coerce.never("a moment", type_)
    return lambda value: read(_bare(value))
