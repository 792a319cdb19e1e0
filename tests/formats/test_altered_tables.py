"""A database whose tables are altered while Debezium follows it: one file of six lines keeps up."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest
from confluent_kafka.admin import NewTopic
from pydantic import SecretStr
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.declaration.files.loader import load_streams, read_outlines
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.discover import discover, waiting_topics
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.verify.verify import verify
from tests.formats.test_capture import exactly, typed
from tests.support.long import twins
from tests.support.world import ROOT, World, wait_until

RECORDING = ROOT / "tests" / "captures" / "altered"
FILE = """\
topic_pattern: '{prefix}\\.public\\.(.*)'
table_per_topic: true
format: {{type: debezium, schemas: true}}
schema: embedded
schema_change: evolve
sink: {sink}
"""
# A key's bytes hold its schema, and choose its partition: a wider key moves to another.
IN_ORDER = """\
format: {type: debezium, schemas: true, columns: {lsn: source.lsn}}
columns: {lsn: BIGINT NOT NULL}
sequence_by: lsn
"""
# Emptied, which a person must apply.
EMPTIED = "visits"


def recorded(name: str) -> list[dict[str, Any]]:
    """Read one file of the recording."""
    lines = gzip.decompress((RECORDING / f"{name}.jsonl.gz").read_bytes()).splitlines()
    return [json.loads(line) for line in lines]


def phases() -> Iterator[list[dict[str, Any]]]:
    """Yield the events of each phase, in the order of the database's log."""
    events: list[dict[str, Any]] = []
    for event in recorded("with_schemas"):
        if event["table"] == "phase":
            yield events
            events = []
        else:
            events.append(event)
    yield events


class Shop:
    """The topics of a database, a file that declares them all, and a lake."""

    def __init__(self, world: World, sink: str, partitions: int) -> None:
        """Write the file."""
        self.world, self.partitions = world, partitions
        self.file = world.settings.streams / "shop.yaml"
        self.file.parent.mkdir(exist_ok=True)
        text = FILE.format(prefix=world.topic, sink=sink)
        if partitions > 1:
            text = re.sub("^format:.*\n", IN_ORDER, text, flags=re.MULTILINE)
        self.file.write_text(text)

    def deliver(self, events: list[dict[str, Any]]) -> None:
        """Produce events, each key always to the same partition."""
        world = self.world
        topics = {f"{world.topic}.public.{event['table']}" for event in events}
        missing = topics - {*world.admin.list_topics(timeout=30).topics}
        if missing:
            made = world.admin.create_topics(
                [NewTopic(each, self.partitions, 1) for each in missing]
            )
            for created in made.values():
                created.result(30)
        wait_until(
            lambda: topics <= {*world.admin.list_topics(timeout=30).topics}, "no topic appeared"
        )
        for event in events:
            partition = crc32((event["key"] or "").encode()) % self.partitions
            topic = f"{world.topic}.public.{event['table']}"
            world.producer.produce(topic, event["value"], event["key"], partition)
        assert world.producer.flush(30) == 0

    def unknown(self) -> tuple[str, ...]:
        """Return the topics that wait to be written down."""
        (outline,) = read_outlines(self.file)
        return waiting_topics(outline, Kafka(self.world.settings).names())

    def discover(self) -> None:
        """Write down what topics there are, and their columns."""
        (outline,) = read_outlines(self.file)
        discovery = discover(outline, self.world.settings)
        assert discovery.unknown == {}
        discovery.write()

    def streams(self) -> list[StreamSpec]:
        """Return what is declared now."""
        return [each.require_spec() for each in load_streams(self.world.settings.streams)]

    def run(self) -> None:
        """Run every stream."""
        world = self.world
        for spec in self.streams():
            report = Run(
                spec=spec, settings=world.settings, spark=lambda _: world.spark, run_id="r"
            ).execute()
            assert report.is_balanced

    def paths(self, spec: StreamSpec) -> StreamPaths:
        """Return where the tables of a stream lie."""
        return StreamPaths.of(spec.name, self.world.settings, spec.sink)

    def rows(self, spec: StreamSpec) -> list[dict[str, Any]]:
        """Read the user's columns of a table."""
        return [
            row for each in self.paths(spec).table.scan([*spec.types]) for row in each.to_pylist()
        ]


def by_key(rows: list[dict[str, Any]], spec: StreamSpec) -> list[Any]:
    """Return rows in the order of their keys, as values that equal only the same."""
    return sorted(map(exactly, rows), key=lambda row: str([row[key] for key in spec.keys]))


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("engine", "sink", "partitions"),
    [
        pytest.param("local", "delta", 1, id="delta"),
        *twins(
            pytest.param("spark", "delta", 2, id="Spark"),
            pytest.param("local", "iceberg", 2, id="iceberg"),
            pytest.param("local", "postgres", 2, id="postgres"),
        ),
    ],
)
def test_tables_are_altered_as_those_of_the_database(
    request: pytest.FixtureRequest, world: World, engine: str, sink: str, partitions: int
) -> None:
    """Columns more, wider numbers, keys among them, nulls, other names: every cell."""
    # Spark reads in the other engine's twin.
    reader = "spark" if engine == "spark" else "librdkafka"
    world.settings = world.settings.model_copy(update={"merge_engine": engine, "reader": reader})
    if sink == "postgres":
        address = SecretStr(request.getfixturevalue("postgres_address"))
        world.settings = world.settings.model_copy(update={"postgres": address})
    shop = Shop(world, sink, partitions)
    for events in phases():
        shop.deliver(events)
        if {*shop.unknown()}:
            shop.discover()
        shop.run()

    streams = shop.streams()

    assert len(streams) == 12
    for spec in streams:
        table = spec.name.removeprefix("shop_")
        expected = [
            {n: text and typed(spec.types[n], text) for n, text in row.items() if n in spec.types}
            for row in recorded(table)
        ]
        names = [*expected[0]]
        # A list is none of PostgreSQL's types here: discover says so.
        lacking = {*recorded(table)[0]} - {*names}
        assert lacking == ({"aliases"} if (sink, table) == ("postgres", "tags") else set())
        found = [{name: row[name] for name in names} for row in shop.rows(spec)]
        if (sink, table) == ("iceberg", "payments"):
            # Iceberg has no more places behind the point: what needs them waits, and is counted.
            waiting = open_rows(shop.paths(spec).quarantine).to_table()
            assert {*waiting["reason"].to_pylist()} == {"type_mismatch"}
        elif table != EMPTIED:
            assert by_key(found, spec) == by_key(expected, spec), table
        verdict = verify(spec, world.settings)
        assert verdict.differences == (), table
        assert verdict.obstacles == (), table
    types = {spec.name.removeprefix("shop_"): spec.types for spec in streams}
    assert str(types["orders"]["id"]) == "BIGINT"
    assert str(types["orders"]["total"]) == "DECIMAL(14, 2)"
    assert [*types["products"]][:4] == ["id", "label", "price", "title"]
    assert "note" in types["stock"]


@pytest.mark.kafka
def test_one_file_is_proposed_for_a_family_of_topics(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What init writes declares each table of the database, with its own columns and keys."""
    shop = Shop(world, "delta", 1)
    shop.file.unlink()
    shop.deliver(next(phases()))
    world.set_environment(monkeypatch)
    pattern = rf"{world.topic}\.public\.(.*)"

    command = ["init", "--pattern", pattern, "--stream", "shop"]
    printed = json.loads(CliRunner().invoke(app, [*command, "--dry-run", "--json"]).stdout)
    answer = CliRunner().invoke(app, command)

    assert answer.exit_code == 0, answer.output
    assert (printed["written"], printed["discovered"]) == (False, None)
    assert len(printed["topics"]) == 11
    assert printed["yaml"] in answer.stdout
    specs = {each.name: each.require_spec() for each in load_streams(world.settings.streams)}
    assert len(specs) == 11
    assert specs["shop_items"].keys == ("order_id", "line")
    assert str(specs["shop_orders"].types["total"]) == "DECIMAL(10, 2)"
    assert all(spec.follows_schema for spec in specs.values())
    without = CliRunner().invoke(app, ["init", "--pattern", "nothing.*", "--stream", "none"])
    assert without.exit_code == 2
    assert "no topic that may be seen matches" in without.output
