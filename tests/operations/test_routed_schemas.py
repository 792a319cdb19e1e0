"""Tables of one topic whose columns a registry has: each follows the schemas of its own kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pydantic import SecretStr

from oncelake.ingestion.declaration.files.loader import DeclaredStream, load_streams, read_outlines
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.discover import Discovery, discover, newer_columns
from oncelake.ingestion.operations.follow.together import SharedReading
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.verify.verify import verify
from tests.cli.shell import oncelake
from tests.support.registry import Subject
from tests.support.world import World

STRATEGIES = {
    "record": record_subject_name_strategy,
    "topic_record": topic_record_subject_name_strategy,
    "topic": topic_subject_name_strategy,
}
PLACED = {"id": "int", "total": "int"}
PAID = {"id": "int", "amount": "double"}
CLICKED = {"page": "string"}
# Another type than a payment's column of that name has.
WIDER = {"id": "long", "total": "long", "amount": ["null", "string"]}


class Events:
    """A topic of several kinds, the file of its tables, and the registry."""

    def __init__(self, world: World, registry: Subject, strategy: Any) -> None:
        """Take the world, and how the registry's subjects are named."""
        self.world, self.registry, self.strategy = world, registry, strategy
        self.path = world.settings.streams / "events.yaml"
        self.path.parent.mkdir(exist_ok=True)
        # A name that no other test has registered.
        self.package = f"p{abs(hash(world.topic))}"

    def declare(self, **fields: Any) -> None:
        """Write the file."""
        kinds = {"placed": "Placed", "paid": "Paid", "clicked": "Clicked"}
        tables: dict[str, Any] = {
            table: {"when": f"{self.package}.{kind}", "schema": "registry", "keys": ["id"]}
            for table, kind in kinds.items()
        }
        tables["clicked"] |= {"mode": "append", "keys": []}
        file = {"topic": self.world.topic, "format": "avro", "route_by": "_schema"}
        file |= {"tables": tables, "schema_change": "evolve", "tombstones": "ignore", **fields}
        self.path.write_text("".join(f"{name}: {json.dumps(v)}\n" for name, v in file.items()))

    def send(self, kind: str, fields: dict[str, Any], record: dict[str, Any]) -> None:
        """Write a record of a kind, by a schema; a header has its kind, too."""
        of_fields = [{"name": name, "type": each} for name, each in fields.items()]
        schema = {"type": "record", "name": kind, "namespace": self.package, "fields": of_fields}
        conf = {"subject.name.strategy": self.strategy}
        serialize = AvroSerializer(self.registry.client, json.dumps(schema), conf=conf)
        topic, producer = self.world.topic, self.world.producer
        value = serialize(record, SerializationContext(topic, MessageField.VALUE))
        producer.produce(topic, value=value, headers=[("kind", kind.lower().encode())])
        assert producer.flush(30) == 0

    def discover(self) -> list[Discovery]:
        """Write down what Kafka and the registry say."""
        found = [discover(each, self.world.settings) for each in read_outlines(self.path)]
        for each in found:
            each.write()
        return found

    @property
    def streams(self) -> dict[str, DeclaredStream]:
        """The streams by their tables."""
        found = load_streams(self.world.settings.streams)
        return {each.name.removeprefix("events_"): each for each in found}

    def run(self) -> dict[str, RunReport]:
        """Run all together."""
        world, streams = self.world, self.streams
        together = SharedReading(each.name for each in streams.values())

        def run(stream: DeclaredStream) -> RunReport:
            try:
                return Run(
                    spec=stream.require_spec(),
                    settings=world.settings,
                    spark=lambda _: world.spark,
                    run_id="r",
                    together=together,
                ).execute()
            finally:
                together.leave(stream.name)

        with ThreadPoolExecutor(len(streams)) as threads:
            return dict(zip(streams, threads.map(run, streams.values()), strict=True))

    def columns(self) -> dict[str, str]:
        """Return the columns of each stream, as they are written down."""
        return {table: each.require_spec().ddl for table, each in self.streams.items()}

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Read the user's columns of a table."""
        spec = self.streams[table].require_spec()
        paths = StreamPaths.of(spec.name, self.world.settings, spec.sink)
        names = [column.name for column in spec.columns]
        rows = [row for each in paths.table.scan(names) for row in each.to_pylist()]
        return sorted(rows, key=lambda row: row.get("id", row.get("page")))

    def differences(self) -> list[Any]:
        """Return what the proof finds wrong with any of the streams."""
        settings = self.world.settings
        verdicts = [verify(each.require_spec(), settings) for each in self.streams.values()]
        assert {verdict.limits for verdict in verdicts} == {()}
        return [each for verdict in verdicts for each in verdict.differences]


@pytest.fixture
def events(world: World, registry_address: str, request: pytest.FixtureRequest) -> Iterator[Events]:
    """A topic of three kinds; the parameter names the strategy of their subjects."""
    world.settings = world.settings.model_copy(update={"schema_registry": registry_address})
    strategy = STRATEGIES[getattr(request, "param", "record")]
    with Subject(registry_address, f"{world.topic}-value") as registry:
        yield Events(world, registry, strategy)


@pytest.mark.parametrize("events", STRATEGIES, indirect=True)
def test_each_table_follows_the_schemas_of_its_own_kind(events: Events) -> None:
    """A new field and a wider type of one kind change its table alone; every row is proven."""
    events.declare()
    events.send("Placed", PLACED, {"id": 1, "total": 5})
    events.send("Paid", PAID, {"id": 1, "amount": 0.5})
    events.send("Clicked", CLICKED, {"page": "/"})
    assert [found.unknown for found in events.discover()] == [{}, {}, {}]
    assert events.columns() == {
        "clicked": "`page` STRING",
        "paid": "`id` INT NOT NULL, `amount` DOUBLE",
        "placed": "`id` INT NOT NULL, `total` INT",
    }
    events.run()
    events.send("Paid", PAID, {"id": 2, "amount": 1.5})
    events.send("Placed", WIDER, {"id": 2**40, "total": 2**40, "amount": "much"})
    events.send("Clicked", CLICKED, {"page": "/a"})

    reports = events.run()

    assert events.rows("paid") == [{"id": 1, "amount": 0.5}, {"id": 2, "amount": 1.5}]
    assert events.rows("placed") == [
        {"id": 1, "total": 5, "amount": None},
        {"id": 2**40, "total": 2**40, "amount": "much"},
    ]
    assert events.rows("clicked") == [{"page": "/"}, {"page": "/a"}]
    assert {table: each.total("quarantined") for table, each in reports.items()} == dict.fromkeys(
        reports, 0
    )
    assert {table for table, each in reports.items() if each.notices} == {"placed"}
    assert events.columns()["paid"] == "`id` INT NOT NULL, `amount` DOUBLE"
    assert events.columns()["placed"] == "`id` BIGINT NOT NULL, `total` BIGINT, `amount` STRING"
    assert [found.changed for found in events.discover()] == [(), (), ()]
    assert events.differences() == []


def of_json(name: str, field: str) -> tuple[str, str]:
    """A JSON Schema, and its type in the registry."""
    types = {"id": {"type": "integer"}, field: {"type": "integer"}}
    return json.dumps({"title": name, "type": "object", "properties": types}), "JSON"


def of_protobuf(name: str, field: str) -> tuple[str, str]:
    """A file of Protobuf, whose first message is of another kind."""
    package, _, message = name.rpartition(".")
    messages = f"message Other {{}} message {message} {{ int64 id = 1; int64 {field} = 2; }}"
    return f'syntax = "proto3"; package {package}; {messages}', "PROTOBUF"


def of_debezium(name: str, field: str) -> tuple[str, str]:
    """An envelope of Debezium's in Avro."""
    fields = [{"name": each, "type": "long"} for each in ("id", field)]
    row = {"type": "record", "name": f"{name}Value", "fields": fields}
    sides = [{"name": "before", "type": ["null", row]}]
    sides.append({"name": "after", "type": ["null", f"{name}Value"]})
    return json.dumps({"type": "record", "name": name, "fields": sides}), "AVRO"


@pytest.mark.parametrize(
    ("format_", "written"),
    [
        ("json_schema", of_json),
        ("protobuf", of_protobuf),
        ({"type": "debezium", "encoding": "avro"}, of_debezium),
    ],
    ids=["json_schema", "protobuf", "debezium"],
)
def test_every_format_of_a_registry_gives_a_table_its_kind(
    events: Events, format_: Any, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds are under one subject, so the newest version is of one of them alone."""
    for name, field in {"Placed": "total", "Paid": "amount"}.items():
        events.registry.register(*written(f"{events.package}.{name}", field))
    tables = {
        table: {"when": f"{events.package}.{name}", "schema": "registry", "keys": ["id"]}
        for table, name in {"placed": "Placed", "paid": "Paid"}.items()
    }
    events.declare(format=format_, tables=tables)

    found = events.discover()

    assert [each.unknown for each in found] == [{}, {}]
    assert events.columns() == {
        "paid": "`id` BIGINT NOT NULL, `amount` BIGINT",
        "placed": "`id` BIGINT NOT NULL, `total` BIGINT",
    }
    events.world.set_environment(monkeypatch)
    again, shown = (
        oncelake("discover", "events", "--json"),
        oncelake("schema", "show", "events_paid"),
    )
    documents = json.loads(again.output)["files"]
    assert [each["table"] for each in documents] == ["placed", "paid"]
    assert [each["added"] + each["changed"] for each in documents] == [[], []]
    assert found[1].topics[events.world.topic].origin in shown.output


def test_a_kind_that_nobody_has_registered_keeps_no_sibling_back(events: Events) -> None:
    """Its stream says what to do; the others run, and it begins at the topic's start later."""
    events.declare()
    events.send("Placed", PLACED, {"id": 1, "total": 5})
    events.send("Clicked", CLICKED, {"page": "/"})
    placed, paid, clicked = events.discover()
    assert (placed.unknown, clicked.unknown) == ({}, {})
    assert f"with a schema of {events.package}.Paid" in paid.unknown[events.world.topic]
    assert "oncelake discover events" in str(events.streams["paid"].error)
    for table in ("placed", "clicked"):
        spec = events.streams[table].require_spec()
        Run(
            spec=spec,
            settings=events.world.settings,
            spark=lambda _: events.world.spark,
            run_id="a",
        ).execute()
    events.send("Paid", PAID, {"id": 1, "amount": 0.5})
    events.discover()

    events.run()

    assert events.rows("paid") == [{"id": 1, "amount": 0.5}]
    assert events.differences() == []


@pytest.mark.parametrize("route_by", ["header:kind", "kind"])
def test_a_route_by_header_or_field_follows_the_record_type_of_the_subject(
    events: Events, route_by: str
) -> None:
    """The schemas of other kinds in the topic bring no column."""
    package, kind = events.package, {"kind": "string"}
    events.declare(
        route_by=route_by,
        tables={
            table: {
                "schema": {"registry": {"subject": f"{package}.{name}"}},
                "keys": ["id"],
            }
            for table, name in {"placed": "Placed", "paid": "Paid"}.items()
        },
    )

    def send(name: str, fields: dict[str, Any], record: dict[str, Any]) -> None:
        events.send(name, {**fields, **kind}, {**record, "kind": name.lower()})

    send("Placed", PLACED, {"id": 1, "total": 5})
    send("Paid", PAID, {"id": 1, "amount": 0.5})
    events.discover()
    events.run()
    send("Placed", {**PLACED, "note": ["null", "string"]}, {"id": 2, "total": 6, "note": "new"})
    placed = events.streams["placed"].require_spec()
    (newer,) = newer_columns(events.path, placed, events.world.settings)
    assert "`note` STRING" in newer

    events.run()

    assert events.rows("paid") == [{"id": 1, "amount": 0.5, "kind": "paid"}]
    assert [row["note"] for row in events.rows("placed")] == [None, "new"]
    assert "`note` STRING" in events.columns()["placed"]
    assert events.differences() == []


@pytest.mark.parametrize("sink", ["iceberg", "postgres"])
def test_what_has_no_other_type_is_json_in_every_sink(
    events: Events, sink: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """And so are lists, where the sink has none; each such column is named once."""
    if sink == "postgres":
        address = SecretStr(request.getfixturevalue("postgres_address"))
        events.world.settings = events.world.settings.model_copy(update={"postgres": address})
    fields = {"id": "int", "how": ["null", "string", "double"]}
    fields["lines"] = {"type": "array", "items": "long"}
    paid = {"when": f"{events.package}.Paid", "schema": "registry", "keys": ["id"]}
    events.declare(sink=sink, tables={"paid": paid}, otherwise="ignore")
    events.send("Paid", fields, {"id": 1, "how": 0.5, "lines": [2, 1]})
    events.send("Paid", fields, {"id": 2, "how": "cash", "lines": []})
    events.send("Paid", fields, {"id": 3, "how": None, "lines": []})
    events.world.set_environment(monkeypatch)

    first, again = (oncelake("discover", "events").output for _ in range(2))
    report = events.run()["paid"]

    assert "`how` VARIANT is JSON" in first
    assert ("`lines` VARIANT is JSON" in first) == (sink == "postgres")
    assert "is JSON" not in again
    assert report.total("inserted") == 3
    rows = events.rows("paid")
    assert [row["how"] for row in rows] == ['{"double":0.5e0}', '{"string":"cash"}', None]
    assert rows[0]["lines"] == ("[2,1]" if sink == "postgres" else [2, 1])
    assert events.differences() == []
