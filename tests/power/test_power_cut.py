"""Tables on a disk whose power is cut: what was sealed is there, what was not is undone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.delta.durability import seal_commits
from oncelake.ingestion.delta.integrity import refuse_damaged
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import DamagedTableError
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.heal import undo_half_written_commits
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location
from tests.power.batches import Subject, cut_while_writing
from tests.support.damage import checkpoint, data_file, newest_commit
from tests.trials.power import Disk, mounted_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of the test's own."""
    with mounted_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def table(disk: Disk) -> Location:
    """A table of two sealed commits."""
    path = Location.of(disk.path / "orders")
    for number in range(2):
        append(path, number)
        seal_commits(path)
    return path


def append(table: Location, number: int) -> None:
    """Commit a row, as delta-rs does it."""
    write_deltalake(str(table), pa.table({"id": [number]}), mode="append")


def rows(table: Location) -> list[int]:
    """Return the ids of a table that is whole."""
    refuse_damaged(DeltaLog(table))
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist())


def undo(table: Location) -> list[str]:
    """Undo what is half-written of the stream whose table it is."""
    folder = table.parent.path
    paths = StreamPaths.of("orders", Settings(lake=folder, state=folder))
    return list(undo_half_written_commits(paths))


def test_what_is_not_written_out_is_gone(disk: Disk) -> None:
    """The disk of these tests does lose what nobody has synced."""
    append(Location.of(disk.path / "orders"), 1)

    disk.lose_power()

    assert not (disk.path / "orders").exists()


def test_a_sealed_commit_outlives_a_power_cut(disk: Disk, table: Location) -> None:
    """Every file of it is on the disk: data, log, checksums, and the names of them all."""
    append(table, 2)
    DeltaTable(str(table)).create_checkpoint()
    seal_commits(table)
    before = {file: file.read_bytes() for file in table.path.rglob("*") if file.is_file()}

    disk.lose_power()

    hint = table.path / "_delta_log" / "_last_checkpoint"
    found = {file: file.read_bytes() for file in table.path.rglob("*") if file.is_file()}
    assert found | {hint: b""} == before | {hint: b""}
    assert rows(table) == [0, 1, 2]
    assert undo(table) == []


def names_alone(disk: Disk, _: Location) -> None:
    """Let another process sync a file of its own."""
    disk.write_journal()


def the_commit(_: Disk, table: Location) -> None:
    """Write out the commit's file, without what it names."""
    Location.of(newest_commit(table)).sync()


def the_data(_: Disk, table: Location) -> None:
    """Write out the data file, without the commit that names it."""
    files = set(DeltaTable(str(table)).file_uris())
    older = set(DeltaTable(str(table), version=1).file_uris())
    Location.of((files - older).pop().removeprefix("file://")).sync()


def the_checkpoint(_: Disk, table: Location) -> None:
    """Write out the checkpoint, which speaks of a commit that is not there."""
    Location.of(checkpoint(table)).sync()


@pytest.mark.parametrize("write_out", [names_alone, the_commit, the_data, the_checkpoint])
def test_a_commit_that_a_power_cut_left_half_written_is_undone(
    disk: Disk, table: Location, write_out: Callable[[Disk, Location], None]
) -> None:
    """It is refused with the way out of it; a run undoes it, and what comes next is whole."""
    append(table, 2)
    DeltaTable(str(table)).create_checkpoint()
    write_out(disk, table)

    disk.lose_power()

    with pytest.raises(DamagedTableError, match=r"power cut leaves it.*Next: oncelake run orders"):
        rows(table)
    assert all(str(table) in said for said in undo(table))
    assert rows(table) == [0, 1]
    append(table, 3)
    seal_commits(table)
    disk.lose_power()
    assert rows(table) == [0, 1, 3]


def test_a_first_commit_that_is_half_written_takes_the_table_with_it(disk: Disk) -> None:
    """Nothing in it was ever told of, and another is made in its place."""
    path = Location.of(disk.path / "orders__quarantine")
    append(path, 1)
    disk.write_journal()
    disk.lose_power()

    (said,) = undo(path)

    assert "is empty or cut short" in said
    assert not path.exists()
    assert not [*disk.path.glob(".archive/orders/*")]


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_batch_is_undone_behind_any_number_of_commits_of_others(
    disk: Disk, table: Location, *, is_cleaned: bool
) -> None:
    """What was sealed is far back, or Delta has removed it but for its checkpoint."""
    for number in range(2, 105):
        append(table, number)
        if is_cleaned and number == 2:
            DeltaTable(str(table)).create_checkpoint()
            seal_commits(table)
    if is_cleaned:
        for commit in sorted((table.path / "_delta_log").glob("*.json"))[:3]:
            for file in (commit, commit.with_name(f".{commit.name}.crc")):
                file.unlink(missing_ok=True)
    newest_commit(table).write_bytes(b"")

    (said,) = undo(table)

    assert "is empty or cut short" in said
    assert DeltaTable(str(table)).version() == 103


@pytest.mark.parametrize("commits", [1, 3])
def test_a_table_that_was_never_sealed_is_not_undone(tmp_path: Path, commits: int) -> None:
    """It is somebody else's, or a copy without hidden files; what it lacks is told as damage."""
    path = Location.of(tmp_path / "orders")
    for number in range(commits):
        append(path, number)
    data_file(path).unlink()
    before = {file for file in tmp_path.rglob("*") if file.is_file()}

    assert undo(path) == []
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == before
    with pytest.raises(DamagedTableError, match="is missing"):
        rows(path)


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_table_that_was_just_being_made_is_removed(tmp_path: Path, has_rows: bool) -> None:
    """It is empty; where files of rows lie beside its log, it is none of ours."""
    path = Location.of(tmp_path / "orders")
    (path / "_delta_log" / f"{0:020d}.json").put(b"")
    if has_rows:
        (path / "part-0.parquet").put(b"PAR1")

    assert len(undo(path)) == (not has_rows)
    assert path.exists() == has_rows


def test_checksums_that_are_half_written_are_of_a_commit_that_is(table: Location) -> None:
    """The JVM gives a file its checksums after its name; an empty one says that bits flipped."""
    append(table, 2)
    commit = newest_commit(table)
    commit.with_name(f".{commit.name}.crc").touch()

    (said,) = undo(table)

    assert commit.name in said
    assert rows(table) == [0, 1]


def test_power_cuts_while_batches_are_written_lose_and_double_nothing(disk: Disk) -> None:
    """Quarantine, table and ledger go on from any moment, and hold what was acknowledged."""
    subject = Subject(disk)
    for seed in range(6):
        assert cut_while_writing(subject, random.Random(seed)) == (), f"seed {seed}"


def test_a_sealed_commit_that_is_damaged_is_not_undone(disk: Disk, table: Location) -> None:
    """What a run has gone on from is never taken back: it is refused, as all damage is."""
    data_file(table).write_bytes(b"")
    newest_commit(table).write_bytes(b"")

    assert undo(table) == []
    with pytest.raises(DamagedTableError, match="is empty"):
        rows(table)


def test_a_checkpoint_that_is_half_written_is_written_again(disk: Disk, table: Location) -> None:
    """What it stands for is still in the log, and no commit is undone for it."""
    DeltaTable(str(table)).create_checkpoint()
    disk.write_journal()
    disk.lose_power()

    (said,) = undo(table)

    assert "checkpoint.parquet is empty" in said
    assert rows(table) == [0, 1]
