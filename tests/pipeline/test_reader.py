"""A run that librdkafka reads for, without Spark: what it commits, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.operations.test_routes import MIXED, Shop
from tests.support.odd_producer import send_with_header
from tests.support.proof import find_problems
from tests.support.world import World, row, transactional
from tests.trials.failpoints import PlannedCrash
from tests.trials.kills import run_to_its_end

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Without Spark."""
    return settings.model_copy(update={"reader": "librdkafka"})


def event(op: str, before: Any, after: Any) -> bytes:
    """A change of a database, as its connector writes it."""
    return json.dumps({"before": before, "after": after, "op": op}).encode()


def test_every_committed_record_is_applied_once(world: World) -> None:
    """In batches of a few offsets, with markers, what was aborted, bad records and deletes."""
    world.declare(max_offsets_per_trigger=7)
    producer = transactional(world)
    for at in range(6):
        producer.begin_transaction()
        value = json.dumps(row(at % 4, f"v{at}", at=at)).encode()
        producer.produce(world.topic, value=value, partition=at % 2)
        if at % 3:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    world.send(*(row(n, "plain") for n in range(10, 30)), b"garbage")
    world.send(None, id=12)

    report = world.run()

    assert report.lag == 0
    assert len(report.batches) > 2
    assert 12 not in {each["id"] for each in world.rows()}
    assert find_problems(world) == ()
    assert world.run().batches == ()


@pytest.mark.parametrize(
    "declared",
    [
        {"mode": "scd2", "sink": "iceberg", "sequence_by": ["at"]},
        {"deletes": "soft"},
        {"mode": "append", "keys": [], "tombstones": "quarantine", "sink": "iceberg"},
    ],
    ids=str,
)
def test_modes_and_sinks_are_as_with_spark(world: World, declared: dict[str, Any]) -> None:
    """Also where what waits is sent in, and what was read is read again."""
    strict = "id INT NOT NULL, name STRING NOT NULL, at INT"
    world.declare(schema=strict, schema_change="evolve", **declared)
    world.send(row(1, "a", at=1), row(2, None, at=1), row(1, "b", at=3))
    world.send(None, id=1)
    world.run()
    world.declare(schema=strict.replace("STRING NOT NULL", "STRING") + ", more INT")
    world.run()

    assert world.redrive().redriven
    world.replay()

    assert 2 in {each["id"] for each in world.rows()}
    assert find_problems(world) == ()


def test_keys_that_move_and_columns_that_are_left_out(world: World) -> None:
    """Changes of a database keep what they leave out, under another key, too."""
    left_out = "__debezium_unavailable_value"
    world.declare(format={"type": "debezium"}, max_offsets_per_trigger=2)
    world.send(event("c", None, row(1, "large", 1)), event("c", None, row(2, "other", 1)))
    world.send(event("u", row(1, None, None), row(1, left_out, 2)))
    world.send(event("u", row(1, "large", 2), row(5, "large", 3)))
    world.send(event("d", row(2, "other", 1), None))
    world.run()

    assert world.rows() == [row(5, "large", 3)]
    assert find_problems(world) == ()


def test_siblings_read_each_batch_once(world: World) -> None:
    """Streams of one file get one table of each batch."""
    shop = Shop(world, otherwise="ignore")
    world.send(*MIXED)
    world.send(*MIXED, partition=1)

    reports = shop.run_together()

    assert {getattr(each, "is_balanced", each) for each in reports.values()} == {True}
    assert shop.problems() == []


def test_columns_follow_the_schema_in_the_records(world: World) -> None:
    """However the JSON is written; what was read before stays as it is."""

    def record(id: int, *names: str, spaced: bool = False) -> bytes:
        fields = [{"field": name, "type": "int32", "optional": name != "id"} for name in names]
        after = dict.fromkeys(names, id)
        value = {
            "schema": {"type": "struct", "fields": [{"field": "after", "fields": fields}]},
            "payload": {"op": "c", "after": after},
        }
        return json.dumps(value, separators=None if spaced else (",", ":")).encode()

    world.send(record(1, "id"))
    world.settings.streams.mkdir(exist_ok=True)
    file = world.settings.streams / f"{world.topic}.yaml"
    file.write_text(
        f"topic: {world.topic}\nkeys: id\nschema: embedded\nschema_change: evolve\n"
        "format: {type: debezium, schemas: true}\n"
    )
    oncelake(world, "discover", world.topic)
    oncelake(world, "run", world.topic)
    world.send(record(2, "id", "more"))
    oncelake(world, "run", world.topic)
    world.send(record(3, "id", "more", "spaced", spaced=True))
    oncelake(world, "run", world.topic)

    names = ("id", "more", "spaced")
    parts = world.paths.table.scan(names)
    rows = sorted(tuple(each[n] for n in names) for part in parts for each in part.to_pylist())
    assert rows == [(1, None, None), (2, 2, None), (3, 3, 3)]
    oncelake(world, "verify", world.topic)


def oncelake(world: World, *words: str) -> None:
    """Run a command on a machine without Java."""
    folders = [each for each in os.get_exec_path() if not (Path(each) / "java").exists()]
    environment = {**world.environment(), "PATH": os.pathsep.join(folders)}
    environment.pop("JAVA_HOME", None)
    command = replace(world, operation=words[:1]).command[:3]
    done = subprocess.run(
        [*command, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("place", [Failpoint.PREPARED, Failpoint.COMMITTED])
def test_a_run_that_is_killed_is_run_again(world: World, place: Failpoint, tmp_path: Path) -> None:
    """It loses and doubles nothing."""
    world.declare(max_offsets_per_trigger=5)
    world.write_declaration()
    world.settings.state.mkdir(exist_ok=True)
    world.send(*(row(n % 7, f"v{n}") for n in range(20)))
    crash = PlannedCrash(place=place, nth=2, way="kill_group", visits=str(tmp_path / "visits"))

    assert run_to_its_end(world, crash) == ("killed", ())
    world.run()

    assert len(world.rows()) == 7
    assert find_problems(world) == ()


def test_a_header_that_the_client_cannot_read_is_no_loss(world: World) -> None:
    """Nothing is committed without it."""
    world.send(row(1, "a"))
    value = json.dumps(row(2, "b")).encode()
    send_with_header(world.settings.bootstrap_servers(), world.topic, value, b"\xff")

    with pytest.raises(InvalidSpecError, match="offset 1: the name of a header is not UTF-8"):
        world.run()

    assert world.log.last_seq(world.topic) == 0


COUNTED = {
    "mode": "aggregate",
    "aggregates": {"names": "approx_distinct(name)"},
    "schema": "id INT NOT NULL, name STRING",
}


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"where": "id > 1"}, "Spark evaluates `where`"),
        ({"apply_as_deletes": "name = 'x'"}, "Spark evaluates `apply_as_deletes`"),
        (COUNTED, "names is a sketch of Spark's"),
    ],
    ids=["where", "apply_as_deletes", "approx_distinct"],
)
def test_what_spark_evaluates_is_refused(world: World, declared: dict[str, Any], why: str) -> None:
    """Before anything is made; the message says which setting helps."""
    world.declare(**declared)
    world.send(row(1, "a"))

    with pytest.raises(InvalidSpecError, match=why) as refused:
        world.run()

    assert "ONCELAKE_READER=spark" in str(refused.value)
    assert not world.log.exists
