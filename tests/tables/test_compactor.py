"""A stream into a Delta table goes on, and stays fresh, beside a compactor that never stops."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
)
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import CommitFailedError

from oncelake.ingestion.sinks.files import ATTEMPTS
from tests.support.counted_commits import tries_in
from tests.support.followed import followed, send_until
from tests.support.long import only_long
from tests.support.proof import find_problems
from tests.support.world import World, row

pytestmark = [only_long, pytest.mark.kafka, pytest.mark.slow]
MINUTES = float(os.environ.get("ONCELAKE_TEST_MINUTES", "1"))
# What a compactor is told where the stream has committed first.
LOST = (
    CommitFailedError,
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
)
# Between two compactions: with 0.2 seconds, on a busy machine, a batch took 18 tries of six rounds,
# and one record of a hundred waited for a minute; all was proven.
PAUSE_SECONDS = 2.0
# What a record may wait for at most, of a hundred one more.
FRESH_SECONDS = 30.0


class Compactor(threading.Thread):
    """Writes all files of a table anew, as somebody else, and soon again.

    Attributes:
        made: How often it has done so.
        lost: How often the stream had committed first.
    """

    def __init__(self, compact: Callable[[], bool]) -> None:
        """Take what compacts, and says whether there was anything."""
        super().__init__(daemon=True)
        self.made, self.lost, self._compact = 0, 0, compact
        self._ended, self._error = threading.Event(), list[Exception]()

    def run(self) -> None:
        """Compact until the end."""
        while not self._ended.wait(PAUSE_SECONDS):
            try:
                self.made += self._compact()
            except LOST:
                self.lost += 1
            except Exception as error:  # noqa: BLE001 (raised by ``__exit__``)
                self._error.append(error)
                return

    def __enter__(self) -> Compactor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(120)
        for error in self._error:
            raise error


def by_delta_rs(world: World) -> Callable[[], bool]:
    """Write all files anew by delta-rs."""
    path = str(world.paths.data)
    return lambda: bool(DeltaTable(path).optimize.z_order(["id"])["numFilesRemoved"])


def by_spark(world: World) -> Callable[[], bool]:
    """Write all files anew by Spark."""
    statement = f"OPTIMIZE delta.`{world.paths.data}` ZORDER BY (id)"
    return lambda: bool(world.spark.sql(statement).collect()[0].metrics.numFilesRemoved)


def waits_of(world: World) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return for how long each row's record waited until it was committed, in seconds."""
    committed = {}
    for file in (world.paths.data.path / "_delta_log").glob("*.json"):
        said = json.loads(file.read_text().splitlines()[0])["commitInfo"]
        if "userMetadata" in said:
            committed[json.loads(said["userMetadata"])["seq"]] = said["timestamp"]
    table = QueryBuilder().register("t", DeltaTable(str(world.paths.data)))
    found = pa.table(table.execute('SELECT "_seq", "_timestamp" FROM t').read_all())
    sent = found["_timestamp"].cast("int64").to_numpy() / 1e6
    ends = np.array([committed[seq] for seq in found["_seq"].to_pylist()]) / 1e3
    return np.asarray(ends - sent, np.float64)


@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize("marks", [False, True], ids=["files", "vectors"])
@pytest.mark.parametrize(
    "compactor",
    [
        pytest.param(by_delta_rs, id="delta-rs"),
        pytest.param(by_spark, marks=pytest.mark.spark, id="Spark"),
    ],
)
def test_a_stream_stays_fresh_beside_a_compactor(
    world: World, tmp_path: Path, compactor: Callable[[World], Callable[[], bool]], *, marks: bool
) -> None:
    """Every batch is committed, by a few tries, and proven."""
    world.settings = world.settings.model_copy(update={"reader": "librdkafka"})
    world.declare(follow={"min_records": 1, "every_seconds": 1}, deletion_vectors=marks)
    world.send(row(0, "a"))
    world.run()
    end = time.monotonic() + 60 * MINUTES
    counted = ("tests.support.counted_commits", str(tmp_path / "tries"))
    with (
        followed(world, tmp_path / "follow", *counted),
        Compactor(compactor(world)) as compacting,
    ):
        send_until(world, end)
    world.run()

    tries, waits = Counter(tries_in(tmp_path / "tries")).values(), waits_of(world)
    print(
        f"{MINUTES:g} min: {len(tries)} commits, {sum(each > 1 for each in tries)} of which met a "
        f"compaction, {max(tries)} tries at most; {compacting.made} compactions, {compacting.lost} "
        f"lost; freshness p50 {np.percentile(waits, 50):.1f} s, "
        f"p99 {np.percentile(waits, 99):.1f} s"
    )
    assert find_problems(world) == ()
    # Spark's takes longer than a batch, and loses to most.
    assert compacting.made + compacting.lost > MINUTES
    assert max(tries) <= ATTEMPTS
    assert np.percentile(waits, 99) < FRESH_SECONDS
