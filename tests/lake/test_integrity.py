"""What the readers of a Delta table let pass is found by looking at its files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.delta.integrity import refuse_damaged, translate_read_errors
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import DamagedTableError
from oncelake.ingestion.storage.checksums import seal, sidecar_of
from oncelake.ingestion.storage.location import Location
from tests.support.damage import (
    checkpoint,
    data_file,
    do,
    newest_commit,
    oldest_commit,
    second_newest_commit,
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of five commits, with a sealed checkpoint behind the second."""
    path = tmp_path / "orders"
    for number in range(5):
        write_deltalake(path, pa.table({"id": [number]}), mode="append")
        if number == 1:
            DeltaTable(path).create_checkpoint()
    seal(Location.of(checkpoint(path)))
    return path


def test_a_sound_table_passes(table: Path) -> None:
    """Nothing is wrong with what was just written."""
    refuse_damaged(DeltaLog(Location.of(table)))


def test_a_commit_that_left_its_checksum_is_missed(table: Path) -> None:
    """Readers see an older table; the checksum of the newest commit says that it was there."""
    newest = newest_commit(table)
    seal(Location.of(newest))
    newest.unlink()

    with pytest.raises(DamagedTableError, match="says that a commit is gone: the newest left is 3"):
        refuse_damaged(DeltaLog(Location.of(table)))


def test_a_draft_of_a_commit_that_died_is_no_commit(table: Path) -> None:
    """What a kill leaves before the rename speaks of nothing that was committed."""
    for name in (f".{5:020d}.json.c0ffee.tmp", f"..{5:020d}.json.c0ffee.tmp.crc"):
        (table / "_delta_log" / name).touch()

    refuse_damaged(DeltaLog(Location.of(table)))


def test_an_empty_commit_is_not_skipped(table: Path) -> None:
    """Readers take a file of no actions for a commit that changed nothing."""
    do("zero-length", second_newest_commit(table))
    assert DeltaTable(table).version() == 4

    with pytest.raises(DamagedTableError, match=r"3\.json is empty"):
        refuse_damaged(DeltaLog(Location.of(table)))


def test_a_hole_in_the_log_is_named(table: Path) -> None:
    """The missing version is said, not only that there is one."""
    second_newest_commit(table).unlink()

    with pytest.raises(DamagedTableError, match=r"3\.json is missing, and 4 is the newest"):
        refuse_damaged(DeltaLog(Location.of(table)))


def test_a_newest_commit_of_which_only_the_checkpoint_is_left_is_missed(table: Path) -> None:
    """Readers find all rows in the checkpoint; whoever commits finds no version to follow."""
    DeltaTable(table).create_checkpoint()
    newest_commit(table).unlink()
    assert DeltaTable(table).version() == 4

    with pytest.raises(DamagedTableError, match=r"4\.json is missing, which is the newest commit"):
        refuse_damaged(DeltaLog(Location.of(table)))


def test_a_checkpoint_that_is_not_as_it_was_sealed_is_named(table: Path) -> None:
    """A flipped bit that Parquet does not notice is in its checksums."""
    sealed = sidecar_of(Location.of(checkpoint(table))).path
    content = bytearray(sealed.read_bytes())
    content[-1] ^= 1
    sealed.write_bytes(content)
    assert DeltaTable(table).version() == 4

    with pytest.raises(DamagedTableError, match=r"checkpoint\.parquet is not as it was written"):
        refuse_damaged(DeltaLog(Location.of(table)))


def test_what_lies_behind_the_checkpoint_is_history(table: Path) -> None:
    """No reader of the newest version needs it."""
    do("garbage", oldest_commit(table))

    refuse_damaged(DeltaLog(Location.of(table)))


def test_files_that_are_lost_are_named(table: Path) -> None:
    """The first few by name, the others by number."""
    seal(Location.of(newest_commit(table)))
    for file in table.glob("*.parquet"):
        file.unlink()

    with pytest.raises(DamagedTableError, match=r"data file .*\.parquet is missing.* and 2 more"):
        refuse_damaged(DeltaLog(Location.of(table)))


def test_a_file_of_another_length_is_named(table: Path) -> None:
    """Both lengths are said."""
    file = data_file(table)
    file.write_bytes(file.read_bytes() + b"x")

    with pytest.raises(DamagedTableError, match=r"has \d+ bytes, and \d+ were committed"):
        refuse_damaged(DeltaLog(Location.of(table)))


def test_an_error_of_a_query_damages_no_table(table: Path) -> None:
    """What is raised over files that can all be read is a bug of ours, and passes as such."""
    with pytest.raises(pa.ArrowNotImplementedError), translate_read_errors(Location.of(table)):
        raise pa.ArrowNotImplementedError("Function 'equal' has no kernel")


def test_a_file_that_is_no_parquet_is_named_where_a_query_fails(table: Path) -> None:
    """Its length is right, and no checksum doubts it; reading it tells."""
    file = data_file(table)
    file.write_bytes(b"x" * file.stat().st_size)

    with (
        pytest.raises(DamagedTableError, match=rf"data file {file.name} cannot be read"),
        translate_read_errors(Location.of(table)),
    ):
        open_rows(Location.of(table)).to_table()


def test_a_file_of_an_older_version_is_named_where_that_is_asked_for(table: Path) -> None:
    """The newest version may be whole, and the one that a query reads be gone."""
    old = Path(DeltaTable(table, version=0).file_uris()[0])
    DeltaTable(table).optimize.compact()
    old.unlink()

    refuse_damaged(DeltaLog(Location.of(table)))
    with (
        pytest.raises(DamagedTableError, match=f"{old.name} is missing"),
        translate_read_errors(Location.of(table), 0),
    ):
        open_rows(Location.of(table), 0).to_table()
