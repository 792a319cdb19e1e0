"""Debezium's envelopes, in JSON or Avro: each is one change of one database row.

The row of ``c``, ``r`` and ``u`` is ``after``; a ``d`` is itself a delete, so the null value that
follows it only repeats it. Schemas, in Avro or next to JSON, have the units and scales that JSON
alone leaves to the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import md5
from typing import Any, Final
from uuid import UUID

from pyspark.sql.types import ArrayType, DataType, DecimalType, StructField, TimestampType

from oncelake.ingestion.declaration.formats import DebeziumOptions
from oncelake.ingestion.formats import avro
from oncelake.ingestion.formats.avro.types import converter, fields, is_record, record_in
from oncelake.ingestion.formats.avro.types import undeclared as undeclared_in_avro
from oncelake.ingestion.formats.coerce import Convert, MisfitError, exact_ticks
from oncelake.ingestion.formats.connect import ConnectJson, Hint, hints, json_value, undeclared
from oncelake.ingestion.formats.decoder import (
    BadBytesError,
    Decode,
    Decoded,
    Encoded,
    Read,
    by_record,
)
from oncelake.ingestion.formats.registry.wire_format import FramedDecoder
from oncelake.ingestion.formats.strict_json import LongNumberError, parse
from oncelake.ingestion.kafka.schema_registry import WriterSchema

REASONS: Final[dict[str, str]] = {
    **avro.REASONS,
    "malformed_debezium": "no envelope with `op`, and `after` or `before`",
    "unavailable_value": "such a column decides what becomes of the record: it is of `keys` or "
    "`sequence_by`, or a declared expression reads it",
    "truncate": "the whole table was emptied, which a person must apply",
    "not_a_change": "a message of the log, a heartbeat or the boundary of a transaction, which "
    "changes no row",
    "source_schema_change": "a change of the source's schema, which changes no row",
}
_UNITS: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}

_ROWS: Final = {"c": "after", "r": "after", "u": "after", "d": "before"}
_CLOCKS: Final = {"ts_ms": 10**3, "ts_us": 10**6, "ts_ns": 10**9}
_POSITION: Final = ("lsn", "file", "pos")
_MISSING: Final = "__debezium_unavailable_value"
# Of one record, as Spark delivers them: structs of key and value.
Headers = Sequence[Mapping[str, Any]] | None

# Connectors differ in how they write a schema; each text of it would be kept.
_MOST_PLANS: Final = 200
_OLD_KEY: Final = "__debezium.oldkey"
_NEW_KEY: Final = "__debezium.newkey"
_MISSING_BYTES: Final = _MISSING.encode()
_MISSING_BASE64: Final = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
_MISSING_NUMBERS: Final = list(_MISSING_BYTES)
# Java's UUID.nameUUIDFromBytes of the text.
_MISSING_UUID: Final = str(
    UUID(bytes=md5(_MISSING_BYTES, usedforsecurity=False).digest(), version=3)
)


def opened(encoded: Encoded) -> Decode:
    """Decode each envelope.

    Columns that a delete's ``before`` lacks come from the Kafka key, which only JSON needs: with a
    registry's converter, ``before`` has the key of every table that has one.
    """
    options = encoded.options
    assert isinstance(options, DebeziumOptions), "options are of the format's own model"
    if options.encoding == "avro":
        reader = partial(_avro_reader, options)
        return FramedDecoder(encoded, "AVRO", reader, name=avro.record_name)
    return by_record(_JsonEnvelopes(encoded, options), encoded)


class _JsonEnvelopes:
    """Reads one envelope and its Kafka key; keeps a plan of each schema."""

    def __init__(self, encoded: Encoded, options: DebeziumOptions) -> None:
        self._columns, self._options = encoded.schema, options
        self._find_undeclared = undeclared(encoded.schema) or (lambda *_: ())
        self._paths = _paths_of(options)
        self._connect = ConnectJson()
        self._moves = _Moves(encoded, options)
        self._is_elsewhere = encoded.is_elsewhere
        self._plans: dict[tuple[int, str], _RowPlan] = {}
        self._schemas: list[Any] = []

    def __call__(self, raw: bytes, key: bytes | None, headers: Headers = None) -> Decoded:
        try:
            schema, envelope = self._split(raw)
        except LongNumberError as error:
            raise BadBytesError("type_mismatch", str(error)) from None
        except ValueError as error:
            raise BadBytesError("malformed_debezium", str(error)) from None
        side, row = _row_of(envelope)
        if side == "before":
            row = {**self._of_key(key), **{n: v for n, v in row.items() if v is not None}}
            envelope = {**envelope, side: row}
        extra = self._find_undeclared(row, "")
        decoded = self._plan(schema, side).decoded(row, envelope, extra, headers)
        return self._moves.noted(decoded, envelope, headers, partial(self._plan, schema, "before"))

    def _split(self, raw: bytes) -> tuple[Any, Any]:
        return self._connect.split(raw) if self._options.schemas else (None, parse(raw))

    def _of_key(self, key: bytes | None) -> Mapping[str, Any]:
        try:
            found = self._split(key)[1] if key else None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _plan(self, schema: Any, side: str) -> _RowPlan:
        at = (id(schema), side)
        if at not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                self._plans, self._schemas = {}, []
            self._schemas.append(schema)  # Kept, so that no other gets its id.
            told = hints(schema, side) if self._options.schemas else None
            converts = {c.name: json_value(self._hint(c, told), c.dataType) for c in self._columns}
            is_delete = side == "before" or self._is_elsewhere
            self._plans[at] = _RowPlan(converts, self._paths, is_delete=is_delete)
        return self._plans[at]

    def _hint(self, column: StructField, told: Mapping[str, Hint] | None) -> Hint:
        if column.name in self._paths:
            return Hint(unit=_CLOCKS.get(self._paths[column.name][-1], 0))
        if told is not None:
            return told.get(column.name, Hint())
        unit = self._options.timestamps
        unit = unit.get(column.name) if isinstance(unit, dict) else unit
        return _declared_hint(column.dataType, self._options, _UNITS[unit] if unit else 0)


def _declared_hint(type_: DataType, options: DebeziumOptions, unit: int = 0) -> Hint:
    """Return the hint that the declaration gives for values without a schema."""
    if isinstance(type_, ArrayType):
        return Hint(items=_declared_hint(type_.elementType, options, unit))
    scale = type_.scale if isinstance(type_, DecimalType) else None
    scale = None if options.decimals == "string" else scale
    return Hint(unit=unit, days=True, scale=scale, is_guess=options.decimals == "precise")


def _avro_reader(options: DebeziumOptions, schema: WriterSchema, encoded: Encoded) -> Read:
    """Return a reader of the envelopes of one schema of Avro."""
    read, root = avro.parsed(schema)
    nodes = fields(root) if is_record(root) else {}
    if not {"op", "before", "after"} <= nodes.keys():
        _refuse_control(dict.fromkeys(nodes))
        raise BadBytesError("malformed_debezium", "the schema has no op, before and after")
    paths = _paths_of(options)
    plans, extra = {}, {}
    for side in ("before", "after"):
        row = fields(record_in(nodes[side]))
        types = {**row, **{name: _node_at(nodes, path) for name, path in paths.items()}}
        converts = {c.name: _convert(types, paths, c) for c in encoded.schema}
        is_delete = side == "before" or encoded.is_elsewhere
        plans[side] = _RowPlan(converts, paths, is_delete=is_delete)
        extra[side] = list(undeclared_in_avro(record_in(nodes[side]), encoded.schema))

    moves = _Moves(encoded, options)

    def read_envelope(payload: bytes, headers: Headers = None) -> Decoded:
        envelope = {name: _bare(value) for name, value in read(payload).items()}
        side, row = _row_of(envelope)
        decoded = plans[side].decoded(row, envelope, extra[side], headers)
        return moves.noted(decoded, envelope, headers, lambda: plans["before"])

    return read_envelope


class _Moves:
    """Recognises a row whose key has changed.

    Either one update says so, by the row before it; or one event deletes the row, and another makes
    it anew: headers of each then name the key of the other, as JSON, which Kafka Connect's default
    converter of headers writes. What cannot be read of such a key is null, and equals no row's.
    """

    def __init__(self, encoded: Encoded, options: DebeziumOptions) -> None:
        types = {name: encoded.schema[name].dataType for name in encoded.keys}
        self._converts = {
            name: json_value(_declared_hint(type_, options), type_) for name, type_ in types.items()
        }
        self._at = {name: at for at, name in enumerate(encoded.schema.names)}
        self._moved_by, self._movable = encoded.moved_by, encoded.movable
        self._keeps = encoded.unavailable == "keep"
        self._is_shared, self._is_elsewhere = encoded.shares_tombstones, encoded.is_elsewhere

    def noted(
        self,
        decoded: Decoded,
        envelope: Mapping[str, Any],
        headers: Headers,
        plan: Callable[[], _RowPlan],
    ) -> Decoded:
        """Note in what was decoded that the row has moved; ``plan`` returns that of ``before``.

        A delete leaves all columns out that the new row may take over, which has the old key.
        """
        if envelope["op"] == "d":
            self._refuse_unknown(decoded, envelope["before"])
            if not _names(headers, _NEW_KEY):
                return decoded
            left_out = self._movable if self._converts else None
            return decoded._replace(moves=True, unavailable=left_out)
        if is_new := _is_move(envelope, headers):
            decoded = decoded._replace(moves=True)
        ended = self._ended(decoded, envelope, plan) if envelope["op"] == "u" else None
        if ended is not None:
            decoded = decoded._replace(ended=ended)
        if ended is None and not is_new:
            return decoded
        if decoded.unavailable and self._moved_by and not self._keeps:
            names = ", ".join(decoded.unavailable)
            raise BadBytesError("unavailable_value", f"not sent, and of another key's row: {names}")
        old = self._old_key(headers) if ended is None else self._key_of(ended)
        return decoded._replace(moved_from=old)

    def _refuse_unknown(self, decoded: Decoded, row: Mapping[str, Any] | None) -> None:
        """Refuse a delete of which nothing is known; a null value behind it may say by its key.

        What siblings share may have the key of one of them, and what one has is its own affair.
        """
        known = self._key_of(decoded.row).values()
        is_known = self._is_elsewhere or not (self._converts or self._is_shared)
        if not is_known and all(each is None for each in known):
            if self._is_shared and any(each is not None for each in (row or {}).values()):
                return
            raise BadBytesError(
                "missing_key",
                f"op d, and neither `before` nor a Kafka key of JSON has "
                f"{', '.join(self._converts) or 'a key'}; declare `tombstones: delete` and the "
                "`key_format` that the topic's keys have, by which the null value behind it "
                "deletes the row, or let the source send `before` (REPLICA IDENTITY FULL)",
            )

    def _ended(
        self, decoded: Decoded, envelope: Mapping[str, Any], plan: Callable[[], _RowPlan]
    ) -> Sequence[Any] | None:
        """Return the row before an update if, by what it has of its key, that was another."""
        before, after = envelope.get("before"), envelope["after"]
        if type(before) is not dict:
            return None
        if all(before.get(name) in (None, after.get(name)) for name in self._moved_by):
            return None
        row = plan().decoded(before, envelope, (), None).row
        known = ((row[self._at[name]], decoded.row[self._at[name]]) for name in self._moved_by)
        return row if any(old is not None and old != new for old, new in known) else None

    def _key_of(self, row: Sequence[Any]) -> Mapping[str, Any]:
        return {name: row[self._at[name]] for name in self._converts}

    def _old_key(self, headers: Headers) -> Mapping[str, Any]:
        """Read the key that a new row had before, from its header."""
        raw = next(each["value"] for each in reversed(headers or ()) if each["key"] == _OLD_KEY)
        key: dict[str, Any] = {}
        with suppress(ValueError):
            found = parse(raw or b"")
            if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
                found = found["payload"]
            if isinstance(found, dict):
                key = {n: c(found[n]) for n, c in self._converts.items() if n in found}
        return {name: key.get(name) for name in self._converts}


def _is_move(envelope: Mapping[str, Any], headers: Headers) -> bool:
    """Tell whether an event makes the row anew that had another key before."""
    return envelope["op"] == "c" and _names(headers, _OLD_KEY)


def _names(headers: Headers, name: str) -> bool:
    return any(each["key"] == name for each in headers or ())


def _node_at(nodes: Mapping[str, Any], path: list[str]) -> Any:
    node = nodes.get(path[0])
    for name in path[1:]:
        node = None if node is None else fields(record_in(node)).get(name)
    return node


def _convert(
    types: Mapping[str, Any], paths: Mapping[str, list[str]], column: StructField
) -> Convert | None:
    unit = _CLOCKS.get(paths.get(column.name, [""])[-1])
    if unit and isinstance(column.dataType, TimestampType):
        return exact_ticks(unit, column.dataType)
    node = types.get(column.name)
    return None if node is None else converter(node, column.dataType)


def _bare(value: Any) -> Any:
    """Return a value without the name that fastavro gives to records of a union."""
    return value[1] if type(value) is tuple else value


def _row_of(envelope: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the side of an envelope that has its row, and the row."""
    if not isinstance(envelope, dict) or "op" not in envelope:
        _refuse_control(envelope if isinstance(envelope, dict) else {})
        raise BadBytesError("malformed_debezium", _described(envelope))
    op = envelope["op"]
    if op == "t":
        raise BadBytesError("truncate", f"op t{_position(envelope)}")
    if op == "m":
        raise BadBytesError("not_a_change", "op m")
    side = _ROWS.get(op) if isinstance(op, str) else None
    if side is None:
        raise BadBytesError("malformed_debezium", f"op {op!s:.20} is unknown")
    row = envelope.get(side)
    if row is None and side == "before":
        return side, {}
    if type(row) is str:
        advice = "read the events as `format: json` (docs/debezium.md, MongoDB)"
        raise BadBytesError(
            "malformed_debezium",
            f"op {op}: `{side}` is a text, as MongoDB's connector writes a document; {advice}",
        )
    if not isinstance(row, dict):
        raise BadBytesError("malformed_debezium", f"op {op} without `{side}`")
    return side, row


def _refuse_control(event: Mapping[str, Any]) -> None:
    """Refuse what a connector writes of itself, in topics of its own, by its fields' names."""
    if event.keys() == {"ts_ms"}:
        raise BadBytesError("not_a_change", "a heartbeat of the connector")
    if {"status", "id", "event_count"} <= event.keys():
        raise BadBytesError("not_a_change", "the begin or end of a transaction")
    if {"ddl", "databaseName"} <= event.keys():
        raise BadBytesError("source_schema_change", f"DDL: {event['ddl'] or 'not told'}")


def _described(document: Any) -> str:
    """Name what a document is that is no envelope, and the format that reads it."""
    if not isinstance(document, dict) or document.keys() != {"schema", "payload"}:
        return "no object with `op`; events that an SMT has unwrapped are `json`"
    payload = document["payload"]
    if isinstance(payload, dict) and "op" in payload:
        return "an object of `schema` and `payload`, which the option `schemas: true` reads"
    return "a row of Kafka Connect with its schema, and no change: see docs/json.md, Kafka Connect"


def _at_path(envelope: Mapping[str, Any], path: Iterable[str]) -> Any:
    found: Any = envelope
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _position(envelope: Mapping[str, Any]) -> str:
    """Write an event's position in the database's log, if the envelope has it."""
    told = {name: _at_path(envelope, ("source", name)) for name in _POSITION}
    known = [f"{name} {value}" for name, value in told.items() if value is not None]
    return f" at {', '.join(known)}" if known else ""


@dataclass(frozen=True, slots=True)
class _RowPlan:
    """Converts the rows of one side of an envelope to the declared columns.

    For a deleted row the connector makes up the columns that are not in its key: there a value of
    the row that does not fit becomes null.

    Attributes:
        converts: Each column's conversion, if it has one.
        paths: Where columns are that are not of the row but of the envelope around it.
        is_delete: Whether the side is ``before``.
    """

    converts: Mapping[str, Convert | None]
    paths: Mapping[str, list[str]]
    is_delete: bool

    def decoded(
        self,
        row: Mapping[str, Any],
        envelope: Mapping[str, Any],
        extra: Iterable[str],
        headers: Headers,
    ) -> Decoded:
        """Convert a row, in which there may be names that no column has."""
        # A new row was sent whole: a text in it that equals the placeholder is that text.
        may_lack = envelope["op"] == "u" or _is_move(envelope, headers)
        values: list[Any] = []
        unavailable: list[str] = []
        for name in self.converts:
            if may_lack and name not in self.paths and _is_missing(row.get(name)):
                unavailable.append(name)
                values.append(None)
            else:
                values.append(self._value(name, row, envelope))
        others = None if self.is_delete else [*dict.fromkeys(extra)]
        left_out = None if self.is_delete else unavailable
        return Decoded(values, others, self.is_delete, unavailable=left_out)

    def _value(self, name: str, row: Mapping[str, Any], envelope: Mapping[str, Any]) -> Any:
        path, convert = self.paths.get(name), self.converts[name]
        value = _at_path(envelope, path) if path else row.get(name)
        if value is None or convert is None:
            return None
        try:
            return convert(value)
        except MisfitError as error:
            if self.is_delete and not path:
                return None
            raise error.within(name) from None


def _paths_of(options: DebeziumOptions) -> dict[str, list[str]]:
    return {name: path.split(".") for name, path in options.columns.items()}


def _is_missing(value: Any) -> bool:
    """Tell whether a value stands for one that the database did not send, in whatever type.

    As Debezium's PostgreSQL connector writes it: the text, its bytes, base64 of them in JSON; lists
    of one of those, of the one UUID made of the text, or of the text's bytes as numbers; a map.
    """
    if type(value) is list:
        return value == _MISSING_NUMBERS or (len(value) == 1 and _is_missing(value[0]))
    if type(value) is dict:
        return value == {_MISSING: _MISSING}
    return value in (_MISSING, _MISSING_BASE64, _MISSING_BYTES, _MISSING_UUID)
