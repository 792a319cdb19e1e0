"""One writer a stream."""

from __future__ import annotations

import gc
import os

import pytest

from oncelake.ingestion.errors import StreamLockedError
from oncelake.ingestion.lake.lock import Holder, held_by_jvm, held_by_python, holder_of
from oncelake.ingestion.storage.lease import read_lease
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_a_second_run_in_the_same_jvm_is_refused(world: World) -> None:
    """While a batch is open, another run is refused by name, and the first is not disturbed."""
    world.send(row(1, "a"))
    refusals = []

    def run_again(*_: object) -> None:
        with pytest.raises(StreamLockedError) as refused:
            world.run(run_id="second")
        refusals.append(str(refused.value))

    world.run(run_id="first", on_batch=run_again)

    assert len(refusals) == 1
    for part in ("run first", f"pid {os.getpid()}", "since 2"):
        assert part in refusals[0]
    assert world.rows() == [row(1, "a")]


def test_a_second_run_in_another_process_is_refused(world: World) -> None:
    """Another process exits 4 and names the holder; the lock is free when the holder is done."""
    world.write_declaration()
    with held_by_jvm(world.spark, world.paths, Holder.me("first")):
        second = world.run_elsewhere()

    assert second.returncode == 4, second.stderr
    assert "run first" in second.stderr + second.stdout
    assert holder_of(world.paths) is None


def test_the_jvms_lock_survives_the_collector(world: World) -> None:
    """Neither Python's collector nor the JVM's frees a lock that is held."""
    with held_by_jvm(world.spark, world.paths, Holder.me("first")):
        gc.collect()
        world.spark.sparkContext._jvm.System.gc()

        held = holder_of(world.paths)

    assert held is not None
    assert held.run_id == "first"


def test_a_refusal_in_the_same_jvm_leaves_the_lock_in_place(world: World) -> None:
    """Closing any other descriptor of the lock's file would drop the lock, so none is opened."""
    with held_by_jvm(world.spark, world.paths, Holder.me("first")):
        with (
            pytest.raises(StreamLockedError),
            held_by_jvm(world.spark, world.paths, Holder.me("second")),
        ):
            pass

        assert holder_of(world.paths) is not None


def test_a_lease_stands_in_for_the_kernels_lock(world: World) -> None:
    """On a file system without locks a run holds a lease that names its JVM, and lets it go."""
    world.settings = world.settings.model_copy(update={"lock": "lease", "merge_engine": "spark"})
    world.send(row(1, "a"))
    seen = []

    def check(*_: object) -> None:
        assert world.paths.lease is not None
        lease = read_lease(world.paths.lease)
        assert lease is not None
        seen.append(lease)
        with pytest.raises(StreamLockedError, match=f"oncelake unlock {world.topic}"):
            world.run(run_id="second")

    world.run(run_id="first", on_batch=check)

    assert [each.run_id for each in seen] == ["first"]
    assert len(seen[0].living()) == 2
    assert (holder_of(world.paths), world.rows()) == (None, [row(1, "a")])


def test_an_operator_is_refused_while_a_run_holds_the_stream(world: World) -> None:
    """Commands that commit without Spark respect the JVM's lock, and leave it in place."""
    with held_by_jvm(world.spark, world.paths, Holder.me("first")):
        for _ in range(2):
            with (
                pytest.raises(StreamLockedError, match="run first"),
                held_by_python(world.paths, Holder.me("operator")),
            ):
                pass

        assert holder_of(world.paths) is not None


def test_a_lock_that_is_let_go_is_free(world: World) -> None:
    """The next one takes it, whether the last one ended well or not."""
    with (
        pytest.raises(ZeroDivisionError),
        held_by_jvm(world.spark, world.paths, Holder.me("first")),
    ):
        raise ZeroDivisionError

    with held_by_python(world.paths, Holder.me("second")):
        pass
    with held_by_jvm(world.spark, world.paths, Holder.me("third")):
        held = holder_of(world.paths)

    assert held is not None
    assert held.run_id == "third"
