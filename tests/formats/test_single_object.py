"""Avro's single-object encoding: schemas of the declaration, named by their fingerprints."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest
from fastavro import schemaless_writer
from pydantic import ValidationError

from oncelake.ingestion.formats.avro.single_object import schemas_by_fingerprint
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.decode.single_object import fingerprint
from tests.support.both_readers import Sent, classified, declared, judged
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World

OLD = {
    "type": "record",
    "name": "Row",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}
NEW = {**OLD, "doc": "wider", "fields": [*OLD["fields"], {"name": "at", "type": "int"}]}
FORMAT = {"type": "avro", "framing": "single_object", "schemas": [OLD, json.dumps(NEW)]}
ODD = {
    "type": "record",
    "name": "a.b.Odd",
    "aliases": ["x"],
    "fields": [
        {"name": "e", "default": "A", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "f", "type": {"type": "fixed", "size": 4, "name": "F", "namespace": ""}},
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "E"}}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "again", "type": ["null", "a.b.E", {"type": "string"}], "order": "ignore"},
        {"name": "inner", "type": {"type": "record", "name": "c.Inner", "fields": []}},
    ],
}


def encoded(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    """Write a row as Avro's own BinaryMessageEncoder does."""
    payload = BytesIO()
    schemaless_writer(payload, schema, row)
    return b"\xc3\x01" + fingerprint(json.dumps(schema)) + payload.getvalue()


@pytest.mark.parametrize("schema", [OLD, NEW, ODD, "null", ["null", "int"]], ids=str)
def test_engine_and_proof_compute_the_same_fingerprint(schema: Any) -> None:
    """Each by its own code: fastavro's, and the specification's."""
    text = json.dumps(schema)

    (number,) = schemas_by_fingerprint([text])

    assert int(str(number), 16) == int.from_bytes(fingerprint(text), "little")


def test_the_fingerprint_is_that_of_the_specification() -> None:
    """Of the type null it is known."""
    assert fingerprint('"null"').hex() == "8a8f25cce724dd63"


def test_each_record_is_decoded_by_the_schema_of_its_fingerprint() -> None:
    """Many at once or alone; what names no declared schema, or is framed otherwise, is refused."""
    old = Sent(encoded(OLD, {"id": 1, "name": "a"}))
    new = Sent(encoded(NEW, {"id": 2, "name": None, "at": 7}))
    bad = {
        encoded({**OLD, "name": "Other"}, {"id": 3, "name": "a"}): "unknown_schema_id",
        b"\xc3\x01" + b"1234567": "short_header",
        b"\xc3\x02" + b"12345678": "not_framed",
        b"": "short_header",
        old.value or b"": None,
        (old.value or b"")[:-1]: "malformed_avro",
    }
    spec = declared(format=FORMAT, schema="id BIGINT, name STRING, at INT")
    sent = [*[old, new] * 50, *map(Sent, bad), Sent(None, b"1")]

    rows = judged(spec, Settings(), sent)
    proven = classified(spec, Settings(), sent)

    assert [tuple(row[name] for name in spec.types) for row in rows[:2]] == [
        (1, "a", None),
        (2, None, 7),
    ]
    assert [row["_reason"] for row in rows] == [*[None] * 100, *bad.values(), None]
    assert rows[-1]["_disposition"] == "delete"
    assert "schema fingerprint " in rows[100]["_detail"]
    assert [record.offset for record, _ in proven.bad] == [101, 102, 103, 105]
    assert [record.offset for record, _ in proven.unread] == [100]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"framing": "single_object"}, "needs the `schemas`"),
        ({"schemas": ['"long"']}, "the registry has the `schemas`"),
        ({"framing": "single_object", "schemas": ["{"]}, "no schema of Avro"),
        ({"framing": "single_object", "schemas": [{"type": "rekord"}]}, "no schema of Avro"),
        (
            {"framing": "single_object", "schemas": [OLD, {**OLD, "doc": "the same"}]},
            "has the fingerprint of another one",
        ),
    ],
)
def test_schemas_that_name_nothing_are_refused(options: Any, message: str) -> None:
    """When the file is loaded."""
    with pytest.raises(ValidationError, match=message):
        declared(format={"type": "avro", **options})


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_single_objects_arrive_in_the_table(world: World, engine: str) -> None:
    """Without a registry, in both engines; keys as well as values."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
    key_format = {"type": "avro", "framing": "single_object", "schemas": [key]}
    world.declare(format=FORMAT, key_format=key_format, schema="id INT, name STRING, at INT")
    rows = [{"id": id, "name": "a", "at": id} for id in (1, 2)]
    world.send(*(encoded(NEW, row) for row in rows), b"\xc3\x01")
    world.producer.produce(world.topic, None, encoded(key, {"id": 1}), partition=0)
    assert world.producer.flush(30) == 0
    world.run()

    assert world.rows() == rows[1:]
    assert [row["reason"] for row in world.quarantined()] == ["short_header"]
    assert find_problems(world) == ()


@pytest.mark.parametrize("engine", ["auto", *twins("spark")])
def test_what_has_no_type_arrives_as_a_variant(world: World, engine: str) -> None:
    """A union of unlike types, and a record in itself, which the proof reads, too."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    either = ["null", "int", "string", "double", "boolean"]
    fields = {"id": "int", "at": "int", "either": either, "next": ["null", "shop.Node"]}
    node = {"type": "record", "name": "Node", "namespace": "shop"}
    node["fields"] = [{"name": name, "type": type_} for name, type_ in fields.items()]
    schema = "id INT, at INT, either VARIANT, next STRUCT<id: INT, next: VARIANT>"
    format_ = {"type": "avro", "framing": "single_object", "schemas": [node]}
    world.declare(format=format_, schema=schema, sequence_by=["at"])
    deep: dict[str, Any] | None = None
    for id, value in enumerate([None, 1, "é", 0.1, True, -0.0, float("nan")]):
        deep = {"id": id, "at": id, "either": value, "next": deep}
        world.send(encoded(node, deep))
    world.run()
    world.send(encoded(node, {**(deep or {}), "at": 100, "either": "x"}))
    for id in range(7, 60):
        deep = {"id": id, "at": id, "either": id, "next": deep}
    world.send(encoded(node, {"id": 99, "at": 0, "either": 1, "next": deep}))
    report = world.run()

    assert find_problems(world) == ()
    assert report.total("quarantined") == 0
    assert len(world.rows()) == 8
