"""An adoption is killed by SIGKILL at its steps, and some moments behind them, and typed again."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr

from oncelake.ingestion.storage.failpoints import Failpoint
from tests.audit.pipelines import catalog_of_others
from tests.operations.test_adopt import AFTER, LOADERS, ROWS, STARTING, changed, loaded, values
from tests.support.long import only_long
from tests.support.proof import prove
from tests.support.world import World
from tests.trials.failpoints import PlannedCrash
from tests.trials.kills import run_to_its_end

pytestmark = [pytest.mark.kafka, pytest.mark.slow, only_long]

PLACES = (Failpoint.TABLE_CREATED, Failpoint.ALTERED, Failpoint.DECIDED)
KILLS = [
    pytest.param(nth, ["delta-rs", "pyiceberg", "copy"][nth % 3], PLACES[nth // 3 % 3], id=str(nth))
    for nth in range(20)
]


@pytest.mark.parametrize(("nth", "loader", "place"), KILLS)
def test_an_adoption_that_is_killed_is_done_again(
    world: World,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
    loader: str,
    place: Failpoint,
) -> None:
    """The first nine die right there, the others up to a tenth of a second later."""
    if loader == "copy":
        address = SecretStr(request.getfixturevalue("postgres_address"))
        world.settings = world.settings.model_copy(update={"postgres": address})
    catalog: Mapping[str, str] = catalog_of_others(tmp_path / "others")
    for name, value in catalog.items():
        monkeypatch.setenv(name, value)
    loaded(world)
    LOADERS[loader](world, ROWS)
    world.write_declaration()
    world.settings.state.mkdir(exist_ok=True)
    options = ("--starting", json.dumps(STARTING), "--apply", "--reason", "a test")
    world.operation = ("adopt-table", *options)
    visits, late = str(tmp_path / "visits"), random.Random(nth).uniform(0, 0.1)
    crash = PlannedCrash(
        place=place,
        way="kill_group",
        visits=visits,
        delay_seconds=0 if nth < 9 else late,
    )

    how, problems = run_to_its_end(world, crash)
    again, more = run_to_its_end(world, PlannedCrash(place="never", way="exception", visits=visits))

    assert problems == () or nth >= 9
    assert how == "killed" or nth >= 9
    assert (again, more) == ("exit 0", ())
    assert [row.seq for row in world.ledger] == [0]
    assert changed(world)["updated"] == 3
    assert values(world) == AFTER
    assert prove(world).differences == ()
