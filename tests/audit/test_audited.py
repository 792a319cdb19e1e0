"""``oncelake.audited``: the audit as a check of an asset that another tool fills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import oncelake
from tests.support.world import COLUMNS, World, row


@pytest.fixture
def filled(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A topic, and the table that somebody makes of it."""
    world.set_environment(monkeypatch)
    world.send(row(1, "a", 1), row(2, "b", 2), row(1, "A", 3))
    rows = pa.table({"id": [1, 2], "name": ["A", "b"], "at": [3, 2]})
    write_deltalake(tmp_path / "table", rows)
    return world, tmp_path / "table"


def result_of(world: World, table: Path, **options: Any) -> dg.AssetCheckEvaluation:
    """Evaluate the check in Dagster."""

    @dg.asset
    def orders_by_others() -> None:
        """Fill a table."""

    check = oncelake.audited(
        orders_by_others, topic=world.topic, table=str(table), keys=["id"], **options
    )
    run = dg.materialize([orders_by_others, check])
    (evaluation,) = run.get_asset_check_evaluations()
    return evaluation


def test_a_sound_table_is_green(filled: Any) -> None:
    """With the figures of the audit."""
    found = result_of(*filled)

    assert (found.passed, found.description) == (True, "all is there")
    assert (found.metadata["records"].value, found.metadata["rows"].value) == (3, 2)


def test_a_row_that_is_missing_is_red_and_named(filled: Any) -> None:
    """In the words of the audit."""
    world, table = filled
    rows = pa.table({"id": [2], "name": ["b"], "at": [2]})
    write_deltalake(table, rows, mode="overwrite")
    world.send(row(2, "b", 4))
    more = pa.table({"id": [2], "name": ["b"], "at": [4]})
    write_deltalake(table, more, mode="overwrite")

    found = result_of(world, table)

    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert (found.description, found.metadata["missing"].value) == ("1 fault", 1)
    assert "'id': '1'" in str(found.metadata["says"].value)


def test_what_cannot_be_judged_is_a_warning(filled: Any) -> None:
    """A record that nobody can read."""
    world, table = filled
    world.send(b"no JSON")

    found = result_of(world, table, schema=COLUMNS)
    accepted = result_of(world, table, schema=COLUMNS, ignore_unreadable=1)

    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert found.description == "cannot be judged"
    assert accepted.passed
