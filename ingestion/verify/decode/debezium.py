"""Debezium's envelopes, read again: JSON with or without its schema, or framed Avro."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ingestion.declaration.formats import DebeziumOptions
from ingestion.declaration.parts import ExtraFields
from ingestion.declaration.types import Declared, declared, is_provable
from ingestion.kafka.schema_registry import WriterSchema
from ingestion.verify.decode import DecodedRecord, DecodeKeyAndValue, Expected, coerce
from ingestion.verify.decode.avro import fit as fit_avro
from ingestion.verify.decode.avro_binary import Wire
from ingestion.verify.decode.avro_schema import Node, parsed
from ingestion.verify.decode.coerce import Read, UnprovableError
from ingestion.verify.decode.connect import Meaning, fit, meaning
from ingestion.verify.decode.strict_json import BadRecordError, parse
from ingestion.verify.decode.wire_format import ReadFramed, ReadPayload

_TICKS: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_CLOCKS: Final = {"ts_ms": 10**3, "ts_us": 10**6, "ts_ns": 10**9}
_PLACEHOLDERS: Final = ("__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==")


def reading(expected: Expected) -> DecodeKeyAndValue | ReadFramed:
    """Return what reads one envelope.

    Raises:
        UnprovableError: a type that this proof knows nothing of.
    """
    options = expected.options
    assert isinstance(options, DebeziumOptions), "options are of the format's own model"
    wanted = {column.name: declared(column.type) for column in expected.columns}
    for name, type_ in wanted.items():
        if not is_provable(type_):
            raise UnprovableError(f"column {name}, which is {type_}, is not provable")
    if options.encoding == "avro":
        from ingestion.verify.decode.debezium import AvroEnvelopes

        return ReadFramed(expected, "AVRO", AvroEnvelopes(wanted, options, expected.extra_fields))
    return ReadJsonEnvelope(wanted, options, expected.extra_fields)


class ReadJsonEnvelope(DecodeKeyAndValue):
    """Reads envelopes that are JSON."""

    def __init__(
        self, wanted: Mapping[str, Declared], options: DebeziumOptions, extra: ExtraFields
    ) -> None:
        """Take what they should hold, and how they are written."""
        self._wanted, self._options, self._extra = wanted, options, extra
        self._opened: dict[str, dict[str, Read]] = {}

    def both(self, raw: bytes, key: bytes | None) -> DecodedRecord:
        """Read one envelope, and from the key what a delete leaves out."""
        schema, envelope = self._split(raw)
        row = row_of(envelope)
        if is_delete := envelope["op"] == "d":
            row = {**self._key(key), **{name: v for name, v in row.items() if v is not None}}
        elif self._extra == "reject":
            refuse_unknown(row, self._wanted)
        readers = self._readers(schema, "before" if is_delete else "after")
        return DecodedRecord(
            values=values(readers, self._options.columns, row, envelope, is_delete=is_delete),
            is_delete=is_delete,
        )

    def _split(self, raw: bytes) -> tuple[Any, Any]:
        whole = parse(raw)
        if not self._options.schemas:
            return None, whole
        if not isinstance(whole, dict) or sorted(whole) != ["payload", "schema"]:
            raise BadRecordError("schema and payload were expected")
        return whole["schema"], whole["payload"]

    def _key(self, key: bytes | None) -> Mapping[str, Any]:
        try:
            found = self._split(key)[1] if key else {}
        except BadRecordError:
            return {}
        return found if isinstance(found, dict) else {}

    def _readers(self, schema: Any, side: str) -> dict[str, Read]:
        at = f"{side} {schema!r}"
        if at not in self._opened:
            told = self._told(schema, side)
            self._opened[at] = {
                name: fit(self._meaning(name, type_, told), type_)
                for name, type_ in self._wanted.items()
            }
        return self._opened[at]

    def _told(self, schema: Any, side: str) -> dict[str, Meaning] | None:
        if not self._options.schemas:
            return None
        sides = {each["field"]: each for each in (schema or {}).get("fields", ())}
        fields = sides.get(side, {}).get("fields", ())
        return {each["field"]: meaning(each) for each in fields}

    def _meaning(self, name: str, type_: Declared, told: dict[str, Meaning] | None) -> Meaning:
        if path := self._options.columns.get(name):
            return Meaning(ticks=_CLOCKS.get(path.rpartition(".")[2]))
        if told is not None:
            return told.get(name, Meaning())
        unit = self._options.timestamps
        unit = unit.get(name) if isinstance(unit, dict) else unit
        item = type_
        while item.word == "ARRAY":
            item = item.parts["element"]
        is_precise = item.word == "DECIMAL" and self._options.decimals == "precise"
        # What is said of a list holds for its items.
        return Meaning(_TICKS.get(unit or ""), True, item.scale if is_precise else None)


def row_of(envelope: Any) -> Mapping[str, Any]:
    """Return the row that an envelope tells of.

    Raises:
        BadRecordError: it tells of none.
    """
    op = envelope.get("op") if isinstance(envelope, dict) else None
    if not isinstance(op, str) or op not in "crud" or len(op) != 1:
        raise BadRecordError(f"no envelope of a changed row: op {op!r:.20}")
    row = envelope.get("before" if op == "d" else "after")
    if row is None and op == "d":
        return {}
    if not isinstance(row, dict):
        raise BadRecordError("an envelope without its row")
    return row


def refuse_unknown(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a row with fields that no column names.

    Raises:
        BadRecordError: there are some.
    """
    if unknown := row.keys() - wanted.keys():
        raise BadRecordError(f"fields that no column names: {sorted(unknown)}")


def values(
    readers: Mapping[str, Read],
    columns: Mapping[str, str],
    row: Mapping[str, Any],
    envelope: Mapping[str, Any],
    *,
    is_delete: bool,
) -> tuple[Any, ...]:
    """Return one value a column."""
    found = []
    for name, read in readers.items():
        if path := columns.get(name):
            found.append(_or_null(read, _at(envelope, path)))
        elif is_delete:
            found.append(_forgiving(read, row.get(name)))
        elif _is_placeholder(row.get(name)):
            raise BadRecordError(f"{name} was not sent")
        else:
            found.append(_or_null(read, row.get(name)))
    return tuple(found)


def _or_null(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _forgiving(read: Callable[[Any], Any], value: Any) -> Any:
    """Read a value of a row that is gone, which only counts where it is part of the key."""
    try:
        return None if _is_placeholder(value) else _or_null(read, value)
    except (ValueError, OverflowError):
        return None


def _at(envelope: Any, path: str) -> Any:
    for name in path.split("."):
        envelope = bare(envelope).get(name) if isinstance(bare(envelope), dict) else None
    return envelope


def bare(value: Any) -> Any:
    """Take a value of one of Avro's unions without the number of its branch."""
    return value[1] if isinstance(value, tuple) else value


def _is_placeholder(value: Any) -> bool:
    value = bare(value)
    if isinstance(value, list) and len(value) == 1:
        return _is_placeholder(value[0])
    return value in _PLACEHOLDERS or value == _PLACEHOLDERS[0].encode()


_NOWHERE: Final = Node(word="null")


class AvroEnvelopes:
    """Makes what reads the envelopes of one schema."""

    def __init__(
        self, wanted: Mapping[str, Declared], options: DebeziumOptions, extra: ExtraFields
    ) -> None:
        """Take what they should hold, and which columns are the envelope's own."""
        self._wanted, self._columns, self._extra = wanted, options.columns, extra

    def __call__(self, schema: WriterSchema) -> ReadPayload:
        """Open one schema.

        Raises:
            BadRecordError: it is none of an envelope.
        """
        root = parsed(schema)
        if not {"op", "before", "after"} <= root.fields.keys():
            raise BadRecordError("no schema of an envelope")
        sides = {side: self._readers(root, side) for side in ("before", "after")}

        def read(payload: bytes) -> DecodedRecord:
            wire = Wire(payload)
            envelope = {name: bare(value) for name, value in wire.read(root).items()}
            wire.expect_end()
            row = row_of(envelope)
            is_delete = envelope["op"] == "d"
            if self._extra == "reject" and not is_delete:
                refuse_unknown(row, self._wanted)
            readers = sides["before" if is_delete else "after"]
            found = values(readers, self._columns, row, envelope, is_delete=is_delete)
            return DecodedRecord(values=found, is_delete=is_delete)

        return read

    def _readers(self, root: Node, side: str) -> dict[str, Read]:
        row = _inside(root.fields[side]).fields
        found: dict[str, Read] = {}
        for name, type_ in self._wanted.items():
            path = self._columns.get(name)
            node = _node_at(root, path) if path else row.get(name, _NOWHERE)
            last = (path or "").rpartition(".")[2]
            if node is _NOWHERE:
                found[name] = _nothing
            elif last in _CLOCKS and type_.word == "TIMESTAMP":
                found[name] = _clock(type_, _CLOCKS[last])
            else:
                found[name] = fit_avro(node, type_)
        return found


def _inside(node: Node) -> Node:
    return next((each for each in node.branches if each.word == "record"), node)


def _node_at(node: Node, path: str) -> Node:
    for name in path.split("."):
        node = _inside(node).fields.get(name, _NOWHERE)
    # The envelope's own fields are taken without the number of their branch.
    others = [each for each in node.branches if each.word != "null"]
    return others[0] if "." not in path and len(others) == 1 else node


def _nothing(_: Any) -> None:
    return None


def _clock(type_: Declared, ticks: int) -> Read:
    read = coerce.moment(type_, ticks, zoned=True) or _nothing
    return lambda value: read(bare(value))
