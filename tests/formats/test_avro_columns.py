"""Whole columns of Avro are what its records are one by one."""

from __future__ import annotations

import json
import random
import struct
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oncelake.ingestion.formats import avro
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from tests.support.decoding import decoded, opened
from tests.support.long import IS_LONG
from tests.support.registry import framed

# Types of Avro, and the columns that take some of their values.
TYPES: list[tuple[Any, str]] = [
    ("boolean", "BOOLEAN"),
    ("int", "TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL(9, 2)"),
    ("long", "INT|BIGINT|DOUBLE"),
    ("float", "FLOAT|DOUBLE"),
    ("double", "DOUBLE|FLOAT"),
    ("string", "STRING|VARCHAR(2)"),
    ("bytes", "BINARY"),
    ({"type": "enum", "name": "E%d", "symbols": ["a", "b", "c"]}, "STRING"),
    ({"type": "fixed", "name": "F%d", "size": 16}, "BINARY"),
    ({"type": "int", "logicalType": "date"}, "DATE|INT"),
    ({"type": "long", "logicalType": "timestamp-millis"}, "TIMESTAMP|BIGINT"),
    ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP|TIMESTAMP_NTZ"),
    ({"type": "long", "logicalType": "timestamp-nanos"}, "TIMESTAMP"),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, "TIMESTAMP_NTZ"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "DECIMAL(9, 2)|INT"),
    ({"type": "fixed", "name": "U%d", "size": 16, "logicalType": "uuid"}, "STRING|BINARY"),
    ({"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}, "TIMESTAMP|STRING"),
    ({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}, "TIMESTAMP|BIGINT"),
    ({"type": "array", "items": "int"}, "ARRAY<INT>"),
]
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [0, 1, -1, 127, -129, 2**31 - 1, -(2**31), 2_932_896, 2_932_897, -719_163, 19_000],
    "long": [
        *(0, -1, 2**62 - 1, 2**62, -(2**62) - 1, 2**63 - 1, -(2**63), 1_700_000_000_000_000),
        *(-62_135_596_800_000_000, -62_135_596_800_000_001, 253_402_300_799_999_999),
        *(253_402_300_800_000_000, 253_402_300_799_999, 253_402_300_800_000, 1_700_000_000_001),
    ],
    "float": [0.0, -0.0, 1.5, float("nan"), float("inf"), struct.unpack("<f", b"abcd")[0]],
    "double": [0.0, -0.0, 0.1, float("nan"), float("-inf"), 1e300, 16777217.0],
    "string": ["", "a", "é", "\0", "\U0001f600" * 20, "x" * 300, "2024-01-01T00:00:00Z"],
    "bytes": [b"", b"\xff", b"\x01\x00", b"\x00" * 9, b"x" * 300],
    "enum": ["a", "b", "c"],
    "fixed": [b"\0" * 16, bytes(range(16))],
    "array": [[], [1, 2]],
}


def case(chance: random.Random) -> tuple[str, WriterSchema, list[bytes | None]]:
    """Make up columns, a schema, and framed records of it, some of them damaged."""
    fields, kinds, columns = [], [], ["absent INT"]
    # Only a rare schema has a list, with which no record is read in columns.
    for at in range(chance.randint(1, 6)):
        type_, targets = chance.choice(TYPES if chance.random() < 0.05 else TYPES[:-1])
        kinds.append(type_ if isinstance(type_, str) else type_["type"])
        type_ = json.loads(json.dumps(type_).replace("%d", str(at)))
        shape = chance.choice([type_, type_, ["null", type_], [type_, "null"], [type_]])
        fields.append({"name": f"c{at}", "type": shape})
        if chance.random() < 0.9:
            columns.append(f"c{at} {chance.choice(targets.split('|'))}")
    schema = {"type": "record", "name": "Row", "fields": fields}
    parsed = parse_schema(json.loads(json.dumps(schema).replace("logicalType", "wasLogical")))
    records = []
    for _ in range(100):
        row = {
            f["name"]: None
            if "null" in f["type"] and chance.random() < 0.3
            else chance.choice(VALUES[kind])
            for f, kind in zip(fields, kinds, strict=True)
        }
        stream = BytesIO()
        schemaless_writer(stream, parsed, row)
        records.append(damaged(stream.getvalue(), chance))
    return ", ".join(columns), WriterSchema(id=1, type="AVRO", text=json.dumps(schema)), records


def damaged(payload: bytes, chance: random.Random) -> bytes | None:
    """Frame a payload; now and then change, cut or lengthen it, or its frame."""
    at = chance.randrange(len(payload) + 1)
    if chance.random() < 0.7:
        return framed(1, payload)
    return chance.choice(
        [
            framed(1, payload[:at] + chance.randbytes(1) + payload[at + 1 :]),
            framed(1, payload.replace(b"x", b"\xff")),
            framed(1, payload[:at]),
            framed(1, payload + b"\0"),
            framed(1, payload)[: at % 6],
            framed(9, payload),
            b"\1" + payload,
            None,
        ]
    )


@settings(
    max_examples=200 if IS_LONG else 25,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32), extra_fields=st.sampled_from(["ignore", "keep", "reject"]))
def test_many_records_are_read_as_each_alone(seed: int, extra_fields: Any) -> None:
    """Rows, reasons and details are the same, whatever the bytes are."""
    ddl, schema, records = case(random.Random(seed))
    decode = opened("avro", ddl, writer_schemas=[schema], extra_fields=extra_fields)

    together = decoded(decode, records)

    alone = [decoded(decode, [record])[0] for record in records]
    assert [repr(each) for each in together] == [repr(each) for each in alone]


def test_a_part_of_a_larger_array_is_read_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark may hand over a slice; schemas of a batch may be several. None is read one by one."""
    monkeypatch.setattr(avro, "compiled", None)
    schemas = [
        WriterSchema(id=n, type="AVRO", text=f'{{"type": "record", "name": "R", "fields": {each}}}')
        for n, each in enumerate(
            ('[{"name": "a", "type": "int"}]', '[{"name": "b", "type": "string"}]')
        )
    ]
    decode = opened("avro", "a INT, b STRING", writer_schemas=schemas)
    records = [framed(0, b"\2"), framed(1, b"\2x")] * 50

    rows = decode(pa.array([b"before", *records], pa.binary())[1:]).field("row").to_pylist()

    assert rows == [{"a": 1, "b": None}, {"a": None, "b": "x"}] * 50


def test_no_schema_stops_a_batch() -> None:
    """One that fastavro takes and whole columns cannot is read one by one."""
    field = {"name": "a", "type": ["null", {"type": "enum", "name": "E", "symbols": []}]}
    text = json.dumps({"type": "record", "name": "R", "fields": [field]})
    decode = opened("avro", "a STRING", writer_schemas=[WriterSchema(id=1, type="AVRO", text=text)])

    structs = decoded(decode, [framed(1, payload) for payload in [b"\0", b"\2\0"] * 40])

    assert [each["reason"] for each in structs] == [None, "malformed_avro"] * 40
