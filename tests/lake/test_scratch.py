"""Scratch folders: those of the living stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oncelake.ingestion.storage import processes
from oncelake.ingestion.storage.processes import ProcessId, scratch_of_this_process, sweep_scratch


@pytest.fixture
def dead() -> ProcessId:
    """A process that is gone."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        worker = ProcessId.of(process.pid)
        process.communicate(b"")
    return worker


def folder(state: Path, worker: ProcessId, *, hours: float) -> Path:
    """The folder of a process, with something in it, untouched for some hours."""
    mine = scratch_of_this_process(state).name.partition("-")[0]
    made = state / "scratch" / f"{mine}-{worker.pid}-{worker.started:.0f}"
    (made / "blockmgr-1").mkdir(parents=True)
    then = time.time() - 3600 * hours
    os.utime(made, (then, then))
    return made


def test_only_what_the_dead_have_left_is_swept(tmp_path: Path, dead: ProcessId) -> None:
    """Neither this process's folder goes, nor that of another whose id was given again."""
    mine = folder(tmp_path, ProcessId.of(os.getpid()), hours=5)
    reused = folder(tmp_path, ProcessId(pid=os.getpid(), started=1_000.0), hours=5)
    left = folder(tmp_path, dead, hours=5)
    (tmp_path / "scratch" / "spark-warehouse").mkdir()

    assert set(sweep_scratch(tmp_path)) == {left, reused}
    assert mine == scratch_of_this_process(tmp_path)
    assert sorted(each.name for each in (tmp_path / "scratch").iterdir()) == sorted(
        [mine.name, "spark-warehouse"]
    )


def test_a_jvm_that_outlives_its_driver_keeps_its_folder_for_a_while(
    tmp_path: Path, dead: ProcessId
) -> None:
    """It may still be writing; an erase, which leaves no trace, does not wait for it."""
    left = folder(tmp_path, dead, hours=0.5)

    assert sweep_scratch(tmp_path) == ()
    assert left.exists()
    assert sweep_scratch(tmp_path, even_if_young=True) == (left,)


def test_a_rebuild_that_was_killed_leaves_nothing_behind(tmp_path: Path, dead: ProcessId) -> None:
    """Its state is a folder within."""
    left = folder(tmp_path / "rebuild", dead, hours=5)

    assert sweep_scratch(tmp_path) == (left,)


def test_a_process_of_another_container_keeps_its_folder_while_it_uses_it(
    tmp_path: Path, dead: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id means nothing here; a folder that nobody has used for a day is swept all the same."""
    with monkeypatch.context() as patch:
        patch.setattr(processes, "this_machine", lambda: "elsewhere")
        folder(tmp_path, ProcessId(pid=dead.pid, started=1_000.0), hours=5)
        left = folder(tmp_path, dead, hours=25)
        folder(tmp_path, ProcessId.of(os.getpid()), hours=25)
        scratch_of_this_process(tmp_path)

    assert sweep_scratch(tmp_path, even_if_young=True) == (left,)
