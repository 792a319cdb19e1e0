"""Whatever happens to a commit on its way to a catalog and back, each record counts once."""

from __future__ import annotations

from typing import Any

import pytest

from oncelake.ingestion.errors import CommitConflictError, DependencyError
from oncelake.ingestion.sinks.iceberg import catalog as iceberg_catalog
from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry
from oncelake.ingestion.tables.commit_log import UnknownOutcomeError
from tests.support.catalogs import BEFORE, BEHIND, TriedCatalog, first_or_all, only_catalogs
from tests.support.proof import find_problems
from tests.support.store_proxy import Fault
from tests.support.world import World, row, wait_until

# As much as a slow machine may need, and little to wait for.
PATIENCE_SECONDS = 3.0


@pytest.fixture
def begun(world: World) -> World:
    """A stream that has a batch, and another that waits: with a row, a change, and a bad record."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.send(row(1, "A"), row(3, "c"), b"not JSON")
    return world


def is_proven(world: World) -> bool:
    """Tell whether it ends as it should."""
    rows = [row(1, "A"), row(2, "b"), row(3, "c")]
    assert world.rows() == rows
    assert len(world.quarantined()) == 1
    return find_problems(world) == ()


def skip_unless_it_can_happen(catalog: TriedCatalog, fault: Fault) -> None:
    """Skip what only HTTP has, or only a proxy does, for another catalog."""
    if fault not in (*catalog.faults, *(["denied"] if catalog.proxy else [])):
        pytest.skip("that cannot happen on the way to it")


@pytest.mark.parametrize("fault", first_or_all(*BEFORE, "denied"))
def test_a_commit_that_never_arrives_is_made_by_the_next_run(
    begun: World, catalog: TriedCatalog, fault: Fault
) -> None:
    """The run ends with 5, and nothing of it is visible; unless the catalog's client asks again."""
    skip_unless_it_can_happen(catalog, fault)
    with catalog.fault(fault) as met:
        if catalog.retries and fault != "denied":
            assert begun.run().total("inserted") == 1
        else:
            with pytest.raises(DependencyError) as failed:
                begun.run()
            assert failed.value.exit_code == 5
            assert begun.rows() == [row(1, "a"), row(2, "b")]
    assert len(met) == 1

    begun.run()

    assert is_proven(begun)


@pytest.mark.parametrize("fault", first_or_all(*BEHIND))
def test_a_commit_that_is_made_without_an_answer_counts(
    begun: World, catalog: TriedCatalog, fault: Fault
) -> None:
    """The note in the snapshot tells that it was made: the run goes on, and makes no second."""
    skip_unless_it_can_happen(catalog, fault)
    with catalog.fault(fault) as met:
        report = begun.run()

    assert (len(met), report.total("inserted"), report.total("updated")) == (1, 1, 1)
    assert is_proven(begun)


@only_catalogs
def test_a_commit_that_arrives_after_its_run_has_given_up_counts_once(
    begun: World, catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on its way when the next run begins, and arrives before that commits."""
    if catalog.properties["type"] != "rest":
        pytest.skip("its client has a time-out of its own")
    monkeypatch.setattr(iceberg_catalog, "_REQUEST_SECONDS", (5.0, PATIENCE_SECONDS))
    commit = CatalogEntry.commit
    with catalog.fault("delay", seconds=2 * PATIENCE_SECONDS) as late:
        with pytest.raises(UnknownOutcomeError):
            begun.run()
        assert begun.rows() == [row(1, "a"), row(2, "b")]

        def commit_behind_it(*given: Any) -> None:
            wait_until(lambda: late[0].status == 200, "it never arrived")
            commit(*given)

        with monkeypatch.context() as patch:
            patch.setattr(CatalogEntry, "commit", commit_behind_it)
            with pytest.raises(CommitConflictError, match="of run run-2"):
                begun.run()

    begun.run()

    assert is_proven(begun)
