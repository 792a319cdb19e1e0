"""A column that no record has, beside a field of a name like it, is not passed over in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.settings import Settings
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World

pytestmark = pytest.mark.kafka


def order(number: int, **fields: Any) -> dict[str, Any]:
    """Return a record."""
    return {"id": number, "name": "a", **fields}


@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_a_misspelt_column_is_named_with_the_field_that_is_like_it(
    settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """The run that is green says so, and so do status and plan, until a batch has the column."""
    chosen = settings.model_copy(update={"merge_engine": engine})
    with World.made(chosen, spark) as world:
        _look_at_a_misspelt_column(world, monkeypatch)


def _look_at_a_misspelt_column(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.declare(schema="id BIGINT NOT NULL, nmae STRING, note STRING")
    world.write_declaration()
    world.set_environment(monkeypatch)
    world.send(order(1), order(2, note=None), None, b"garbage")

    before = CliRunner().invoke(app, ["plan", world.topic])
    report = world.run()
    shown = CliRunner().invoke(app, ["status", world.topic, "--json"])
    in_words = [CliRunner().invoke(app, [name, world.topic]) for name in ("status", "plan")]

    assert (
        "notice: column nmae is null in the last 2 records, of which 2 have a field name that is "
    ) in " ".join(before.stdout.split())
    (notice,) = report.notices
    assert notice.startswith(
        "column nmae is null in every row of batch 1, and 2 records have a field name that is not "
    )
    assert report.batches[0].counts["absent.nmae"] == 2
    assert json.loads(shown.stdout)["notices"] == [notice]
    for each in in_words:
        assert "column nmae is null in every row" in " ".join(each.stdout.split())
    assert find_problems(world) == ()
    world.send(order(3, nmae="b"))
    assert world.run().notices == ()


def test_a_column_that_is_merely_empty_is_none_of_it(world: World) -> None:
    """Nulls are values, and an undeclared field is nothing to tell of by itself."""
    world.declare(schema="id BIGINT NOT NULL, name STRING, note STRING")
    world.send(order(1, note=None, quantity=4), order(2, quantity=5))

    report = world.run()

    assert report.notices == ()
    assert report.batches[0].counts["extra_fields"] == 2
