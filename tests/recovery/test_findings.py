"""What another process left half-done, and each command that meets it: it ends it, or can go on.

One stream is ingested once; each cell of the table plants one finding in a copy of its lake, and
gives one command. Those that hold the stream's lock end what they find; those that only look change
nothing, and are refused with a command that ends it, or tell what they can.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import pytest

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.delta.log_files import commit_file
from oncelake.ingestion.errors import (
    DamagedTableError,
    IngestionError,
    InvalidSpecError,
    RefusedError,
)
from oncelake.ingestion.lake import archive as lake_archive
from oncelake.ingestion.operations.decisions import accept, adopt_topic, reset
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history import archive
from oncelake.ingestion.operations.history.rewind import read_history, rewind
from oncelake.ingestion.operations.quarantine.inspect import inspect
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.recovery.standing import is_half_done
from oncelake.ingestion.storage.checksums import sidecar_of
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.verify.verify import verify
from tests.support.damage import newest_commit
from tests.support.world import World, row

ROWS = [row(1, "a"), row(2, "b"), row(4, "d")]


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """A stream of two batches: a bad record and a delete are in the first."""
    module_world.send(row(1, "a"), row(2, "b"), row(3, "c"), b"bad")
    module_world.send(None, id=3)
    module_world.run()
    module_world.send(row(4, "d"))
    module_world.run()
    paths, entry = module_world.paths, lake_archive.new_entry()
    for table in (paths.data, paths.quarantine, paths.tombstones, paths.ledger):
        table.copy_to(paths.archive / entry / table.name)
    return module_world


@pytest.fixture
def copied(ingested: World, tmp_path: Path) -> World:
    """The stream, with a lake and a state of the test's own."""
    shutil.copytree(ingested.settings.state, tmp_path / "state")
    return ingested.copied_to(tmp_path / "lake", state=tmp_path / "state")


def half_swap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die while a copy of the tables takes their places."""
    paths = world.paths
    for table in (paths.data, paths.quarantine, paths.tombstones, paths.ledger):
        table.copy_to(paths.restored / table.name)

    def die(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lake_archive, "hit", die)
        with pytest.raises(KeyboardInterrupt):
            lake_archive.swap_tables(paths, paths.restored, why="archive restore")


def half_written_commit(world: World, _: pytest.MonkeyPatch) -> None:
    """Lose the power behind the data table's newest commit, before it is on the disk."""
    forget_newest(world.paths.ledger)
    cut(world.paths.data)


def half_written_ledger(world: World, _: pytest.MonkeyPatch) -> None:
    """Lose the power behind the ledger's newest commit."""
    cut(world.paths.ledger)


def unrecorded_commit(world: World, _: pytest.MonkeyPatch) -> None:
    """Die between a commit and its row in the ledger."""
    forget_newest(world.paths.ledger)


def lost_ledger(world: World, _: pytest.MonkeyPatch) -> None:
    """Lose the ledger."""
    shutil.rmtree(world.paths.ledger.path)


def damaged_ledger(world: World, _: pytest.MonkeyPatch) -> None:
    """Find the ledger's files to be something else."""
    for file in world.paths.ledger.path.glob("*.parquet"):
        file.write_bytes(b"PAR1 and nothing else")


def lost_checkpoint(world: World, _: pytest.MonkeyPatch) -> None:
    """Lose what Spark remembers of the stream."""
    shutil.rmtree(world.paths.checkpoints)


def cut(table: Location) -> None:
    """Leave of a table's newest commit what a power cut leaves: its name."""
    commit = newest_commit(table)
    sidecar_of(Location.of(commit)).delete()
    commit.write_bytes(b"")


def forget_newest(table: Location) -> None:
    """Take the newest commit out of a table's log."""
    commit = newest_commit(table)
    assert commit.name != commit_file(0)
    sidecar_of(Location.of(commit)).delete()
    commit.unlink()


def run(world: World) -> None:
    """Run the stream."""
    assert world.run().is_balanced


def redrive(world: World) -> None:
    """Send in again what waits: it is as bad as it was."""
    assert world.redrive().waiting == 1


def replay(world: World) -> None:
    """Read everything again."""
    assert world.replay().batches


def upkeep(world: World) -> None:
    """Maintain the tables."""
    assert maintain(world.spec, world.settings, run_id="m").tables


def erase_key(world: World) -> None:
    """Erase a key that nothing is known of."""
    erase(world.spec, world.settings, key='{"id": 99}', reason="asked", run_id="e")


def rewind_to_first(world: World) -> None:
    """Go back to the first batch, and read on from there."""
    rewind(world.spec, world.settings, to="seq:1", reason="try", run_id="w")


def accept_nothing(world: World) -> None:
    """Accept: there is nothing that must be."""
    with pytest.raises(InvalidSpecError, match="nothing to accept"):
        accept(world.spec, world.settings, reason="known", run_id="a")


def adopt_nothing(world: World) -> None:
    """Adopt the topic: it is the same."""
    with pytest.raises(InvalidSpecError, match="nothing to adopt"):
        adopt_topic(world.spec, world.settings, run_id="a")


def rebuild(world: World) -> None:
    """Make the table anew."""
    assert world.rebuild().old.named


def reset_stream(world: World) -> None:
    """Take the tables away; the next run makes them again."""
    reset(world.name, world.settings, run_id="r", sink=world.spec.sink)


def restore_entry(world: World) -> None:
    """Put an entry of the archive in the tables' place."""
    entry = archive.list_archive(world.name, world.settings)[0]
    archive.restore(world.name, entry.entry, world.settings, run_id="r")


def look_at_status(world: World) -> None:
    """Ask where the stream stands."""
    declared = DeclaredStream(name=world.name, path=Path("x.yaml"), spec=world.spec, error=None)
    status = StatusReader(world.settings).read_status(declared)
    for problem in status.problems:
        raise RefusedError(world.name, problem.message, remedy=problem.remedy or "nothing")


def look_at_history(world: World) -> None:
    """List the savepoints."""
    assert read_history(world.paths)


def look_at_quarantine(world: World) -> None:
    """List what waits."""
    assert inspect(world.name, world.paths).waiting == 1


def prove(world: World) -> None:
    """Verify the stream."""
    for difference in verify(world.spec, world.settings).differences:
        raise RefusedError(world.name, difference.what, remedy="the proof")


Command = Callable[[World], None]
Planting = Callable[[World, pytest.MonkeyPatch], None]
WRITING: tuple[Command, ...] = (
    run,
    redrive,
    replay,
    upkeep,
    erase_key,
    rewind_to_first,
    accept_nothing,
    adopt_nothing,
    rebuild,
    reset_stream,
    restore_entry,
)
LOOKING: tuple[Command, ...] = (look_at_status, look_at_history, look_at_quarantine, prove)
FINDINGS: tuple[Planting, ...] = (
    half_swap,
    half_written_commit,
    half_written_ledger,
    unrecorded_commit,
    lost_ledger,
    damaged_ledger,
    lost_checkpoint,
)


def name_of(value: Any) -> str:
    """Name a cell's parts."""
    return str(value.__name__)


@pytest.mark.parametrize(
    ("command", "finding"),
    [
        pytest.param(command, finding, id=f"{name_of(command)}-{name_of(finding)}")
        for command, finding in product(WRITING, FINDINGS)
        if (command, finding) != (restore_entry, damaged_ledger)
    ],
)
def test_whoever_writes_ends_what_was_left_half_done(
    copied: World, finding: Planting, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command does what it is for, nothing is left half-done, and the stream goes on."""
    finding(copied, monkeypatch)

    command(copied)

    assert not is_half_done(copied.paths)
    report = copied.run()
    assert (report.is_balanced, report.lag, copied.rows()) == (True, 0, ROWS)
    assert {each.seq for each in copied.ledger} == {*range(1, report.seq + 1)}


def test_a_restore_needs_a_ledger_that_tells_what_was_erased(
    copied: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the stream's file it cannot make one again; each remedy leads on."""
    damaged_ledger(copied, monkeypatch)

    with pytest.raises(DamagedTableError, match=f"Next: oncelake run {copied.name}"):
        restore_entry(copied)
    copied.run()
    with pytest.raises(RefusedError, match="Next: if none was, oncelake archive prune"):
        restore_entry(copied)
    damaged = archive.list_archive(copied.name, copied.settings)[-1]
    archive.prune(copied.name, (damaged.entry,), copied.settings, run_id="p")
    restore_entry(copied)

    assert copied.rows() == ROWS


@pytest.mark.parametrize("finding", FINDINGS, ids=name_of)
@pytest.mark.parametrize("command", LOOKING, ids=name_of)
def test_whoever_looks_tells_what_it_can_or_who_ends_it(
    copied: World, finding: Planting, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes nothing: what it cannot look through it names, with the command that ends it."""
    finding(copied, monkeypatch)

    said = outcome(copied, command)

    if said is not None:
        assert f"oncelake run {copied.name}" in said
        copied.run()
        command(copied)


def outcome(world: World, command: Command) -> str | None:
    """Return what a command is refused with, or ``None`` where it is not."""
    try:
        command(world)
    except IngestionError as refusal:
        return str(refusal)
    return None
