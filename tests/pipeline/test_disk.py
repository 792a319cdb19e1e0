"""Volumes that fill up or turn read-only under a run: named, and healed when they are mended."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from oncelake.ingestion.errors import StorageError
from tests.support.long import twins
from tests.support.volumes import Volume, mounted
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.parametrize("place", ["data", "state", *twins("quarantine", "lake", "ledger")])
def test_a_full_or_read_only_volume_is_named_and_healed(world: World, place: str) -> None:
    """Each run says which volume and what is free; the one after ends with every record once."""
    folders = {"lake": world.settings.lake, "state": world.settings.state}
    folder = Path(folders.get(place) or getattr(world.paths, place))
    with mounted(folder) as volume:
        world.send(row(1, "a"), b"bad")
        world.run()
        world.send(row(2, "b"), row(1, "c"), b"more bad")

        volume.read_only()
        closed = _refused(world)
        volume.writable()
        # The next run would make room by dropping it.
        shutil.rmtree(world.paths.checkpoints)
        volume.fill()
        full = _refused(world)
        volume.make_space()
        report = world.run()

        assert re.search(rf"No space left on device: {_named(volume)}", full)
        assert re.search(rf"Read-only file system: {_named(volume)}", closed)
        for message in (full, closed):
            assert f"oncelake run {world.topic}" in message
        assert report.lag == 0
        assert world.rows() == [row(1, "c"), row(2, "b")]
        assert [(each.seq, each.balanced) for each in world.ledger] == [(1, True), (2, True)]
        assert world.run().batches == ()
        # What the runs left that were refused is gone, once their batch was another's.
        assert [each["value"] for each in world.quarantined()] == [b"bad", b"more bad"]


def test_a_full_scratch_volume_is_named(world: World) -> None:
    """Where Spark itself finds no room to start, the run says so and exits 5."""
    world.send(row(1, "a"))
    world.write_declaration()
    with mounted(world.settings.state, options="size=1m") as volume:
        volume.fill()
        ran = world.run_elsewhere()

    assert ran.returncode == 5, ran.stderr
    said = " ".join(ran.stderr.split())
    assert "No space left on device" in said
    assert f"oncelake run {world.topic}" in said


def _refused(world: World) -> str:
    with pytest.raises(StorageError) as refusal:
        world.run()
    assert refusal.value.exit_code == 5
    return str(refusal.value)


def _named(volume: Volume) -> str:
    return rf"{re.escape(str(volume.path))} \(holds .*; [\d,]+ of [\d,]+ bytes are free\)"
