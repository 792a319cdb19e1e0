"""What waited for a schema, or for the right format, is sent in later: once, and proven."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pytest
from deltalake import DeltaTable
from fastavro import schemaless_writer

from oncelake.ingestion.verify.verify import verify
from tests.support.debezium import postgres
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.protobuf import Compiled
from tests.support.registry import Subject, framed
from tests.support.world import World, row


def avro(text: str, values: Mapping[str, Any]) -> bytes:
    """Write a record by a schema that no registry needs to know."""
    written = BytesIO()
    schemaless_writer(written, json.loads(text), values)
    return written.getvalue()


def proto(text: str, values: Mapping[str, Any]) -> bytes:
    """Write a message, the first of its file."""
    made: bytes = Compiled(text).make("Row", **values).SerializeToString()
    return b"\0" + made


@dataclass(frozen=True)
class Wire:
    """A format of the registry: two of its schemas, and how a payload is written."""

    format: str
    type: str
    known: str
    late: str
    payload: Callable[[str, Mapping[str, Any]], bytes]

    def __str__(self) -> str:
        return self.format


OLD_AVRO = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
NAME = {"name": "name", "type": "string", "default": ""}
OLD_PROTO = 'syntax = "proto3"; message Row { int32 id = 1; string name = 2; }'
WIRES = [
    Wire(
        "avro",
        "AVRO",
        json.dumps({**OLD_AVRO, "fields": [*OLD_AVRO["fields"], NAME]}),
        json.dumps({**OLD_AVRO, "fields": [NAME, *OLD_AVRO["fields"]]}),
        avro,
    ),
    Wire("protobuf", "PROTOBUF", OLD_PROTO, OLD_PROTO.replace("= 2", "= 5"), proto),
    Wire(
        "json_schema",
        "JSON",
        '{"type": "object", "properties": {"id": {"type": "integer"}}}',
        '{"type": "object", "properties": {"id": {"type": "number"}}}',
        lambda text, values: json.dumps(values).encode(),
    ),
]


@pytest.mark.parametrize("wire", [WIRES[0], *twins(*WIRES[1:])], ids=str)
def test_records_wait_for_their_schema(registered: World, subject: Subject, wire: Wire) -> None:
    """An id that the registry learns only later: its records wait, and then take their place."""
    registered.declare(format=wire.format)
    known = subject.register(wire.known, wire.type)
    # The registry counts its schemas, and this one is the only one that is asked to register.
    late = known + 1

    def sent(number: int, id: int, name: str) -> bytes:
        text = wire.known if number == known else wire.late
        return framed(number, wire.payload(text, {"id": id, "name": name}))

    registered.send(sent(known, 1, "old"), sent(late, 1, "late"), sent(late, 2, "late"))
    registered.send(sent(known, 2, "newer"), sent(late, 3, "late"))
    registered.run()
    waited = registered.quarantined()
    proven_before = verify(registered.spec, registered.settings)

    assert subject.register(wire.late, wire.type) == late
    proven_between = verify(registered.spec, registered.settings)
    report = registered.redrive()

    assert [each["reason"] for each in waited] == ["unknown_schema_id"] * 3
    assert (proven_before.holds, proven_before.limits) == (True, ())
    assert (proven_between.holds, proven_between.obstacles) == (True, ())
    assert "3 records in quarantine were bad" in proven_between.limits[0]
    assert (report.redriven, report.still_bad) == (3, {})
    assert {name: n for name, n in report.batches[0].counts.items() if n} == {
        "read": 3, "inserted": 1, "updated": 1, "stale": 1
    }  # fmt: skip
    assert registered.rows() == [row(1, "late"), row(2, "newer"), row(3, "late")]
    assert find_problems(registered) == ()


@pytest.mark.kafka
def test_a_delete_waits_for_the_schema_of_its_key(registered: World, registry_address: str) -> None:
    """The quarantine says why its key could not be read; the delete is made once it can."""
    registered.declare(key_format="avro")
    registered.send(row(1, "a"), row(2, "b"))
    with Subject(registry_address, f"{registered.topic}-key") as keys:
        known = keys.register('"int"')
        late = known + 1
        text = json.dumps(OLD_AVRO)
        registered.producer.produce(
            registered.topic, value=None, key=framed(late, avro(text, {"id": 1})), partition=0
        )
        assert registered.producer.flush(30) == 0
        registered.run()
        (waited,) = registered.quarantined()

        assert keys.register(text) == late
        between = verify(registered.spec, registered.settings)
        registered.redrive()

    assert waited["reason"] == "tombstone_without_key"
    assert waited["detail"].startswith(f"unknown_schema_id: schema id {late}: ")
    assert (between.holds, len(between.limits)) == (True, 1)
    assert registered.rows() == [row(2, "b")]
    assert find_problems(registered) == ()


def test_a_bare_key_that_is_no_text_deletes_nothing(world: World) -> None:
    """It is put aside, and never mended into another key."""
    world.declare(schema="name STRING NOT NULL, at INT", keys=["name"])
    world.send({"name": "\ufffd", "at": 1})
    for key in (b"\xff", b"plain"):
        world.producer.produce(world.topic, value=None, key=key, partition=0)
    assert world.producer.flush(30) == 0
    world.run()

    (bad,) = world.quarantined()
    assert (bad["_offset"], bad["reason"]) == (1, "tombstone_without_key")
    assert bad["detail"].startswith("invalid_utf8")
    assert world.rows() == [{"name": "\ufffd", "at": 1}]
    assert find_problems(world) == ()


def test_what_the_registry_has_forgotten_is_not_called_wrong(
    registered: World, subject: Subject
) -> None:
    """A record without its schema is unproven where the quarantine does not hold it: and named."""
    registered.declare(format="avro")
    unknown = 2**31 + 3
    registered.send(framed(unknown, b"\x02"))
    registered.run()
    DeltaTable(registered.paths.quarantine.path).delete()

    verdict = verify(registered.spec, registered.settings)

    (obstacle,) = verdict.obstacles
    # That the quarantine lacks the record is wrong; the record itself is neither right nor wrong.
    assert verdict.difference_count == {"quarantine": 1}
    assert f"does not know schema id {unknown}, by which {registered.topic}-0" in obstacle


FORMATS: dict[str, tuple[Any, Any, Callable[[int, str], bytes]]] = {
    "csv by another delimiter": (
        "csv",
        {"type": "csv", "delimiter": ";"},
        lambda id, name: f"{id};{name};".encode(),
    ),
    "JSON that is Debezium's": (
        "json",
        "debezium",
        lambda id, name: postgres(schemas=False).event("c", None, {"id": id, "name": name}),
    ),
    "CSV that is JSON": ("csv", "json", lambda id, name: json.dumps(row(id, name)).encode()),
}


@pytest.mark.parametrize("case", ["CSV that is JSON", *twins(*list(FORMATS)[:-1])])
def test_a_format_that_was_declared_wrongly_loses_nothing(world: World, case: str) -> None:
    """All waits in quarantine until the format is mended, and what came later stays newer."""
    wrong, right, written = FORMATS[case]
    strict = "id INT NOT NULL, name STRING NOT NULL, at INT"
    world.declare(format=wrong, schema=strict, quarantine_rate={"stop_above": 1})
    world.send(written(1, "a"), written(2, "b"), written(1, "c"))
    world.run()
    world.declare(format=right)
    world.send(written(2, "newer"))
    world.run()

    report = world.redrive()

    assert (report.redriven, report.still_bad) == (3, {})
    assert world.rows() == [row(1, "c"), row(2, "newer")]
    assert find_problems(world) == ()
