"""What the docs and the quarantine advise is done here, and works."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ruamel.yaml import YAML

from oncelake.ingestion.operations.quarantine.remedies import remedy_of
from tests.support.decoding import decoded, opened
from tests.support.proof import find_problems, prove
from tests.support.registry import Subject
from tests.support.world import ROOT, World

ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [
                        {"name": "id", "type": "long"},
                        {"name": "name", "type": ["null", "string"], "default": None},
                    ],
                },
            ],
        },
        {"name": "after", "type": ["null", "Value"]},
        {"name": "op", "type": "string"},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


def section(page: str, heading: str) -> str:
    """The text of a page below one of its headings."""
    whole = (ROOT / "docs" / page).read_text()
    return whole.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def advised(page: str, heading: str) -> dict[str, Any]:
    """The declaration that a section shows, but for its topic."""
    (text,) = re.findall(r"```yaml\n(.*?)```", section(page, heading), re.DOTALL)
    fields: dict[str, Any] = YAML(typ="safe").load(text)
    return {name: value for name, value in fields.items() if name != "topic"}


def produce(world: World, key: bytes | None, value: bytes | None) -> None:
    """Send one record."""
    world.producer.produce(world.topic, key=key, value=value, partition=0)
    assert world.producer.flush(30) == 0


def test_a_document_of_mongodb_is_there_as_text() -> None:
    """The detail says so, instead of calling it missing, and names what to do."""
    value = json.dumps({"op": "c", "after": '{"_id": 1}'}).encode()

    (found,) = decoded(opened("debezium", "id INT"), [value], [None])

    assert found["detail"] == (
        "op c: `after` is a text, as MongoDB's connector writes a document; read the events as "
        "`format: json` (docs/debezium.md, MongoDB)"
    )


@pytest.mark.spark
def test_documents_of_mongodb_are_read_as_the_docs_say(world: World) -> None:
    """Created, updated and deleted by the declaration of the docs."""
    world.declare(**advised("debezium.md", "MongoDB"))

    def send(id: int, op: str, document: dict[str, Any] | None) -> None:
        key = json.dumps({"id": json.dumps({"$oid": f"{id:024x}"})}).encode()
        after = None if document is None else json.dumps(document)
        produce(world, key, json.dumps({"op": op, "before": None, "after": after}).encode())
        if op == "d":
            produce(world, key, None)

    for id, name in enumerate("abc"):
        send(id, "c", {"_id": {"$oid": f"{id:024x}"}, "first_name": name})
    send(0, "u", {"_id": {"$oid": f"{0:024x}"}, "first_name": "z"})
    send(1, "d", None)
    world.run()

    assert [row["first_name"] for row in world.rows()] == ["z", "c"]
    assert world.ledger[-1].counts["quarantined"] == 0
    assert prove(world).holds


@pytest.mark.kafka
def test_a_delete_without_its_row_is_applied_by_its_null_value(
    registered: World, subject: Subject, registry_address: str
) -> None:
    """The detail says how, and the declaration of the docs does it."""
    declared = advised("debezium.md", "A delete without its row")
    registered.declare(**{**declared, "tombstones": "ignore", "key_format": "json"})
    rows = [{"id": id, "name": "a"} for id in (1, 2)]
    creates = [{"op": "c", "before": None, "after": row} for row in rows]
    with Subject(registry_address, f"{registered.topic}-key") as keys:
        (key,) = keys.avro(KEY, {"id": 1})
    delete = subject.avro(ENVELOPE, {"op": "d", "before": None, "after": None})[0]
    for value in (*subject.avro(ENVELOPE, *creates), delete):
        produce(registered, key, value)
    registered.run()
    (waits,) = registered.quarantined()
    assert waits["reason"] == "missing_key"
    assert "declare `tombstones: delete` and the `key_format`" in waits["detail"]

    registered.declare(**declared)
    produce(registered, key, delete)
    produce(registered, key, None)
    registered.run()

    assert [row["id"] for row in registered.rows()] == [2]
    assert find_problems(registered) == ()


@pytest.mark.kafka
def test_a_key_that_only_the_kafka_key_has_is_taken_from_there(
    registered: World, subject: Subject, registry_address: str
) -> None:
    """The remedy of a missing key names the field and the page, by which a key of Avro is read."""
    heading = "Columns of headers and of the Kafka key"
    assert f"by `from_key` (docs/transform.md, {heading})" in remedy_of("missing_key")
    assert "`from_key`" in section("transform.md", heading)
    value = {"type": "record", "name": "V", "fields": [{"name": "name", "type": "string"}]}
    ids = (1, -1, 300, 2**62)
    with Subject(registry_address, f"{registered.topic}-key") as subject_of_keys:
        keys = subject_of_keys.avro(KEY, *({"id": id} for id in ids))
    for key, raw in zip(keys, subject.avro(value, *({"name": str(id)} for id in ids)), strict=True):
        produce(registered, key, raw)
    produce(registered, keys[0], None)

    registered.declare(
        schema="id BIGINT NOT NULL, name STRING",
        format="avro",
        key_format="avro",
        from_key="id",
    )
    registered.run()

    assert {row["id"]: row["name"] for row in registered.rows()} == {id: str(id) for id in ids[1:]}
    assert prove(registered).holds
