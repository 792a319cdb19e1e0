"""A stream in a Dagster that keeps its own storage in PostgreSQL, as a team's often does."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from tests.assets.shell import DAGSTER_YAML, materialize, reported_in
from tests.support.world import World, row

STORAGE = "storage: {{postgres: {{postgres_url: '{url}'}}}}\n"


@pytest.mark.kafka
@pytest.mark.spark
# Dagster's own, wherever one resource holds another.
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")
def test_a_stream_runs_with_dagsters_storage_in_postgresql(
    world: World, postgres_address: str, tmp_path: Path
) -> None:
    """Every event that a run stores there is announced by a NOTIFY, and none ends it."""
    storage = STORAGE.format(url=postgres_address)
    (tmp_path / "dagster.yaml").write_text(DAGSTER_YAML + storage)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        world.send(row(1, "a"))
        first = materialize(world, instance)
        world.send(row(2, "b"))
        second = materialize(world, instance)

        assert (first.success, second.success) == (True, True)
        assert reported_in(instance, world.topic) == [(False, [1]), (False, [2])]
        assert len(second.get_asset_check_evaluations()) == 5
    assert world.rows() == [row(1, "a"), row(2, "b")]
