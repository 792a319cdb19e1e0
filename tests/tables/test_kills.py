"""A run that dies around its commit loses and doubles nothing, whatever keeps the rows.

The short form of ``make crash-matrix SINK=…``.
"""

from __future__ import annotations

import pytest

from ingestion.lake.failpoints import Failpoint
from tests.crash import trial
from tests.crash.trial import Cell, attempt
from tests.support.world import World
from tests.tables.test_streams import postgres_address, settings, world

__all__ = ["postgres_address", "settings", "world"]
pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

CELLS = (
    Cell(place=Failpoint.PREPARED, way="kill_python", follow_up="new_records", seed=3),
    Cell(place=Failpoint.COMMITTED, way="kill_group", follow_up="checkpoint_deleted", seed=4),
)


@pytest.mark.parametrize("sink", ["iceberg", "postgres"])
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_run_that_is_killed_loses_and_doubles_nothing(
    world: World, sink: str, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run finds what was committed, or reads it again."""
    monkeypatch.setattr(trial, "SINK", sink)

    outcome = attempt(world, cell)

    assert outcome.evidence == ()
    assert outcome.ended == "killed"
