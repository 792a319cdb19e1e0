"""A stream goes on, and stays fresh, beside a compactor that never stops."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from pyiceberg.table import Table

from oncelake.ingestion.sinks.files import ATTEMPTS
from oncelake.ingestion.sinks.iceberg import log as snapshots
from tests.support.catalogs import TriedCatalog, only_catalogs
from tests.support.long import only_long
from tests.support.proof import find_problems
from tests.support.store_proxy import Requests, StoreProxy
from tests.support.world import ROOT, World, row

pytestmark = [only_catalogs, only_long, pytest.mark.kafka, pytest.mark.slow]
MINUTES = float(os.environ.get("ONCELAKE_TEST_MINUTES", "1"))
READERS = os.environ.get("ONCELAKE_READERS", "")
# What a record may wait for at most, of a hundred one more.
FRESH_SECONDS = 30.0


class Compactor(Protocol):
    """Tells how often it has put files together."""

    def count(self) -> int: ...  # noqa: D102


class BySpark:
    """Spark's ``rewrite_data_files``, one call after the other, as a process of its own."""

    def __init__(self, uri: str, table: str, log: Path) -> None:
        self._log = log
        command = [READERS, str(Path(__file__).with_name("compact.py")), uri, table]
        with log.open("w") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)

    def count(self) -> int:
        """Read what it has printed."""
        return sum(each.isdigit() and each != "0" for each in self._log.read_text().splitlines())

    def close(self) -> None:
        """Let it end the call that it is at."""
        self._process.communicate(timeout=120)


@contextmanager
def followed(world: World, log: Path) -> Iterator[None]:
    """Follow the stream, in a process of its own, while the block runs, and a little longer."""
    world.write_declaration()
    words = ("ingestion", "follow", world.name, "--json", "--every", "1s")
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=world.environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
        time.sleep(5)
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def tries_of(requests: Requests, catalog: TriedCatalog) -> list[int]:
    """Count the requests that each commit took; the proxy has none of the compactor's."""
    statuses = [each.status for each in catalog.commits_in(requests)]
    ends = [at for at, status in enumerate(statuses) if status == 200]
    return [end - before for before, end in itertools.pairwise([-1, *ends])]


def waits_of(table: Table) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return for how long each row's record waited until it was committed, in seconds."""
    past = table.metadata.snapshots
    committed = {snapshots.seq_of(each): each.timestamp_ms for each in reversed(past)}
    found = table.scan(selected_fields=("_seq", "_timestamp")).to_arrow()
    sent = found["_timestamp"].cast("int64").to_numpy() / 1e6
    ends = np.array([committed[seq] for seq in found["_seq"].to_pylist()]) / 1e3
    return np.asarray(ends - sent, np.float64)


def test_a_stream_stays_fresh_beside_sparks_compactor(
    world: World, catalog: TriedCatalog, tmp_path: Path
) -> None:
    """Every batch is committed by at most as many tries as there are, and proven."""
    if catalog.kind != "servlet" or not READERS:
        pytest.skip("Spark compacts tables of the servlet: make compactor")
    world.send(row(0, "a"))
    world.run()
    assert isinstance(catalog.proxy, StoreProxy)
    name = f"{catalog.namespace}.{world.topic}"
    end = time.monotonic() + 60 * MINUTES
    with (
        closing(BySpark(catalog.proxy.server, name, tmp_path / "compactor")) as compactor,
        catalog.watched() as requests,
        followed(world, tmp_path / "follow"),
    ):
        for number in itertools.count(1):
            # Rows that are new, and now and then one that is not.
            world.send(row(number, "new"), *[row(number // 2, "again")] * (number % 8 == 0))
            time.sleep(0.25)
            if time.monotonic() > end:
                break

    world.run()

    told(catalog, world, tries_of(requests, catalog), compactor)


def told(catalog: TriedCatalog, world: World, tries: list[int], compactor: Compactor) -> None:
    """Print what was measured, and compare it with what is promised."""
    with catalog.table(world.topic) as table:
        waits = waits_of(table)
    met = sum(each > 1 for each in tries)
    print(
        f"{MINUTES:g} min: {len(tries)} commits, {met} of which met a compaction, "
        f"{max(tries)} tries at most; {compactor.count()} compactions; freshness p50 "
        f"{np.percentile(waits, 50):.1f} s, p99 {np.percentile(waits, 99):.1f} s"
    )
    assert find_problems(world) == ()
    assert compactor.count() > MINUTES
    assert max(tries) <= ATTEMPTS
    assert np.percentile(waits, 99) < FRESH_SECONDS
