"""The engine's readers and the proof's agree on every byte that anybody may send."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import DecimalType

from oncelake.ingestion.declaration.ddl import parse_columns, parse_type
from oncelake.ingestion.formats.coerce import MisfitError, rescaled, unscaled
from oncelake.ingestion.formats.decoder import Decode
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.verify.compare.rows import values_equal
from oncelake.ingestion.verify.decode import avro as proof_avro
from oncelake.ingestion.verify.decode import coerce
from oncelake.ingestion.verify.decode import protobuf as proof_protobuf
from tests.support.decoding import decoded, disagreements, opened
from tests.support.long import IS_LONG
from tests.support.protobuf import Compiled
from tests.support.registry import framed

DDL = "id BIGINT, name STRING, at TIMESTAMP, total DECIMAL(9, 2), many ARRAY<INT>, ratio FLOAT"
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "many", "type": {"type": "array", "items": "long"}},
        {"name": "ratio", "type": "double"},
    ],
}
PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Row {
  uint64 id = 1; optional string name = 2; google.protobuf.Timestamp at = 3; fixed32 total = 4;
  repeated sint64 many = 5; double ratio = 6;
}
"""
DECIMAL = "org.apache.kafka.connect.data.Decimal"
COLUMNS = {column.name: column.type for column in parse_columns(DDL)}


def both(engine: Decode, proof: Any, payload: bytes) -> tuple[Any, Any]:
    """Read a payload both ways: its row, or nothing when it is bad."""
    (struct,) = decoded(engine, [framed(1, payload)])
    row = list(struct["row"].values()) if struct["row"] and not struct["reason"] else None
    try:
        return row, list(proof(payload).values)
    except (ValueError, OverflowError):
        return row, None


@pytest.fixture(scope="module")
def avro_readers() -> tuple[Any, Any]:
    """Both readers of one schema of Avro."""
    text = json.dumps(AVRO)
    schema = WriterSchema(id=1, type="AVRO", text=text)
    engine = opened("avro", DDL, writer_schemas=[schema])
    return engine, proof_avro.opened(schema, COLUMNS, is_key=False)


@pytest.fixture(scope="module")
def proto_readers() -> tuple[Any, Any]:
    """Both readers of one schema of Protobuf."""
    schema = WriterSchema(id=1, type="PROTOBUF", text=PROTO)
    engine = opened("protobuf", DDL, writer_schemas=[schema])
    return engine, proof_protobuf.opened(schema, COLUMNS, proof_protobuf.by_indexes)


ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2**31 - 1),
        "name": st.none() | st.text(max_size=5),
        "at": st.integers(-(10**14), 3 * 10**14),
        "many": st.lists(st.integers(-(2**33), 2**33), max_size=3),
        "ratio": st.floats(width=32) | st.floats(),
    }
)
DAMAGE = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2)


def damaged(payload: bytes, damage: list[tuple[int, int]], cut: int) -> bytes:
    """Change some bytes, and drop some from the end."""
    changed = bytearray(payload)
    for at, byte in damage:
        if at < len(changed):
            changed[at] = byte
    return bytes(changed[: len(changed) - cut] if cut else changed)


@settings(max_examples=400 if IS_LONG else 100, deadline=None)
@given(row=ROWS, damage=DAMAGE, cut=st.sampled_from([0, 0, 0, 1, 3]))
def test_avro_is_read_alike(avro_readers: tuple[Any, Any], row: Any, damage: Any, cut: int) -> None:
    """What one reader takes the other takes, as the same row; what one refuses, so does the other.

    A negative branch, which fastavro counts from the end, is the one known exception.
    """
    from io import BytesIO

    from fastavro import parse_schema, schemaless_writer

    stream = BytesIO()
    plain = json.loads(json.dumps(AVRO).replace("logicalType", "wasLogical"))
    schemaless_writer(stream, parse_schema(plain), row)

    engine, proof = both(*avro_readers, damaged(stream.getvalue(), damage, cut))

    assert values_equal(engine, proof) or (engine is not None and proof is None and damage)


@settings(max_examples=400 if IS_LONG else 100, deadline=None)
@given(row=ROWS, total=st.integers(0, 2**32 - 1), damage=DAMAGE, cut=st.sampled_from([0, 0, 1, 3]))
def test_protobuf_is_read_alike(
    proto_readers: tuple[Any, Any], row: Any, total: int, damage: Any, cut: int
) -> None:
    """What one reader takes the other takes, as the same row, and no other."""
    message = Compiled(PROTO).make("Row", id=row["id"], ratio=row["ratio"], total=total)
    if row["name"] is not None:
        message.name = row["name"]
    message.at.seconds, message.at.nanos = row["at"] // 1000, row["at"] % 1000 * 1_000_000
    message.many.extend(row["many"])
    payload = b"\0" + message.SerializeToString()

    engine, proof = both(*proto_readers, damaged(payload, damage, cut))

    assert values_equal(engine, proof)


ODD_PROTO = """
message Row {
  optional int64 id = 1; optional string name = 2; optional string other = 3;
  optional Colour colour = 4; repeated Colour many = 5; map<string, string> words = 6;
  optional group Inner = 7 { optional int64 x = 1; }
}
enum Colour { RED = 0; BLUE = 1; }
"""
ODD_DDL = (
    "id BIGINT, name STRING, colour STRING, many ARRAY<STRING>, words MAP<STRING, STRING>, "
    "inner STRUCT<x: BIGINT>"
)
ODD = {
    "text that is none": b"\x08\x01\x12\x01\xff",
    "in a field that is not declared": b"\x08\x01\x1a\x01\xff",
    "in a key": b"\x08\x01\x32\x06\x0a\x01\xff\x12\x01b",
    "in a value": b"\x08\x01\x32\x06\x0a\x01a\x12\x01\xff",
    "an entry without a key": b"\x08\x01\x32\x03\x12\x01b",
    "an entry without a value": b"\x08\x01\x32\x03\x0a\x01a",
    "an unknown group": b"\x08\x01\xa3\x06\x08\x01\xa4\x06",
    "a declared group": b"\x08\x01\x3b\x08\x05\x3c",
    "a group as bytes": b"\x08\x01\x3a\x02\x08\x05",
    "a group without an end": b"\x08\x01\x4b\x08\x01",
    "a group with another end": b"\x08\x01\x4b\x54",
    "an end without a group": b"\x08\x01\x4c",
    "100 groups": b"\x08\x01" + b"\x4b" * 100 + b"\x4c" * 100,
    "101 groups": b"\x08\x01" + b"\x4b" * 101 + b"\x4c" * 101,
    "an unknown symbol": b"\x08\x01\x20\x07",
    "unknown symbols among others": b"\x08\x01\x2a\x03\x00\x07\x01\x28\x07\x28\x01",
    "a tag of 5 bytes": b"\x88\x80\x80\x80\x00\x01",
    "a tag of 6 bytes": b"\x88\x80\x80\x80\x80\x00\x01",
    "a tag of 33 bits": b"\x88\x80\x80\x80\x10\x01",
    "a length of 6 bytes": b"\x08\x01\x12\x81\x80\x80\x80\x80\x00a",
}


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_odd_bytes_of_protobuf_are_read_alike(syntax: str) -> None:
    """Anybody may write them, and both readers take them, or leave them, as Google's does."""
    text = ODD_PROTO
    if syntax == "proto3":
        text = text.replace("optional group Inner = 7 { optional int64 x = 1; }", "")
    schema = WriterSchema(id=1, type="PROTOBUF", text=f'syntax = "{syntax}";{text}')
    columns = {column.name: column.type for column in parse_columns(ODD_DDL)}
    engine = opened("protobuf", ODD_DDL, writer_schemas=[schema])
    proof = proof_protobuf.opened(schema, columns, proof_protobuf.by_indexes)
    indexes = {"": b"\0", "5 bytes of ": b"\x80\x80\x80\x80\0", "6 of ": b"\x80" * 5 + b"\0"}

    read = {
        at + name: both(engine, proof, index + payload)
        for name, payload in ODD.items()
        for at, index in indexes.items()
    }

    assert {name: rows for name, rows in read.items() if not values_equal(*rows)} == {}
    assert [name for name in ODD if read[name][0] is None]
    assert [name for name in ODD if read[name][0] is not None]


SCALES = (
    *(None, "2", 2, 2.0, " 2", "-1", "+1", "1_0", True, "1234567", "\u0662", []),
    *(10**9, -(10**9)),
)
SCHEMAS = [
    *(None, [1], "x", 5, {"fields": [{"name": "x"}]}, {"fields": [5]}, {"fields": 5}),
    {"fields": [{"field": "after", "fields": [{"field": "x", "name": ["a"], "items": "q"}]}]},
    {"fields": [{"field": "after", "fields": 5}, {"field": ["after"]}]},
    {"fields": [{"field": "after", "fields": [{"field": ["x"]}]}]},
    *(
        {"fields": [{"field": "after", "fields": [{"field": "x", "name": DECIMAL, **more}]}]}
        for more in (
            *({}, {"parameters": None}, {"parameters": []}, {"parameters": {}}),
            *({"parameters": {"scale": scale}} for scale in SCALES),
        )
    ),
]


def test_schemas_that_are_none_are_read_alike() -> None:
    """A record of Kafka Connect brings its own schema, which anybody may have written."""
    values = [
        json.dumps({"schema": schema, "payload": {"op": "c", "after": after}}).encode()
        for schema in SCHEMAS
        for after in ({"id": 1, "x": "AQ=="}, {"id": 1, "x": 5}, {"id": 1})
    ]
    endless = [value.replace(b'"scale": "2"', b'"scale": 1E+999999999') for value in values]

    found = disagreements("debezium", "id INT, x DECIMAL(5, 2)", values + endless, schemas=True)

    assert found == []


def of_scale(scale: int, digits: bytes) -> dict[str, Any]:
    """Return a decimal of Debezium that says its own scale."""
    return {"scale": scale, "value": base64.b64encode(digits).decode()}


def test_decimals_of_any_length_are_read_alike_and_soon() -> None:
    """A megabyte of digits is refused before it is a number, and so are zeros that take no byte."""
    long, padded, ten = b"\x7f" * 700_000, b"\0" * 700_000 + b"\7", (10**1010).to_bytes(500)
    edges = (*range(-2, 3), -1001, -1000, 999, *range(1000, 1003), 16_383, -149_999, 10**9, 10**30)
    numbers = [of_scale(scale, digits) for scale in edges for digits in (b"", b"\0", b"\1")]
    numbers += [of_scale(2, long), of_scale(2, padded)]
    numbers += [of_scale(scale, ten) for scale in (990, 1000, 1005, 1010, 2010, 2012)]
    texts = [base64.b64encode(digits).decode() for digits in (long, padded)]
    values = [
        json.dumps({"op": "c", "after": {"id": 1, column: number}}).encode()
        for column in ("x", "t", "n")
        for number in (*numbers, *texts)
    ]

    ddl = "id INT, x DECIMAL(10, 2), t STRING, n BIGINT"
    assert disagreements("debezium", ddl, values, decimals="precise") == []


@given(
    number=st.integers(-(10**40), 10**40) | st.integers(-(10**4), 10**4),
    scale=st.integers(-260, 260) | st.integers(-3, 12),
    precision=st.integers(1, 38),
    behind=st.integers(0, 38),
)
@example(number=0, scale=5000, precision=5, behind=2)
def test_a_decimal_fits_or_is_refused(number: int, scale: int, precision: int, behind: int) -> None:
    """Nothing is rounded and nothing that fits is refused, whatever the scale it comes with."""
    behind = min(behind, precision)
    try:
        found = rescaled(unscaled(number, scale), DecimalType(precision, behind))
    except MisfitError:
        found = None
    try:
        due = coerce.exact_decimal(
            coerce.Fraction(number) / coerce.Fraction(10) ** scale,
            parse_type(f"DECIMAL({precision}, {behind})"),
        )
    except ValueError:
        due = None

    assert found == due
