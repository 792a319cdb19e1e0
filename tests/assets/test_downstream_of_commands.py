"""What a command changes in a table without a new record of Kafka's starts what reads the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from oncelake.assets.assets import ingest_asset
from oncelake.assets.conditions import when_new_and_green
from oncelake.assets.sensors import lag_sensor
from oncelake.ingestion.declaration.files.loader import DeclaredStream, load_streams
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.support.long import twins
from tests.support.world import COLUMNS, World, row

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning"),
    # Dagster's own evaluation uses what it calls a beta.
    pytest.mark.filterwarnings("ignore:Parameter `include_sources`"),
]

STRICT = COLUMNS.replace("name STRING", "name STRING NOT NULL")


class Team:
    """A Dagster with the sensor of a real stream, and an asset behind that."""

    def __init__(self, world: World, instance: dg.DagsterInstance) -> None:
        self.world, self.instance = world, instance
        self.cursor: Any = None
        self.declare()
        # It has seen that nothing has run yet.
        self.started()

    def declare(self, **fields: Any) -> None:
        """Change the stream's file."""
        self.world.declare(**fields)
        self.world.write_declaration()

    def declare_routes(self, tables: dict[str, Any]) -> None:
        """Let the stream's file fill several tables of its topic."""
        file = {"topic": self.world.topic, "route_by": "type", "schema": COLUMNS, "keys": ["id"]}
        path = self.world.settings.streams / f"{self.world.name}.yaml"
        path.write_text(json.dumps({**file, "tables": tables}))

    @property
    def streams(self) -> tuple[DeclaredStream, ...]:
        """The streams that are declared."""
        return load_streams(self.world.settings.streams)

    def serve(self) -> list[bool]:
        """Let the sensor look until it asks for no run; tell of each whether it succeeded."""
        ended: list[bool] = []
        while asked := self._asked_for():
            ended += [self.execute(*asked)]
            assert len(ended) < 5, "the sensor asks for runs for ever"
        return ended

    def execute(self, *streams: str, is_of_checks: bool = False) -> bool:
        """Materialize streams, or execute their checks alone; tell whether that succeeded."""
        chosen = [each for each in self.streams if each.name in streams]
        assets = [ingest_asset(each, siblings=self.streams) for each in chosen]
        of_all = dg.AssetSelection.assets(*streams)
        done = dg.materialize(
            assets,
            instance=self.instance,
            resources=self._resources,
            raise_on_error=False,
            selection=dg.AssetSelection.checks_for_assets(*streams) if is_of_checks else of_all,
        )
        return done.success

    def started(self) -> bool:
        """Evaluate the conditions once; tell whether the asset behind the stream is started."""
        return self.world.name in self.started_behind()

    def started_behind(self) -> set[str]:
        """Evaluate the conditions once; return the streams behind which an asset is started."""
        behind = {each.name: asset_behind(each.name) for each in self.streams}
        assets = [*map(ingest_asset, self.streams), *behind.values()]
        defs = dg.Definitions(assets=assets, resources=self._resources)
        ticked = dg.evaluate_automation_conditions(defs, self.instance, cursor=self.cursor)
        self.cursor = ticked.cursor
        return {name for name, each in behind.items() if ticked.get_num_requested(each.key)}

    def _asked_for(self) -> list[str]:
        given = {name: each for name, each in self._resources.items() if "spark" not in name}
        with dg.build_sensor_context(instance=self.instance, resources=given) as context:
            found = lag_sensor(self.streams)(context)
        assert isinstance(found, dg.SensorResult), found
        keys = (key for each in found.run_requests or () for key in each.asset_selection or ())
        return [key.to_user_string() for key in keys]

    @property
    def _resources(self) -> dict[str, Any]:
        lake = LakeResource()
        spark = SparkResource(lake=lake)
        kafka = KafkaResource()
        return {"oncelake_kafka": kafka, "oncelake_lake": lake, "oncelake_spark": spark}


def asset_behind(stream: str) -> dg.AssetsDefinition:
    """Return an asset that reads the stream's table."""

    @dg.asset(name=f"behind_{stream}", deps=[stream], automation_condition=when_new_and_green())
    def behind() -> None: ...

    return behind


@pytest.fixture
def team(world: World, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Team:
    """A stream that any share of bad records is declared to be fine in."""
    world.declare(schema=STRICT, quarantine_rate={"warn_above": 1, "fail_above": 1})
    world.set_environment(monkeypatch)
    return Team(world, instance)


def redrive_all(team: Team) -> None:
    """Send in what waits, once the file takes it."""
    team.declare(schema=COLUMNS, schema_change="evolve")
    assert team.world.redrive().redriven == 1


def erase_a_key(team: Team) -> None:
    """Erase a row."""
    settings, key = team.world.settings, json.dumps({"id": 1})
    erase(team.world.spec, settings, key=key, reason="a request", run_id="shell")


def rewind_a_batch(team: Team) -> None:
    """Set the table back; the records behind it are read again."""
    rewind(team.world.spec, team.world.settings, to="seq:1", reason="a test", run_id="shell")


def replay_all(team: Team) -> None:
    """Read again what was read."""
    team.world.replay()


@pytest.mark.parametrize(
    ("command", "ids"),
    [(redrive_all, [1, 2, 3]), (rewind_a_batch, [1, 3]), *twins((erase_a_key, [3]))],
    ids=["redrive", "rewind", *twins("erase")],
)
def test_what_a_command_commits_is_told_by_a_run_and_starts_what_reads_it_once(
    team: Team, command: Callable[[Team], None], ids: list[int]
) -> None:
    """The sensor asks for one run, though the topic is quiet, and for no other."""
    team.world.send(row(1, "a"), row(2, None))
    assert team.serve() == [True]
    assert [team.started() for _ in range(2)] == [True, False]
    team.world.send(row(3, "c"))
    assert team.serve() == [True]
    assert [team.started() for _ in range(2)] == [True, False]

    command(team)

    assert not team.started()
    assert team.serve() == [True]
    assert [team.started() for _ in range(3)] == [True, False, False]
    assert team.serve() == []
    assert not team.started()
    assert [each["id"] for each in team.world.rows()] == ids


def test_rows_behind_a_red_check_start_what_reads_them_when_a_command_has_turned_it_green(
    team: Team,
) -> None:
    """Nobody sends a record, and nobody starts a run."""
    team.declare(quarantine_rate={"fail_above": 0.2})
    team.world.send(row(1, "a"), row(2, None))
    assert team.serve() == [False]
    while_red = [team.started() for _ in range(2)]

    redrive_all(team)
    assert team.serve() == [True]

    assert while_red == [False, False]
    assert [team.started() for _ in range(3)] == [True, False, False]
    assert team.serve() == []


KINDS: dict[str, dict[str, Any]] = {
    "delta": {},
    "soft": {"deletes": "soft"},
    "history": {"mode": "scd2", "sequence_by": ["_timestamp"]},
    "iceberg": {"sink": "iceberg"},
    "postgres": {"sink": "postgres"},
    "kafka": {"sink": "kafka"},
}


@pytest.mark.parametrize("kind", ["soft", "kafka", *twins(*(KINDS.keys() - {"soft", "kafka"}))])
def test_what_reads_a_table_is_started_by_its_rows_whatever_keeps_them(
    team: Team, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a new row and by a delete, once each; not by a record that is put aside, nor by a look."""
    if kind == "postgres":
        monkeypatch.setenv("ONCELAKE_POSTGRES", request.getfixturevalue("postgres_address"))
    team.declare(**KINDS[kind])
    started = []
    for value in (row(1, "a"), row(1, None), None):
        team.world.send(value, id=1)
        assert team.serve() == [True]
        started.append([team.started() for _ in range(2)])
        assert team.serve() == []

    assert started == [[True, False], [False, False], [True, False]]


def test_records_of_another_table_start_nothing(team: Team) -> None:
    """Each batch of a topic is one of all its tables."""
    tables = {"paid": {}, "sent": {}}
    team.declare_routes(tables)
    assert team.started_behind() == set()
    team.world.send({**row(1, "a"), "type": "paid"}, {**row(1, "b"), "type": "sent"})
    assert team.serve() == [True]
    both = {f"{team.world.topic}_{each}" for each in tables}
    assert [team.started_behind() for _ in range(2)] == [both, set()]

    team.world.send({**row(2, "a"), "type": "paid"})

    assert team.serve() == [True]
    paid = {f"{team.world.topic}_paid"}
    assert [team.started_behind() for _ in range(2)] == [paid, set()]
    assert team.serve() == []


@pytest.mark.parametrize("is_sensed", [True, False], ids=["sensor", "no sensor"])
def test_a_red_check_that_is_executed_alone_and_turns_green_starts_what_waited_for_it(
    team: Team, *, is_sensed: bool
) -> None:
    """Nothing is materialized: it is the rows of the red run that are read."""
    team.declare(quarantine_rate={"fail_above": 0.2}, sensor=is_sensed)
    team.world.send(row(1, "a"), row(2, None))
    assert not team.execute(team.world.name)
    while_red = [team.started() for _ in range(2)]
    team.declare(quarantine_rate={"warn_above": 1, "fail_above": 1})

    assert team.execute(team.world.name, is_of_checks=True)

    assert while_red == [False, False]
    assert [team.started() for _ in range(3)] == [True, False, False]
    assert team.serve() == []


def test_a_stream_that_no_sensor_starts_shows_a_command_by_its_next_run(team: Team) -> None:
    """`sensor: false` starts no run, not even to tell of a redrive."""
    team.declare(sensor=False)
    team.world.send(row(1, "a"), row(2, None))
    assert team.execute(team.world.name)
    assert [team.started() for _ in range(2)] == [True, False]

    redrive_all(team)
    assert team.serve() == []
    assert not team.started()
    assert team.execute(team.world.name)

    assert [team.started() for _ in range(2)] == [True, False]


def test_a_table_that_was_filled_outside_dagster_is_told_of_by_a_run(team: Team) -> None:
    """A shell has run the stream before anybody switched the sensor on; the topic is quiet."""
    team.world.send(row(1, "a"))
    team.world.run()

    assert team.serve() == [True]
    assert [team.started() for _ in range(2)] == [True, False]
    assert team.serve() == []
