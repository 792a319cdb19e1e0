"""A run that dies around its commit loses and doubles nothing, whatever keeps the rows.

The short form of ``make crash-matrix SINK=…``.
"""

from __future__ import annotations

import pytest

from oncelake.ingestion.storage.failpoints import Failpoint
from tests.crash import trial
from tests.crash.trial import Cell, attempt
from tests.support.long import twins
from tests.support.world import World

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

CELLS = (
    Cell(place=Failpoint.PREPARED, way="kill_python", follow_up="new_records", seed=3),
    Cell(place=Failpoint.COMMITTED, way="kill_group", follow_up="checkpoint_deleted", seed=4),
)


@pytest.mark.parametrize(
    ("sink", "cell"),
    [
        *twins(
            pytest.param("kafka", CELLS[1], id="kafka behind"),
            pytest.param("postgres", CELLS[0], id="postgres before"),
            pytest.param("iceberg", CELLS[1], id="iceberg behind"),
            pytest.param("kafka", CELLS[0], id="kafka before"),
            pytest.param("iceberg", CELLS[0], id="iceberg before"),
            pytest.param("postgres", CELLS[1], id="postgres behind"),
        ),
    ],
)
def test_a_run_that_is_killed_loses_and_doubles_nothing(
    world: World, sink: str, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run finds what was committed, or reads it again."""
    monkeypatch.setattr(trial, "SINK", sink)

    outcome = attempt(world, cell)

    assert outcome.evidence == ()
    assert outcome.ended == "killed"
