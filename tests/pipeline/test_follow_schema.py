"""Columns that a schema gives which comes with the records: found, followed, and proven."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.declaration.files.loader import find_stream, load_streams, read_outlines
from oncelake.ingestion.declaration.files.topics import KEPT_BY
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError, SchemaChangedError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.discover import (
    Discovery,
    NewTopics,
    discover,
    waiting_topics,
)
from oncelake.ingestion.operations.proof.certify import certify, compare_with
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.verify.verify import verify
from tests.cli.shell import oncelake
from tests.support.long import twins
from tests.support.registry import Subject
from tests.support.world import World

FIRST = {"id": "int", "name": ["null", "string"], "price": ["null", "float"]}
LATER = {**FIRST, "id": "long", "price": ["null", "double"], "note": ["null", "string"]}


def avro(fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    """Return a record type of Avro."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": n, "type": t} for n, t in fields.items()],
    }


class Written:
    """A declaration in a file, the topic that it reads, and the registry's subject."""

    def __init__(self, world: World, subject: Subject) -> None:
        """Take the topic and the subject."""
        self.world, self.subject = world, subject
        self.path = world.settings.streams / "orders.yaml"
        self.path.parent.mkdir(exist_ok=True)

    def declare(self, **fields: Any) -> None:
        """Write the file."""
        declared = {"topic": self.world.topic, "format": "avro", "schema": "registry"} | fields
        text = "".join(f"{name}: {json.dumps(each)}\n" for name, each in declared.items())
        self.path.write_text(text)

    def discover(self) -> Discovery:
        """Write down what Kafka and the registry say."""
        (outline,) = read_outlines(self.path)
        found = discover(outline, self.world.settings)
        found.write()
        return found

    def spec(self, name: str = "orders") -> StreamSpec:
        """Return the declaration as it is read now."""
        return find_stream(self.world.settings.streams, name)

    def run(self, spec: StreamSpec | None = None) -> Any:
        """Run the stream once."""
        world = self.world
        return Run(
            spec=spec or self.spec(),
            settings=world.settings,
            spark=lambda _: world.spark,
            run_id="r",
        ).execute()

    def send(self, fields: dict[str, Any], *records: dict[str, Any]) -> None:
        """Write records by a schema."""
        for raw in self.subject.avro(avro(fields), *records):
            self.world.send(raw)

    @property
    def paths(self) -> StreamPaths:
        """Where the stream's tables lie."""
        return StreamPaths.of("orders", self.world.settings, self.spec().sink)

    def rows(self) -> list[dict[str, Any]]:
        """Read the user's columns of the table, by key."""
        names = [column.name for column in self.spec().columns]
        found = [row for each in self.paths.table.scan(names) for row in each.to_pylist()]
        return sorted(found, key=lambda row: row["id"])

    def differences(self) -> tuple[Any, ...]:
        """Return what the proof finds wrong; nothing may be left out."""
        verdict = verify(self.spec(), self.world.settings)
        assert verdict.limits == ()
        return tuple(verdict.differences)


@pytest.fixture
def written(world: World, registry_address: str) -> Iterator[Written]:
    """A stream whose columns a registry has."""
    world.settings = world.settings.model_copy(update={"schema_registry": registry_address})
    with Subject(registry_address, f"{world.topic}-value") as subject:
        yield Written(world, subject)


def test_a_certificate_has_the_columns_that_the_table_got(written: Written, tmp_path: Path) -> None:
    """Also on a host whose file does not know them yet."""
    written.declare(keys="id", schema_change="evolve")
    written.send(FIRST, {"id": 1, "name": "a", "price": 1.5})
    written.discover()
    written.run()
    earlier, settings = written.spec(), written.world.settings
    written.send(LATER, {"id": 2, "name": "b", "price": 2.5, "note": "n"})
    written.run()
    file = tmp_path / "c.json"

    certify(earlier, settings, verify(earlier, settings), file)

    columns = [each.split("`")[1] for each in json.loads(file.read_text())["columns"]]
    assert columns == ["id", "name", "price", "note"]
    assert compare_with(file, settings, stream=earlier, table=None).holds
    DeltaTable(written.paths.data.path).update({"note": "'x'"}, predicate="id = 2")
    assert not compare_with(file, settings, stream=earlier, table=None).holds


@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_a_registrys_schema_gives_the_columns_and_a_newer_one_more(
    written: Written, engine: str
) -> None:
    """A wider type and a new field are there before the batch that has them; old rows stay."""
    world = written.world
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    written.declare(keys=["id"], schema_change="evolve")
    written.send(FIRST, {"id": 1, "name": "a", "price": 0.5})
    with pytest.raises(InvalidSpecError, match="Next: oncelake discover orders"):
        written.spec()
    written.discover()
    first = written.spec()
    written.run()
    written.send(LATER, {"id": 2**40, "name": None, "price": 0.1, "note": "new"})
    written.send(FIRST, {"id": 3, "name": "c", "price": 1.5})

    report = written.run(first)

    assert first.ddl == "`id` INT NOT NULL, `name` STRING, `price` FLOAT"
    assert written.spec().ddl == (
        "`id` BIGINT NOT NULL, `name` STRING, `price` DOUBLE, `note` STRING"
    )
    assert report.total("quarantined") == 0
    assert not any("checkpoint" in notice for notice in report.notices)
    assert written.rows() == [
        {"id": 1, "name": "a", "price": 0.5, "note": None},
        {"id": 3, "name": "c", "price": 1.5, "note": None},
        {"id": 2**40, "name": None, "price": 0.1, "note": "new"},
    ]
    assert [each.kind for each in Ledger(written.paths.ledger).rows()] == [
        *("ingest", "schema", "ingest")
    ]
    assert written.differences() == ()


def test_what_a_schema_says_is_followed_as_far_as_declared(written: Written) -> None:
    """Columns and types can be kept out singly; what is kept out is counted or put aside."""
    written.declare(
        keys=["id"], on_new_field="evolve", on_wider_type="quarantine", exclude=["price"],
        columns={"name": "VARCHAR(3)"},
    )  # fmt: skip
    written.send(FIRST, {"id": 1, "name": "abc", "price": 0.5})
    written.discover()
    written.run()
    written.send(LATER, {"id": 2**40, "name": "abc", "price": 0.1, "note": "new"})
    written.send(LATER, {"id": 2, "name": "abcd", "price": 0.1, "note": "new"})
    written.send(LATER, {"id": 3, "name": "abc", "price": 0.1, "note": "new"})

    report = written.run()

    assert written.spec().ddl == "`id` INT NOT NULL, `name` VARCHAR(3), `note` STRING"
    assert report.total("quarantined") == 2
    assert report.total("inserted") == 1
    assert written.differences() == ()


@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_a_new_field_without_a_type_is_a_variant(written: Written, engine: str) -> None:
    """A union of unlike types and a record in itself, added to a table, and proven."""
    world = written.world
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    written.declare(keys=["id"], schema_change="evolve")
    written.send(FIRST, {"id": 1, "name": "a", "price": 0.5})
    written.discover()
    written.run()
    newer = {**FIRST, "either": ["null", "int", "string"], "up": ["null", "Order"]}
    first = {"id": 2, "name": "b", "price": None, "either": "x", "up": None}
    written.send(newer, first, {**first, "id": 3, "either": 7, "up": first})

    written.run()

    added = [(each.name, str(each.type)) for each in written.spec().columns[3:]]
    assert added == [("either", "VARIANT"), ("up", "VARIANT")]
    assert [row["id"] for row in written.rows()] == [1, 2, 3]
    assert [row["either"] is None for row in written.rows()] == [True, False, False]
    assert written.differences() == ()


def test_a_frozen_schema_stays(written: Written) -> None:
    """With a version, a newer schema changes nothing, whatever `schema_change` says."""
    written.declare(keys=["id"], schema={"registry": {"version": 1}}, schema_change="evolve")
    written.send(FIRST, {"id": 1, "name": "a", "price": 0.5})
    written.discover()
    before = written.spec().ddl
    written.send(LATER, {"id": 2, "name": "b", "price": 0.1, "note": "new"})

    report = written.run()

    assert written.discover().changed == ()
    assert written.spec().ddl == before
    assert report.total("inserted") == 2 - report.total("quarantined")
    assert written.differences() == ()


def test_a_host_with_an_older_file_goes_by_the_table(written: Written) -> None:
    """What another host has found is in the table; a run with nothing to read starts no Spark."""
    written.declare(keys=["id"], schema_change="evolve")
    written.send(FIRST, {"id": 1, "name": "a", "price": 0.5})
    written.discover()
    old = written.path.with_name("orders.topics.yaml").read_text()
    written.send(LATER, {"id": 2, "name": "b", "price": 0.1, "note": "new"})
    written.run()
    written.path.with_name("orders.topics.yaml").write_text(old)
    written.send(FIRST, {"id": 3, "name": "c", "price": 0.5})
    assert "note" not in written.spec().types

    report = written.run()

    assert [each["note"] for each in written.rows()] == [None, "new", None]
    assert "note" in written.spec().types
    assert report.notices == ()
    assert written.differences() == ()


def test_a_run_writes_no_column_into_copies_that_another_keeps(written: Written) -> None:
    """The table has it, as on a host with an older file; who keeps the topics finds it, too."""
    written.declare(keys=["id"], schema_change="evolve")
    written.send(FIRST, {"id": 1, "name": "a", "price": 0.5})
    written.discover()
    written.path.with_name(KEPT_BY).write_text("dg utils refresh-defs-state")
    before = written.path.with_name("orders.topics.yaml").read_bytes()
    written.send(LATER, {"id": 2, "name": "b", "price": 0.1, "note": "new"})

    written.run()

    notes = [row["note"] for each in written.paths.table.scan(["note"]) for row in each.to_pylist()]
    assert {*notes} == {None, "new"}
    assert written.path.with_name("orders.topics.yaml").read_bytes() == before


def test_every_topic_of_a_pattern_is_a_table(written: Written) -> None:
    """New topics wait until they are written down; the name is made of the pattern's groups."""
    world = written.world
    topic = world.add_topic(".public.users")
    written.declare(
        topic_pattern=rf"{world.topic}\.(\w+)\.(.*)", table="{1}_{2}", table_per_topic=True,
        schema="id BIGINT NOT NULL, name STRING", keys=["id"], format="json",
    )  # fmt: skip
    text = written.path.read_text()
    written.path.write_text(text.replace(f'topic: "{world.topic}"\n', ""))
    (outline,) = read_outlines(written.path)
    assert waiting_topics(outline, Kafka(world.settings).names()) == (topic,)

    found = written.discover()

    assert found.added == (topic,)
    assert [each.name for each in load_streams(world.settings.streams)] == ["public_users"]
    assert waiting_topics(outline, Kafka(world.settings).names()) == ()


@pytest.mark.parametrize("who", ["manual", "auto"])
def test_a_new_topic_is_named_or_written_down(written: Written, who: str) -> None:
    """By whoever looks, at most once a minute; a broken file beside it keeps nobody from it."""
    world = written.world
    topic = world.add_topic(".public.users")
    written.declare(
        topic_pattern=rf"{world.topic}\.public\.(.*)", table_per_topic=True, discover=who,
        schema="id BIGINT NOT NULL", keys=["id"], format="json",
    )  # fmt: skip
    written.path.write_text(written.path.read_text().replace(f'topic: "{world.topic}"\n', ""))
    written.path.with_name("broken.yaml").write_text("schema: registry\nnope: 1\n")
    folder, watch = world.settings.streams, NewTopics(world.settings)

    waiting = watch.look(load_streams(folder))

    sound = [each.name for each in load_streams(folder) if each.spec is not None]
    assert sound == (["orders_users"] if who == "auto" else [])
    assert waiting == (
        ()
        if who == "auto"
        else (f"orders.yaml: no stream yet for {topic}. Next: oncelake discover orders",)
    )
    assert watch.look(load_streams(folder)) == ()


NESTED = '{"fields": [{"field": "after", "fields": ' + '[{"fields": ' * 200 + "1" + "}]" * 200


@pytest.mark.kafka
@pytest.mark.parametrize(
    "schema",
    [
        *twins("1"),
        *twins('{"fields": 1}'),
        '{"fields": [1, null, {}]}',
        '{"fields": [{"field": "after", "fields": [{"field": 1, "type": {}}]}]}',
        '{"fields": [{"field": "after", "fields": '
        + '[{"fields": ' * 200
        + "1"
        + "}]" * 200
        + "}]}",
    ],
)
def test_no_schema_in_a_record_stops_its_stream(written: Written, schema: str) -> None:
    """The record goes to quarantine, or is one without columns; the others are applied."""
    world = written.world
    good = {
        "schema": {"fields": [{"field": "after", "fields": [{"field": "id", "type": "int32"}]}]},
        "payload": {"op": "c", "after": {"id": 1}},
    }
    raw = json.dumps(good, separators=(",", ":")).encode()
    world.send(raw)
    written.declare(
        format={"type": "debezium", "schemas": True}, schema="embedded", keys=["id"],
        schema_change="evolve", quarantine_rate={"stop_above": 1},
    )  # fmt: skip
    written.discover()
    world.send(f'{{"schema":{schema},"payload":{{"op":"c","after":{{"id":2}}}}}}'.encode())

    report = written.run()

    assert report.is_balanced
    assert 1 in {each["id"] for each in written.rows()}
    assert written.differences() == ()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"price": "DECIMAL(8, 2)"}, "price is FLOAT in the table, declared DECIMAL"),
        ({"more": "INT NOT NULL"}, "more INT is new, and NOT NULL"),
    ],
    ids=["type", "not null"],
)
def test_a_column_that_a_person_wrote_is_refused_where_the_table_cannot_get_it(
    written: Written, column: dict[str, str], message: str
) -> None:
    """It is no schema's, so the run does not go on without it."""
    written.declare(keys=["id"], schema_change="evolve")
    written.send(FIRST, {"id": 1, "name": "a", "price": 0.5})
    written.discover()
    written.run()
    written.send(FIRST, {"id": 2, "name": "b", "price": 0.5})
    written.declare(keys=["id"], schema_change="evolve", columns=column)

    with pytest.raises(SchemaChangedError, match=message):
        written.run()

    written.declare(keys=["id"], schema_change="evolve")
    assert [row["id"] for row in written.rows()] == [1]


@pytest.mark.parametrize("properties", [[1], {"id": {"anyOf": 5}}], ids=["list", "number"])
def test_what_a_registry_took_and_is_no_schema_stops_no_discovery(
    written: Written, properties: Any
) -> None:
    """The topic has no columns, and the reason names the schema."""
    written.declare(format="json_schema", keys=["id"])
    schema = {"title": "Order", "type": "object", "properties": properties}
    id_ = written.subject.register(json.dumps(schema), "JSON")

    (problem,) = written.discover().unknown.values()

    assert problem.startswith(f"subject {written.subject.name}, schema {id_}: unusable_schema: ")


def test_keys_of_a_newer_schema_are_told_of(
    written: Written, registry_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the columns are the same."""
    written.declare(keys="from_key")
    written.send(FIRST, {"id": 1, "name": "a", "price": 0.5})
    written.world.set_environment(monkeypatch)
    with Subject(registry_address, f"{written.world.topic}-key") as of_keys:
        of_keys.register(json.dumps(avro({"id": "int"})))
        first = [written.discover().changed for _ in range(2)]
        of_keys.register(json.dumps(avro({"id": "int", "name": ["null", "string"]})))

        shown = oncelake("discover", "orders").output

    assert first == [(), ()]
    assert f"{written.world.topic}: given other keys: id, name" in shown


@pytest.mark.kafka
@pytest.mark.parametrize("is_first", [True, False], ids=["schema first", "payload first"])
def test_a_schema_in_the_record_is_followed_however_it_is_written(
    written: Written, is_first: bool
) -> None:
    """With blanks, and behind the payload."""

    def change(id_: int, **more: str) -> bytes:
        names = {"id": "int32", **dict.fromkeys(more, "string")}
        row = {"field": "after", "fields": [{"field": n, "type": t} for n, t in names.items()]}
        parts = {"schema": {"fields": [row]}, "payload": {"op": "c", "after": {"id": id_, **more}}}
        return json.dumps({name: parts[name] for name in sorted(parts, reverse=is_first)}).encode()

    format_ = {"type": "debezium", "schemas": True}
    written.declare(format=format_, schema="embedded", keys=["id"], schema_change="evolve")
    written.world.send(change(1))
    written.discover()
    written.world.send(change(2, note="new"))

    written.run()

    assert written.rows() == [{"id": 1, "note": None}, {"id": 2, "note": "new"}]
    assert written.differences() == ()
