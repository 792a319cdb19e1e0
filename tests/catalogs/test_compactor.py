"""A stream goes on, and stays fresh, beside a compactor that never stops."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from oncelake.ingestion.sinks.files import ATTEMPTS
from oncelake.ingestion.sinks.iceberg import catalog as iceberg_catalog
from oncelake.ingestion.sinks.iceberg import files
from oncelake.ingestion.sinks.iceberg import log as snapshots
from tests.support.catalogs import TriedCatalog, only_catalogs
from tests.support.followed import followed, send_until
from tests.support.long import only_long
from tests.support.proof import find_problems
from tests.support.store_proxy import Requests, StoreProxy
from tests.support.world import ROOT, World, row

pytestmark = [only_catalogs, only_long, pytest.mark.kafka, pytest.mark.slow]
MINUTES = float(os.environ.get("ONCELAKE_TEST_MINUTES", "1"))
# Between two compactions: with half a second, one batch of 153 took a fourth try, by the next run.
PAUSE_SECONDS = 2.0
# An environment that has Spark with Iceberg: `make readers` makes one.
SPARKS_PYTHON = os.environ.get("ONCELAKE_READERS", "")
SCRIPT = str(ROOT / "tests" / "readers" / "compact.py")
# What a record may wait for at most, of a hundred one more.
FRESH_SECONDS = 30.0


class SparkCompactor:
    """Iceberg's own library for Spark, which writes all files of a table anew, and soon again.

    It has the attributes of ``Compactor``.
    """

    def __init__(self, catalog: TriedCatalog, table: str) -> None:
        """Take a table, which it reaches by no proxy."""
        assert isinstance(catalog.proxy, StoreProxy)
        self._name, self._uri = f"{catalog.namespace}.{table}", catalog.proxy.server
        self.made = self.lost = 0

    def start(self) -> None:
        """Compact until ``close``."""
        words = [SCRIPT, self._uri, self._name, str(PAUSE_SECONDS)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (``close`` does)
        self._process = subprocess.Popen(
            [SPARKS_PYTHON, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def close(self) -> None:
        """Let it end the compaction that it is at."""
        with self._errors as errors:
            output, _ = self._process.communicate(timeout=120)
            errors.seek(0)
            assert self._process.returncode == 0, errors.read()[-2000:]
        self.made, self.lost = output.count("made"), output.count("lost")


class Compactor(threading.Thread):
    """Writes all files of a table anew, as somebody else, and soon again.

    Attributes:
        made: How often it has done so.
        lost: How often the stream had committed first.
    """

    def __init__(self, catalog: TriedCatalog, table: str) -> None:
        """Take a table, which it reaches by no proxy."""
        super().__init__(daemon=True)
        self.made, self.lost, self._ended = 0, 0, threading.Event()
        self._table, self._catalog = table, catalog
        if isinstance(catalog.proxy, StoreProxy):
            direct = {**catalog.properties, "uri": catalog.proxy.server}
            self._catalog = replace(catalog, properties=direct)

    def run(self) -> None:
        """Compact until ``close``."""
        while not self._ended.wait(PAUSE_SECONDS):
            with self._catalog.table(self._table) as table:
                found = [task.file for task in table.scan().plan_files()]
                try:
                    self._compact(table, found)
                    self.made += 1
                except CommitFailedException:
                    self.lost += 1

    @staticmethod
    def _compact(table: Table, found: Sequence[DataFile]) -> None:
        writer = files.IcebergFileWriter(table)
        for file in found:
            for batch in files.read_file(table, file, table.schema()):
                writer.write(batch)
        writer.close()
        added = [each.data for each in writer.files]
        staged = files.StagedSnapshot(table, added=added, removed=found)
        updates = tuple(staged.write(Operation.REPLACE))
        table.catalog.commit_table(table, iceberg_catalog._requirements(table), updates)

    def close(self) -> None:
        """Let it end the compaction that it is at."""
        self._ended.set()
        self.join(60)
        assert not self.is_alive()


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


def test_a_stream_stays_fresh_beside_a_compactor(
    world: World, catalog: TriedCatalog, tmp_path: Path
) -> None:
    """Every batch is committed by at most as many tries as there are, and proven."""
    if catalog.properties["type"] != "rest":
        pytest.skip("the proxy of REST tells how often a commit was tried")
    stay_fresh(world, catalog, tmp_path / "follow", Compactor)


def test_a_stream_stays_fresh_beside_spark(
    world: World, catalog: TriedCatalog, tmp_path: Path
) -> None:
    """Its ``rewrite_data_files``, without an end, costs no batch more tries than there are."""
    if catalog.kind != "servlet" or not SPARKS_PYTHON:
        pytest.skip("left to make catalogs CATALOGS=servlet, after make readers")
    sink: Any = world.declared["sink"]
    world.declare(sink={"iceberg": {**sink["iceberg"], "spark_names": True}})
    stay_fresh(world, catalog, tmp_path / "follow", SparkCompactor)


def stay_fresh(
    world: World,
    catalog: TriedCatalog,
    log: Path,
    kind: type[Compactor | SparkCompactor],
) -> None:
    """Follow a stream beside a compactor of a kind, and compare what is told with the promise."""
    world.declare(follow={"min_records": 1, "every_seconds": 1})
    world.send(row(0, "a"))
    world.run()
    end = time.monotonic() + 60 * MINUTES
    with (
        catalog.watched() as requests,
        closing(kind(catalog, world.topic)) as compactor,
        followed(world, log),
    ):
        compactor.start()
        send_until(world, end)
    world.run()

    told(catalog, world, tries_of(requests, catalog), compactor)


def told(
    catalog: TriedCatalog, world: World, tries: list[int], compactor: Compactor | SparkCompactor
) -> None:
    """Print what was measured, and compare it with what is promised."""
    with catalog.table(world.topic) as table:
        waits = waits_of(table)
    met = sum(each > 1 for each in tries)
    print(
        f"{MINUTES:g} min: {len(tries)} commits, {met} of which met a compaction, "
        f"{max(tries)} tries at most; {compactor.made} compactions, {compactor.lost} lost; p50 "
        f"of freshness {np.percentile(waits, 50):.1f} s, p99 {np.percentile(waits, 99):.1f} s"
    )
    assert find_problems(world) == ()
    assert compactor.made > MINUTES
    assert max(tries) <= ATTEMPTS
    assert np.percentile(waits, 99) < FRESH_SECONDS
