"""A declaration that changes between two runs is refused where the table would change its mind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import IdentityChangedError
from tests.model import world as worlds
from tests.model.cluster import Record
from tests.model.seams import simulated


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with simulated():
        yield


@pytest.mark.parametrize("changed", [{"sequence_by": []}, {"keys": ["at"]}], ids=["order", "keys"])
def test_another_identity_is_refused(
    changed: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were compared by one order, or told apart by one key, are not by another."""
    world = worlds.World()
    world.cluster.partitions[0].slots.append(Record("row", 1, 1))
    world.start_run().finish()
    declared = worlds.SPEC.model_dump(by_alias=True, exclude_unset=True) | changed
    monkeypatch.setattr(worlds, "SPEC", StreamSpec.model_validate(declared))

    world.sweep()
    run = world.start_run()
    run.finish()

    assert isinstance(run.outcome, IdentityChangedError)
    assert "oncelake rebuild" in str(run.outcome)
