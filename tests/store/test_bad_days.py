"""A store on a bad day: a run waits, ends with exit 5, or goes on; nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.errors import MissingRightError, StorageError, UnfitStorageError
from oncelake.ingestion.lake.lock import Holder, held_by_python
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage import lease
from oncelake.ingestion.storage.lease import read_lease
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.store_proxy import COMMIT, Fault, StoreProxy
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LEDGER = r"^PUT .*__ledger/_delta_log/\d{20}\.json$"
DATA = r"^PUT .*/lake/[a-z0-9]+/_delta_log/\d{20}\.json$"


@pytest.fixture
def stored(
    settings: Settings, spark: SparkSession, bucket: str, store_proxy: StoreProxy
) -> Iterator[World]:
    """A stream of one batch in a store behind a proxy, with more to read."""
    settings = settings.model_copy(update={"lake": bucket, "lease_seconds": 2.0})
    with World.made(settings, spark) as world:
        world.send(row(1, "a"), row(2, "b"))
        world.run()
        world.send(row(2, "b2"), row(3, "c"))
        yield world


ROWS = [row(1, "a"), row(2, "b2"), row(3, "c")]


@pytest.mark.parametrize("fault", ["lost_answer", *twins("hung_up", "late_error")])
@pytest.mark.parametrize("of", [DATA, LEDGER, r"^PUT .*\.lease$"], ids=["data", "ledger", "lease"])
def test_a_put_whose_answer_is_lost_is_done_once(
    stored: World, store_proxy: StoreProxy, fault: Fault, of: str
) -> None:
    """The outcome is unknown: it is looked for, and whatever it was, a rerun ends the same."""
    with store_proxy.fault(fault, of, times=1) as met:
        ends = [_run(stored)]
    ends.append(_run(stored))

    assert len(met) == 1
    assert {*ends} <= {None, StorageError}
    assert ends[-1] is None
    assert stored.rows() == ROWS
    assert find_problems(stored) == ()


@pytest.mark.parametrize("fault", ["slow_down", *twins("error")])
def test_a_store_that_throttles_for_a_moment_is_waited_for(
    stored: World, store_proxy: StoreProxy, fault: Fault
) -> None:
    """Two failures of every kind of request cost time, and no more."""
    with store_proxy.fault(fault, COMMIT, times=2) as met:
        report = stored.run()

    assert len(met) == 2
    assert report.is_balanced
    assert stored.rows() == ROWS


def test_a_denied_request_is_named_and_who_may_only_read_is_told_who_writes(
    stored: World, store_proxy: StoreProxy
) -> None:
    """Expired keys are no unexpected error; and a clock of the store is not a reader's to ask."""
    declared = DeclaredStream(name=stored.topic, path=Path(), spec=stored.spec, error=None)
    with (
        store_proxy.fault("denied", "^PUT "),
        pytest.raises(MissingRightError, match=r"the store of the lake refuses PUT s3://.*403"),
    ):
        stored.run()
    with (
        held_by_python(stored.paths, Holder.me("writer")),
        store_proxy.fault("denied", "^(PUT|DELETE) "),
        patch.object(lease, "this_machine", lambda: "elsewhere"),
    ):
        status = StatusReader(stored.settings).read_status(declared)

    assert status.holder is not None
    assert status.holder.run_id == "writer"


def test_a_bucket_that_does_not_exist_is_named(
    settings: Settings, spark: SparkSession, bucket: str
) -> None:
    """A misspelt name is no unexpected error."""
    settings = settings.model_copy(update={"lake": f"{bucket.removesuffix('/lake')}x/lake"})
    with World.made(settings, spark) as world:
        world.send(row(1, "a"))

        with pytest.raises(StorageError, match=r"there is no such bucket: 's3://b\w+x'"):
            world.run()


def test_a_store_that_fails_for_good_ends_the_run_in_one_sentence(
    stored: World, store_proxy: StoreProxy
) -> None:
    """It says which stream, what the store answered, and what to do; the next run reads it all."""
    with (
        store_proxy.fault("slow_down"),
        pytest.raises(StorageError, match=rf"{stored.topic}: the store of the lake failed: .*503"),
    ):
        stored.run()
    again = stored.run()

    assert again.is_balanced
    assert stored.rows() == ROWS
    assert find_problems(stored) == ()


def test_a_store_without_conditional_writes_is_refused(
    stored: World, store_proxy: StoreProxy
) -> None:
    """It is tried before anything is written, and leaves nothing behind."""
    store_proxy.behave(ignores_conditions=True)
    log_files(stored.paths.data).forget()

    with pytest.raises(UnfitStorageError, match="If-None-Match"):
        stored.run()
    store_proxy.behave()

    assert stored.rows() == [row(1, "a"), row(2, "b")]
    assert stored.paths.lease is not None
    assert read_lease(stored.paths.lease) is None


@pytest.mark.parametrize("skew_seconds", [-7200, *twins(7200)])
def test_clocks_may_differ(stored: World, store_proxy: StoreProxy, skew_seconds: float) -> None:
    """A store whose clock is two hours off takes the same runs."""
    store_proxy.behave(clock_skew_seconds=skew_seconds)

    report = stored.run()

    assert report.is_balanced
    assert find_problems(stored) == ()


def _run(world: World) -> type[Exception] | None:
    """Run, and return the class of what it ended with."""
    try:
        world.run()
    except StorageError as error:
        return type(error)
    return None
