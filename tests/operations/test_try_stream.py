"""Today's declaration on real records: what would come of them, and nothing is written."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.operations.try_stream import Trial, try_stream
from tests.support.long import twins
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def tried(world: World, records: int = 1000) -> Trial:
    """Try the stream as it is declared."""

    def session(_: int) -> SparkSession:
        return world.spark

    return try_stream(world.spec, world.settings, session, records=records)


@pytest.mark.parametrize("engine", ["delta_rs", *twins("spark")])
def test_records_are_tried_and_nothing_is_written(world: World, engine: str) -> None:
    """Rows, deletes, filtered and bad records, by the last of each partition."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(where="id < 9", extra_fields="ignore")
    world.send(row(1, "a"), row(2, "b") | {"more": 1}, row(9, "c"), b"not JSON")
    world.send(None, id=1)
    world.send(row(3, "d"), partition=1)

    trial = tried(world)

    assert trial.dispositions == {"row": 3, "delete": 1, "filtered": 1, "quarantined": 1}
    assert [(each["reason"], each["records"], each["offset"]) for each in trial.bad] == [
        ("malformed_json", 1, 3)
    ]
    assert {each["name"] for each in trial.rows if each["_disposition"] == "row"} == {*"abd"}
    assert any("more" in name for name in trial.extras)
    assert not world.settings.lake.exists()
    assert sum(tried(world, records=2).dispositions.values()) == 2


def test_what_would_change_first_is_said(world: World) -> None:
    """A column that the declaration has and the table has not; the table is left alone."""
    world.send(row(1, "a"))
    world.run()
    before = world.log.versions()
    world.declare(schema="id INT NOT NULL, name STRING, at INT, city STRING")

    trial = tried(world)

    assert trial.plan is not None
    assert [each.field for each in trial.plan.changes] == ["city"]
    assert world.log.versions() == before


def test_an_empty_topic_has_nothing_to_try(world: World) -> None:
    """It says so, and what to do."""
    with pytest.raises(InvalidSpecError, match="hold no record"):
        tried(world)
