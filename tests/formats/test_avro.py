"""Avro through a real registry: good, evolved and hostile records, and what becomes of each."""

from __future__ import annotations

import datetime as dt
import json
import struct
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaReference

from ingestion.errors import DependencyError
from ingestion.verify.verify import verify
from tests.support.proof import find_problems
from tests.support.registry import Subject, framed
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


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


def test_every_type_arrives_as_it_was_written(registered: World, subject: Subject) -> None:
    """Each type of Avro becomes its declared column, and another reader sees the same."""
    registered.declare(schema=DDL)
    small = {**WHOLE, "id": 1, "price": Decimal(1), "tags": [], "more": {}, "same": None}
    registered.send(*subject.avro(ALL_TYPES, WHOLE, {**small, "either": None}))
    registered.run()

    first, second = registered.rows()
    assert find_problems(registered) == ()
    assert second["price"] == Decimal("-1234567.89")
    assert second["f"] == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert (second["ms"], second["us"].microsecond) == (NOON, 123456)
    assert (second["local"], second["tod"]) == (WHOLE["local"], 3_723_000)
    assert (second["inner"], second["same"]) == ({"x": 7, "absent": None}, {"x": 8})
    assert (second["e"], second["b"], second["either"]) == ("GREEN", b"\x00\xff", "text")
    assert (first["tags"], first["more"], first["same"], first["either"]) == ([], [], None, None)
    assert registered.ledger[-1].counts.get("quarantined") == 0


AN_OBJECT = (
    '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}}'
)
OLD = record(column("id", "int"), column("name", "string"))
WIDER = record(
    column("id", "long"), column("at", ["null", "int"], default=None), column("name", "string")
)
WITHOUT = record(column("id", "int"), column("other", "string"))


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
    assert bad["detail"].endswith(": id: 2147483648 does not fit INT")
    assert registered.ledger[-1].counts["extra_fields"] == 1
    assert find_problems(registered) == ()


def test_hostile_bytes_are_quarantined_each_with_its_reason(
    registered: World, subject: Subject
) -> None:
    """Nothing that only looks like a record gets into the table, and none stops the batch."""
    good = subject.avro(WIDER, row(1, "a", 1))[0]
    number, body = int.from_bytes(good[1:5]), good[5:]
    json_id = subject.register(AN_OBJECT, "JSON")
    recursive = subject.register(
        '{"type": "record", "name": "L", "fields": [{"name": "id", "type": ["null", "L"]}]}'
    )
    wrong_type = subject.avro(record(column("id", "string")), {"id": "1"})[0]
    hostile = {
        b'{"id": 1}': "not_framed",
        b"": "short_header",
        b"\0\0\0": "short_header",
        framed(2**31 + 5, body): "unknown_schema_id",
        framed(json_id, body): "wrong_schema_type",
        framed(recursive, b"\x02" * 100_000 + b"\0"): "unusable_schema",
        framed(number, b""): "malformed_avro",
        good[:-1]: "malformed_avro",
        good + b"\0": "malformed_avro",
        framed(number, b"\x02\x06\x02\x02a"): "malformed_avro",
        framed(number, b"\x02\x00\x04\xff\xfe"): "malformed_avro",
        framed(number, b"\x02\x00\xfe\xff\xff\xff\x0fa"): "malformed_avro",
        wrong_type: "type_mismatch",
        framed(number, b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x00\x00"): "type_mismatch",
    }
    registered.send(*hostile, good)
    registered.run()

    found = [(each["value"], each["reason"]) for each in registered.quarantined()]
    assert found == list(hostile.items())
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
