"""The engine's readers and the proof's agree on every byte that anybody may send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import DecimalType

from ingestion.declaration.ddl import parse_columns, parse_type
from ingestion.formats.coerce import MisfitError, rescaled, unscaled
from ingestion.formats.decoder import Decode
from ingestion.kafka.schema_registry import WriterSchema
from ingestion.verify.compare.rows import values_equal
from ingestion.verify.decode import avro as proof_avro
from ingestion.verify.decode import coerce
from ingestion.verify.decode import protobuf as proof_protobuf
from tests.support.decoding import decoded, opened
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
    engine = opened("avro", DDL, schemas=[schema])
    return engine, proof_avro.opened(schema, COLUMNS, is_key=False, rejects=False)


@pytest.fixture(scope="module")
def proto_readers() -> tuple[Any, Any]:
    """Both readers of one schema of Protobuf."""
    schema = WriterSchema(id=1, type="PROTOBUF", text=PROTO)
    engine = opened("protobuf", DDL, schemas=[schema])
    return engine, proof_protobuf.opened(schema, COLUMNS, "ignore")


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


@settings(max_examples=400, deadline=None)
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


@settings(max_examples=400, deadline=None)
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
