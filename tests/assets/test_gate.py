"""A batch at the gate in Dagster: its evidence, no materialization, and what becomes of it."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from oncelake.assets.assets import ingest_asset
from oncelake.ingestion.declaration.files.loader import StreamFolder
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.support.gate import publish
from tests.support.world import World, row

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")


@pytest.fixture
def team(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what materializes the stream and an asset behind it, as Dagster would in one run."""
    world.declare(
        publish="checked", expect={"named": {"rule": "name IS NOT NULL", "on_miss": "refuse"}}
    )
    instance, built = dg.DagsterInstance.ephemeral(), []

    def materialize() -> dg.ExecuteInProcessResult:
        world.write_declaration()
        world.set_environment(monkeypatch)
        (declared,) = StreamFolder(world.settings.streams).read()

        @dg.asset(deps=[world.name])
        def behind() -> None:
            built.append(len(built))

        lake = LakeResource()
        return dg.materialize(
            [ingest_asset(declared, lambda *_: world.run()), behind],
            instance=instance,
            resources={
                "oncelake_kafka": KafkaResource(),
                "oncelake_lake": lake,
                "oncelake_spark": SparkResource(lake=lake),
            },
            raise_on_error=False,
        )

    materialize.built = built  # type: ignore[attr-defined]
    materialize.instance = instance  # type: ignore[attr-defined]
    yield materialize
    instance.dispose()


def test_a_batch_that_is_held_back_is_an_observation_and_builds_nothing(
    world: World, team: Any
) -> None:
    """The evidence stands at the asset; after the acceptance the run materializes, and goes on."""
    key = dg.AssetKey(world.name)
    world.send(row(1, "a"))
    assert team().success
    world.send(row(2, None))

    red = team()

    assert not red.success
    assert team.built == [0]
    assert not red.asset_materializations_for_node(f"ingest_{world.name}")
    (observation,) = [
        each.event_specific_data.asset_observation
        for each in red.all_events
        if each.event_type_value == "ASSET_OBSERVATION"
    ]
    (record,) = observation.metadata["misses"].records
    assert (record.data["name"], record.data["rows"]) == ("expect.named", 1)
    (seen,) = observation.metadata["rows"].records
    assert (seen.data["id"], seen.data["name"]) == (2, None)
    (check,) = [each for each in red.get_asset_check_evaluations() if each.check_name == "gate"]
    assert not check.passed
    assert "oncelake accept" in (check.description or "")

    publish(world)
    green = team()

    assert green.success
    assert team.built == [0, 1]
    record = team.instance.get_latest_materialization_event(key)
    assert record is not None
    (check,) = [each for each in green.get_asset_check_evaluations() if each.check_name == "gate"]
    assert "was published as it is: looked at" in (check.description or "")
