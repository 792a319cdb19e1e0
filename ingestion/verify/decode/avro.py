"""Avro, read by this proof's own reader of the binary encoding."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from ingestion.declaration.types import Declared, declared, is_provable
from ingestion.kafka.schema_registry import WriterSchema
from ingestion.verify.decode import DecodedRecord, Expected, coerce
from ingestion.verify.decode.avro_binary import Wire
from ingestion.verify.decode.avro_schema import Node, parsed
from ingestion.verify.decode.coerce import Read, UnprovableError, refuse
from ingestion.verify.decode.connect import Meaning, unscaled
from ingestion.verify.decode.connect import fit as fit_json
from ingestion.verify.decode.strict_json import BadRecordError
from ingestion.verify.decode.wire_format import ReadFramed, ReadPayload

_CLOCKS: Final = {"Timestamp": 10**3, "MicroTimestamp": 10**6, "NanoTimestamp": 10**9}
_TICKS: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}


def reading(expected: Expected) -> ReadFramed:
    """Return what reads one framed Avro datum.

    Raises:
        UnprovableError: a type that this proof knows nothing of.
    """
    wanted = {column.name: declared(column.type) for column in expected.columns}
    for name, type_ in wanted.items():
        if not is_provable(type_):
            raise UnprovableError(f"column {name}, which is {type_}, is not provable")
    rejects = expected.extra_fields == "reject"

    def opened_with(schema: WriterSchema) -> ReadPayload:
        return opened(schema, wanted, is_key=expected.is_key, rejects=rejects)

    return ReadFramed(expected, "AVRO", opened_with)


def opened(
    schema: WriterSchema, wanted: Mapping[str, Declared], *, is_key: bool, rejects: bool
) -> ReadPayload:
    """Return what reads payloads of one schema.

    Raises:
        BadRecordError: nothing can be read by it.
    """
    node = parsed(schema)
    if node.word == "record":
        if rejects and (unknown := node.fields.keys() - wanted.keys()):
            raise BadRecordError(f"fields that no column names: {sorted(unknown)}")
        take = coerce.fields(node.fields, wanted, fit)
    elif is_key and len(wanted) == 1:
        bare = fit(node, *wanted.values())
        take = lambda value: [None if value is None else bare(value)]  # noqa: E731
    else:
        raise BadRecordError("a record was expected")

    def read(payload: bytes) -> DecodedRecord:
        wire = Wire(payload)
        value = wire.read(node)
        wire.expect_end()
        return DecodedRecord(values=tuple(take(value)))

    return read


def fit(node: Node, type_: Declared) -> Read:
    """Return what takes a value that is not null as a declared type."""
    if node.word == "union":
        branches = [None if each.word == "null" else fit(each, type_) for each in node.branches]
        return lambda value: _branch(value, branches)
    if node.connect and (read := _of_connect(node, type_)):
        return read
    if node.word in {"record", "array", "map"}:
        if node.word == "record":
            return coerce.nested("STRUCT", node.fields, type_, fit)
        return coerce.nested(node.word.upper(), node.items, type_, fit)
    return _scalar(node, type_) or coerce.never(node.word, type_)


def _branch(value: tuple[int, Any], branches: list[Read | None]) -> Any:
    at, inner = value
    read = branches[at]
    return None if read is None else read(inner)


def _of_connect(node: Node, type_: Declared) -> Read | None:
    """Take what Kafka Connect has given a name of its own."""
    name = node.connect.removeprefix("io.debezium.").removeprefix("time.")
    if node.word == "long" and name in _CLOCKS and type_.word in {"TIMESTAMP", "TIMESTAMP_NTZ"}:
        return coerce.moment(type_, _CLOCKS[name], zoned=type_.word == "TIMESTAMP")
    if node.word == "int" and name == "Date" and type_.word == "DATE":
        return coerce.day(type_)
    if node.word == "string" and name == "ZonedTimestamp" and type_.word == "TIMESTAMP":
        return fit_json(Meaning(), type_)
    if node.word == "record" and name == "data.VariableScaleDecimal" and type_.word == "DECIMAL":
        return lambda value: unscaled(
            int.from_bytes(value["value"], signed=True), value["scale"], type_
        )
    return None


def _scalar(node: Node, type_: Declared) -> Read | None:
    word, logical = node.word, node.logical
    if word in {"int", "long"}:
        return _number(word, logical, type_)
    if word in {"float", "double"}:
        return coerce.real(type_)
    if word in {"bytes", "fixed"}:
        return _octets(node, type_)
    if word in {"string", "enum"}:
        return coerce.text(type_)
    return coerce.plain(type_, "BOOLEAN") if word == "boolean" else None


def _number(word: str, logical: str, type_: Declared) -> Read | None:
    if logical == "date" and word == "int":
        return coerce.day(type_)
    for unit, ticks in _TICKS.items():
        if word == "long" and logical in {f"timestamp-{unit}", f"local-timestamp-{unit}"}:
            return coerce.moment(type_, ticks, zoned=logical.startswith("timestamp"))
    return coerce.whole(type_)


def _octets(node: Node, type_: Declared) -> Read | None:
    if node.logical == "decimal" and node.precision > 0:
        take = coerce.scaled(type_, node.scale)
        return take and (lambda value: take(int.from_bytes(value, signed=True)))
    if node.logical == "uuid" and node.word == "fixed" and type_.word == "STRING":
        return lambda value: str(uuid.UUID(bytes=value)) if len(value) == 16 else refuse(value)
    return coerce.plain(type_, "BINARY")
