"""Dagster materializes a stream whose rows are elsewhere, and says where."""

from __future__ import annotations

import dagster as dg
import psycopg
import pytest

from tests.assets.conftest import materializations
from tests.assets.shell import materialize
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


# Dagster's own, and that of Great Expectations.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("sink", ["postgres"])
def test_a_materialization_says_where_the_rows_are(
    world: World, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Books, expectations and metadata are of the table in PostgreSQL, without its password."""
    assert world.settings.postgres is not None
    monkeypatch.setenv("ONCELAKE_POSTGRES", world.settings.postgres.get_secret_value())
    world.declare(
        expectations=[
            {"type": "expect_column_values_to_be_unique", "column": "id", "severity": "critical"},
            {
                "type": "expect_column_values_to_be_in_set",
                "column": "name",
                "value_set": ["a", "it's"],
                "severity": "warning",
            },
        ]
    )
    world.send(row(1, "a"), row(2, "b"))
    world.write_declaration()

    with dg.DagsterInstance.ephemeral() as instance:
        result = materialize(world, instance)

    assert result.success
    (made,) = materializations(result, world.name)
    assert made.metadata["dagster/uri"].value.endswith(f"/public.{world.name}")
    assert made.metadata["dagster/row_count"].value == 2
    checks = {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
    assert checks["books_balance"]
    (expected,) = (
        check
        for check in result.get_asset_check_evaluations()
        if check.check_name == "expectations"
    )
    unique, in_set = (
        record.data
        for record in expected.metadata["expectations"].value.records  # type: ignore[union-attr]
    )
    assert (unique["success"], unique["query"], in_set["success"]) == (True, "", False)
    assert f"in PostgreSQL, by {in_set['query']}" in str(expected.description)
    with psycopg.connect(world.settings.postgres.get_secret_value()) as server:
        found = server.execute(str(in_set["query"])).fetchall()
    assert [line[:2] for line in found] == [(2, "b")]
