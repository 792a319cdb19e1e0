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

    @property
    def streams(self) -> tuple[DeclaredStream, ...]:
        """The streams that are declared."""
        return load_streams(self.world.settings.streams)

    def serve(self) -> list[bool]:
        """Let the sensor look until it asks for no run; tell of each whether it succeeded."""
        ended: list[bool] = []
        while self._asks_for_a_run():
            assets = [ingest_asset(each) for each in self.streams]
            done = dg.materialize(
                assets, instance=self.instance, resources=self._resources, raise_on_error=False
            )
            ended.append(done.success)
            assert len(ended) < 5, "the sensor asks for runs for ever"
        return ended

    def started(self) -> bool:
        """Evaluate the condition once; tell whether the asset is started."""

        @dg.asset(deps=[self.world.name], automation_condition=when_new_and_green())
        def behind() -> None: ...

        assets = [*(ingest_asset(each) for each in self.streams), behind]
        defs = dg.Definitions(assets=assets, resources=self._resources)
        ticked = dg.evaluate_automation_conditions(defs, self.instance, cursor=self.cursor)
        self.cursor = ticked.cursor
        return ticked.get_num_requested(behind.key) > 0

    def _asks_for_a_run(self) -> bool:
        given = {name: each for name, each in self._resources.items() if "spark" not in name}
        with dg.build_sensor_context(instance=self.instance, resources=given) as context:
            found = lag_sensor(self.streams)(context)
        assert isinstance(found, dg.SensorResult), found
        return bool(found.run_requests)

    @property
    def _resources(self) -> dict[str, Any]:
        lake = LakeResource()
        spark = SparkResource(lake=lake)
        kafka = KafkaResource()
        return {"oncelake_kafka": kafka, "oncelake_lake": lake, "oncelake_spark": spark}


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
