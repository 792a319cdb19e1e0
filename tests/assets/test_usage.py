"""What a materialization says that its run has used: CPU time, and bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from oncelake.assets.metadata import cpu_seconds
from tests.assets.shell import materialize
from tests.support.long import twins
from tests.support.world import World, row


def usage(run: dg.ExecuteInProcessResult, stream: str) -> dict[str, Any]:
    """Return what the materialization of a stream says that its run has used."""
    assert run.success
    (told,) = (
        each
        for each in run.asset_materializations_for_node(f"ingest_{stream}")
        if each.asset_key == dg.AssetKey(stream)
    )
    names = ("cpu_seconds", "bytes_read", "bytes_written")
    return {name: told.metadata[name].value for name in names if name in told.metadata}


def data_files(world: World) -> set[Path]:
    """Return the data files of the stream's own table, wherever its sink puts them."""
    files = Path(world.settings.lake).rglob("*.parquet")
    return {each for each in files if f"{world.topic}__" not in str(each)}


@pytest.mark.kafka
@pytest.mark.spark
# Dagster's own, wherever one resource holds another.
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run:DeprecationWarning")
@pytest.mark.parametrize(
    "declared",
    [{"sink": "delta"}, {"deletion_vectors": True}, *twins({"sink": "iceberg"})],
    ids=str,
)
def test_a_run_says_what_it_has_used(
    world: World, instance: dg.DagsterInstance, declared: dict[str, Any]
) -> None:
    """The bytes are those of the records' values, and of the files that came into the table."""
    world.declare(**declared)
    for records in ([row(1, "a"), row(2, "b")], [row(1, "c")]):
        world.send(*records)
        before, began = data_files(world), cpu_seconds()

        used = usage(materialize(world, instance), world.topic)

        new = data_files(world) - before
        assert used["bytes_read"] == sum(len(json.dumps(each).encode()) for each in records)
        assert used["bytes_written"] == sum(each.stat().st_size for each in new) > 0
        assert 0 < used["cpu_seconds"] <= cpu_seconds() - began
    assert usage(materialize(world, instance), world.topic).keys() == {"cpu_seconds"}


def test_cpu_time_is_that_of_children_too_dead_or_alive() -> None:
    """What a process that still runs has used counts, and so does that of one that has ended."""
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    began = cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        own = time.process_time()
        alive = cpu_seconds() - began
        child.communicate(b"\n")
    dead = cpu_seconds() - began

    assert 0.4 < alive < 0.5 + own
    # Of a process that lives the kernel tells hundredths, of one that has ended microseconds.
    assert dead > alive - 0.02
