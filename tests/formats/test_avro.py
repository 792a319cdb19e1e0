"""Avro through a real registry: good, evolved and hostile records, and what becomes of each."""

from __future__ import annotations

import datetime as dt
import json
import struct
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaReference
from fastavro import parse_schema, schemaless_writer
from pyspark.sql.types import StructType

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.declaration.formats import RegistryOptions
from oncelake.ingestion.errors import DependencyError, InvalidSpecError
from oncelake.ingestion.formats.decoder import Encoded
from oncelake.ingestion.formats.decoding import Decoding
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.pipeline.decode import with_schemas
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.compare.rows import values_equal
from oncelake.ingestion.verify.decode import avro as proof
from oncelake.ingestion.verify.verify import verify
from tests.support.decoding import decoded, opened
from tests.support.proof import find_problems
from tests.support.registry import Subject, framed
from tests.support.world import World, row

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PLAIN = "id INT NOT NULL, name STRING, at INT"


@pytest.fixture
def registered(registered: World) -> World:
    """A stream of Avro."""
    registered.declare(format="avro")
    return registered


def record(*fields: dict[str, Any], name: str = "Row") -> dict[str, Any]:
    """A schema of records."""
    return {"type": "record", "name": name, "namespace": "a.b", "fields": list(fields)}


def column(name: str, type: Any, **more: Any) -> dict[str, Any]:
    """A field of one."""
    return {"name": name, "type": type, **more}


def logical(type: str, logical_type: str, **more: Any) -> dict[str, Any]:
    """A logical type."""
    return {"type": type, "logicalType": logical_type, **more}


ALL_TYPES = record(
    column("id", "long"),
    column("yes", "boolean"),
    column("f", "float"),
    column("d", "double"),
    column("s", ["null", "string"]),
    column("b", "bytes"),
    column("fx", {"type": "fixed", "name": "Four", "size": 4}),
    column("e", {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}),
    column("price", logical("bytes", "decimal", precision=12, scale=3)),
    column("day", logical("int", "date")),
    column("ms", logical("long", "timestamp-millis")),
    column("us", logical("long", "timestamp-micros")),
    column("local", logical("long", "local-timestamp-micros")),
    column("u", logical("string", "uuid")),
    column("tod", logical("int", "time-millis")),
    column("tags", {"type": "array", "items": ["null", "string"]}),
    column("more", {"type": "map", "values": "double"}),
    column("inner", record(column("x", "int"), column("left", "string"), name="Inner")),
    column("same", ["null", "Inner"]),
    column("either", ["null", "int", "string", "Inner"]),
)
DDL = (
    "id BIGINT NOT NULL, yes BOOLEAN, f FLOAT, d DOUBLE, s STRING, b BINARY, fx BINARY, e STRING, "
    "price DECIMAL(9, 2), day DATE, ms TIMESTAMP, us TIMESTAMP, local TIMESTAMP_NTZ, u STRING, "
    "tod INT, tags ARRAY<STRING>, more MAP<STRING, DOUBLE>, inner STRUCT<x: BIGINT, absent: INT>, "
    "same STRUCT<x: INT>, either STRING, absent STRING"
)
NOON = dt.datetime(2024, 2, 29, 12, 30, 15, 123000, tzinfo=dt.UTC)
WHOLE: dict[str, Any] = {
    "id": 2**40,
    "yes": True,
    "f": 0.1,
    "d": float("inf"),
    "s": None,
    "b": b"\x00\xff",
    "fx": b"abcd",
    "e": "GREEN",
    "price": Decimal("-1234567.890"),
    "day": dt.date(2024, 2, 29),
    "ms": NOON,
    "us": NOON.replace(microsecond=123456),
    "local": dt.datetime.fromisoformat("0001-01-01T00:00:00.000001"),
    "u": "6f9619ff-8b86-4011-b42d-00cf4fc964ff",
    "tod": dt.time(1, 2, 3),
    "tags": ["x", None, "é"],
    "more": {"k": 1.5, "nan": float("nan")},
    "inner": {"x": 7, "left": "unread"},
    "same": {"x": 8, "left": ""},
    "either": "text",
}


def encoded(schema: Any, *records: Any) -> list[bytes]:
    """Write records by a schema, without its id."""
    streams = [BytesIO() for _ in records]
    for stream, each in zip(streams, records, strict=True):
        schemaless_writer(stream, parse_schema(schema), each)
    return [stream.getvalue() for stream in streams]


def proven(schema: WriterSchema, ddl: str, payload: bytes) -> list[Any] | None:
    """Read a payload as the proof does; nothing where it refuses it."""
    columns = {column.name: column.type for column in parse_columns(ddl)}
    try:
        return list(proof.opened(schema, columns, is_key=False)(payload).values)
    except (ValueError, OverflowError):
        return None


def test_every_type_arrives_as_it_was_written() -> None:
    """Each type of Avro becomes its declared column, and another reader sees the same."""
    schema = WriterSchema(id=1, type="AVRO", text=json.dumps(ALL_TYPES))
    small = {**WHOLE, "id": 1, "price": Decimal(1), "tags": [], "more": {}, "same": None}
    payloads = encoded(ALL_TYPES, WHOLE, {**small, "either": None})

    structs = decoded(
        opened("avro", DDL, writer_schemas=[schema]), [framed(1, p) for p in payloads]
    )

    second, first = (each["row"] for each in structs)
    for one, payload in zip((second, first), payloads, strict=True):
        assert values_equal(list(one.values()), proven(schema, DDL, payload))
    assert second["price"] == Decimal("-1234567.89")
    assert second["f"] == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert (second["ms"], second["us"].microsecond) == (NOON, 123456)
    assert (second["local"], second["tod"]) == (WHOLE["local"], 3_723_000)
    assert (second["inner"], second["same"]) == ({"x": 7, "absent": None}, {"x": 8})
    assert (second["e"], second["b"], second["either"]) == ("GREEN", b"\x00\xff", "text")
    assert (first["tags"], first["more"], first["same"], first["either"]) == ([], {}, None, None)


AN_OBJECT = (
    '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}}'
)
OLD = record(column("id", "int"), column("name", "string"))
WIDER = record(
    column("id", "long"), column("at", ["null", "int"], default=None), column("name", "string")
)
WITHOUT = record(column("id", "int"), column("other", "string"))


@pytest.mark.kafka
@pytest.mark.spark
def test_schemas_evolve_inside_one_batch(registered: World, subject: Subject) -> None:
    """Each record is read by the schema that wrote it; what a schema lacks is null."""
    old = subject.avro(OLD, {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    wider = subject.avro(WIDER, {"id": 2, "name": "B", "at": 7}, {"id": 2**31, "name": "", "at": 1})
    registered.send(*old, *wider, *subject.avro(WITHOUT, {"id": 3, "other": "?"}))
    registered.run()

    assert registered.rows() == [row(1, "a"), row(2, "B", 7), row(3, None)]
    (bad,) = registered.quarantined()
    assert (bad["reason"], bad["_offset"]) == ("type_mismatch", 3)
    assert bad["detail"].startswith("schema id ")
    assert bad["detail"].endswith(": id: expected INT, found BIGINT: 2147483648")
    assert registered.ledger[-1].counts["extra_fields"] == 1
    assert find_problems(registered) == ()


def test_hostile_bytes_are_refused_each_with_its_reason() -> None:
    """Nothing that only looks like a record is taken, and the proof refuses what can be read."""
    itself = '{"type": "record", "name": "L", "fields": [{"name": "id", "type": ["null", "L"]}]}'
    schemas = [
        WriterSchema(id=1, type="AVRO", text=json.dumps(WIDER)),
        WriterSchema(id=2, type="JSON", text=AN_OBJECT),
        WriterSchema(id=3, type="AVRO", text=itself),
        WriterSchema(id=4, type="AVRO", text=json.dumps(record(column("id", "string")))),
    ]
    ((good,), (text,)) = (
        encoded(WIDER, row(1, "a", 1)),
        encoded(record(column("id", "string")), {"id": "1"}),
    )
    hostile = {
        b'{"id": 1}': "not_framed",
        b"": "short_header",
        b"\0\0\0": "short_header",
        framed(2**31 + 5, good): "unknown_schema_id",
        framed(2, good): "wrong_schema_type",
        framed(3, b"\x02" * 100_000 + b"\0"): "malformed_avro",
        framed(1, b""): "malformed_avro",
        framed(1, good[:-1]): "malformed_avro",
        framed(1, good + b"\0"): "malformed_avro",
        framed(1, b"\x02\x06\x02\x02a"): "malformed_avro",
        framed(1, b"\x02\x00\x04\xff\xfe"): "malformed_avro",
        framed(1, b"\x02\x00\xfe\xff\xff\xff\x0fa"): "malformed_avro",
        framed(4, text): "type_mismatch",
        framed(1, b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x00\x00"): "type_mismatch",
    }
    decode = opened("avro", PLAIN, writer_schemas=schemas)

    *bad, whole = decoded(decode, [*hostile, framed(1, good)])

    assert [each["reason"] for each in bad] == list(hostile.values())
    assert whole["row"] == row(1, "a", 1)
    payloads = [value[5:] for value in hostile if value.startswith(b"\0\0\0\0\1")]
    assert {str(proven(schemas[0], PLAIN, payload)) for payload in payloads} == {"None"}


def test_what_cannot_be_read_waits_in_quarantine(registered: World, subject: Subject) -> None:
    """It is there as it was, with its reason, and stops no batch."""
    good = subject.avro(WIDER, row(1, "a", 1))[0]
    hostile = {b'{"id": 1}': "not_framed", good[:-1]: "malformed_avro"}
    registered.send(*hostile, framed(2**31 + 5, good[5:]), good)
    registered.run()

    found = [(each["value"], each["reason"]) for each in registered.quarantined()]
    assert found == [*hostile.items(), (framed(2**31 + 5, good[5:]), "unknown_schema_id")]
    assert registered.rows() == [row(1, "a", 1)]
    assert find_problems(registered) == ()


def test_keys_may_be_avro_too(registered: World, subject: Subject, registry_address: str) -> None:
    """A null value deletes the row of its framed key, a record or a bare value."""
    registered.declare(key_format="avro")
    values = subject.avro(WIDER, *(row(n, "x", 1) for n in range(4)))
    registered.send(*values)
    with Subject(registry_address, f"{registered.topic}-key") as keys:
        plain, whole = keys.avro("int", 1)[0], keys.avro(record(column("id", "int")), {"id": 2})[0]
    for key in (plain, whole, b"\0\0\0\0\x63\x02"):
        registered.producer.produce(registered.topic, value=None, key=key, partition=0)
    registered.producer.flush(30)
    registered.run()

    assert [each["id"] for each in registered.rows()] == [0, 3]
    assert [each["reason"] for each in registered.quarantined()] == ["tombstone_without_key"]
    assert find_problems(registered) == ()


def test_a_registry_that_is_down_loses_nothing(registered: World, subject: Subject) -> None:
    """The run stops as one that may be tried again, commits nothing, and goes on when it is up."""
    registered.send(*subject.avro(OLD, {"id": 1, "name": "a"}))
    up = registered.settings
    for address in ("http://127.0.0.1:9/", f"{up.schema_registry}/elsewhere"):
        registered.settings = up.model_copy(update={"schema_registry": address})
        with pytest.raises(DependencyError, match="schema registry"):
            registered.run()
        assert registered.ledger == ()
    registered.settings = up
    registered.run()
    registered.settings = up.model_copy(update={"schema_registry": "http://127.0.0.1:9/"})
    with pytest.raises(DependencyError, match="schema registry"):
        verify(registered.spec, registered.settings)
    registered.settings = up

    assert registered.rows() == [row(1, "a")]
    assert find_problems(registered) == ()


def test_bytes_that_only_look_framed_are_refused_before_the_registry_is_asked() -> None:
    """Ten thousand ids in a batch are no ids, and each would be a request."""
    values = [b"\0" + number.to_bytes(4) for number in range(10_001)]
    encoded = Encoded(
        schema=StructType(), is_key=False, options=RegistryOptions(), extra_fields="ignore"
    )

    with pytest.raises(InvalidSpecError, match="schema ids or more"):
        with_schemas(
            Decoding(module="", encoded=encoded, column="_value"),
            pa.table({"_value": values, "_headers": pa.nulls(len(values), HEADERS)}),
            Settings(schema_registry="http://127.0.0.1:9"),
        )


def test_a_schema_may_refer_to_others(
    registered: World, subject: Subject, registry_address: str
) -> None:
    """What another subject defines is found there, by the engine and by the proof."""
    inner = '{"type": "record", "name": "Inner", "namespace": "x", "fields": [%s]}'
    with Subject(registry_address, f"{registered.topic}-inner") as other:
        other.register(inner % '{"name": "y", "type": "int"}')
    refers = SchemaReference("x.Inner", f"{registered.topic}-inner", 1)
    fields = [column("id", "int"), column("more", ["null", "x.Inner"])]
    number = subject.register(json.dumps(record(*fields)), references=(refers,))
    registered.declare(schema="id INT, more STRUCT<y: INT>", extra_fields="reject")
    surplus = subject.avro(WITHOUT, {"id": 9, "other": "?"})
    registered.send(framed(number, b"\x02\x02\x0a"), framed(number, b"\x04\x00"), *surplus)
    registered.run()

    assert registered.rows() == [{"id": 1, "more": {"y": 5}}, {"id": 2, "more": None}]
    assert [each["reason"] for each in registered.quarantined()] == ["unknown_field"]
    assert find_problems(registered) == ()
