"""Somebody else at work on the table: compacting it under a run's hands, and dying of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from delta.exceptions import ConcurrentDeleteReadException, ConcurrentTransactionException
from pyspark.sql import SparkSession

from oncelake.ingestion.errors import CommitConflictError, TableBusyError
from oncelake.ingestion.modes.engines.idempotent_commit import retry_on_conflict
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage import failpoints
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import only_long, twins
from tests.support.proof import find_problems
from tests.support.world import World, row

_COMPACT_FOR_EVER = """
import sys
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
print("begins", flush=True)
while True:
    try:
        DeltaTable(sys.argv[1]).optimize.compact()
    except DeltaError:
        pass
"""


@pytest.mark.kafka
@pytest.mark.spark
def test_a_compaction_that_dies_under_a_run_changes_nothing(world: World) -> None:
    """Whoever gets in first, and wherever the other is killed, the table is what the topic says."""
    world.declare(sequence_by=["at"], max_offsets_per_trigger=20)
    world.send(*(row(i, "first", at=0) for i in range(20)))
    world.run()
    for attempt in range(1, 4):
        world.send(*(row(i, f"{attempt}", at=attempt) for i in range(40)))
        with _compacting(world):
            world.run()

    assert find_problems(world) == ()


def test_a_statement_that_lost_to_a_stranger_is_made_again() -> None:
    """What Delta threw away for somebody's sake is not in the table, so it is made once more."""
    thrown = [ConcurrentDeleteReadException("OPTIMIZE"), ConcurrentDeleteReadException("OPTIMIZE")]
    made = []

    def statement() -> None:
        made.append(1)
        if thrown:
            raise thrown.pop()

    retry_on_conflict(statement, stream="orders")

    assert len(made) == 3


def test_a_stranger_who_never_rests_is_named() -> None:
    """After three times it is said that somebody else is at work, and that nothing is lost."""

    def statement() -> None:
        raise ConcurrentDeleteReadException("OPTIMIZE")

    with pytest.raises(TableBusyError, match="oncelake run orders"):
        retry_on_conflict(statement, stream="orders")


def test_a_second_writer_of_ours_is_not_outwaited() -> None:
    """Another commit under our own name means two writers: the statement is made only once."""
    made = []

    def statement() -> None:
        made.append(1)
        raise ConcurrentTransactionException("oncelake:orders")

    with pytest.raises(CommitConflictError, match="another run has committed"):
        retry_on_conflict(statement, stream="orders")
    assert len(made) == 1


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["local", *twins("spark")])
@only_long
def test_a_run_whose_lock_was_deleted_ends_with_a_conflict(
    settings: Settings, spark: SparkSession, engine: str
) -> None:
    """A second run takes the stream and commits; the first loses, and nothing is there twice."""
    chosen = settings.model_copy(update={"merge_engine": engine})
    with World.made(chosen, spark) as world:
        world.write_declaration()
        world.send(row(1, "a"))
        world.run()
        world.send(row(1, "b"), row(2, "c"))

        def let_another_run(place: Failpoint) -> None:
            if place == Failpoint.PREPARED:
                world.paths.lock.path.unlink()
                assert world.run_elsewhere().returncode == 0

        with (
            patch.object(failpoints, "_hook", lambda: let_another_run),
            pytest.raises(CommitConflictError),
        ):
            world.run()

        assert find_problems(world) == ()


@contextmanager
def _compacting(world: World) -> Iterator[None]:
    """Compact the table again and again in another process, and kill that in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", _COMPACT_FOR_EVER, world.paths.data], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()
