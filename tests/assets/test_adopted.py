"""A table that was adopted, as Dagster sees it."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from oncelake.assets.assets import ingest_asset
from oncelake.ingestion.declaration.files.loader import StreamFolder
from oncelake.ingestion.operations.audit.adopt import adopt_table
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource
from oncelake.resources.spark import SparkResource
from tests.support.world import World, row

pytestmark = pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")


def test_a_stream_of_an_adopted_table_is_green(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges follow one another from the stated offsets on, and the books balance."""
    world.send(row(1, "a"), row(2, "b"))
    columns = {
        "id": pa.array([1, 2], pa.int32()),
        "name": ["a", "b"],
        "at": pa.nulls(2, pa.int32()),
    }
    write_deltalake(str(world.paths.data), pa.table(columns))
    begin = '{"0": 2, "1": 0}'
    adopt_table(world.spec, world.settings, starting=begin, reason="a test", run_id="adopt")
    world.send(row(1, "c"), row(3, "d"))
    world.write_declaration()
    world.set_environment(monkeypatch)
    (declared,) = StreamFolder(world.settings.streams).read()
    lake = LakeResource()

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [ingest_asset(declared, lambda *_: world.run())],
            instance=instance,
            resources={
                "oncelake_kafka": KafkaResource(),
                "oncelake_lake": lake,
                "oncelake_spark": SparkResource(lake=lake),
            },
        )

    assert result.success
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert {"books_balance", "offsets_contiguous"} <= {*checks}
    assert all(checks.values()), checks
