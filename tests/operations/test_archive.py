"""What was taken away can be looked at, brought back, and deleted; tables by delta-rs, no Kafka."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.errors import (
    DamagedTableError,
    InvalidSpecError,
    RefusedError,
    StreamLockedError,
    TableReplacedError,
)
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.archive import archive_table, finish_swap, refuse_half_swapped
from oncelake.ingestion.lake.ledger import Ledger, copy_ledger, load_or_archive_ledger
from oncelake.ingestion.lake.lock import Holder, held_by_python
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.decisions import reset
from oncelake.ingestion.operations.history import archive
from oncelake.ingestion.settings import Settings, load_settings
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import UNKNOWN, CommitMetadata, Identity
from oncelake.testing import make, note
from tests.cli.shell import oncelake, row, type_on_terminal
from tests.support.quarantine import as_quarantine

WAITING = "1 record in quarantine that no redrive has sent in"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A lake with a table of ``orders`` that holds 1, and an archive where one holds 0."""
    made = Settings(lake=tmp_path / "lake", state=tmp_path / "state", streams=tmp_path / "streams")
    fill(made, 0)
    reset("orders", made, run_id="r", reason="a trial")
    fill(made, 1)
    return made


def fill(settings: Settings, value: int) -> None:
    """Write the tables of a stream whose every row holds a value."""
    paths = StreamPaths.of("orders", settings)
    rows = {"id": [value], "_seq": [1], "redriven_seq": pa.array([None], pa.int64())}
    for path in (paths.data, paths.quarantine):
        write_deltalake(path.path, as_quarantine(pa.table(rows)))
    Ledger(paths.ledger).put(row(1, delta_version=0))


def erase_all(settings: Settings) -> None:
    """Let the ledger say that a key was erased just now."""
    erasure = row(2, kind="erase", committed_at=dt.datetime.now(dt.UTC))
    Ledger(StreamPaths.of("orders", settings).ledger).put(erasure)


def damage(table: Location) -> None:
    """Make garbage of a table's log."""
    for commit in (table.path / "_delta_log").glob("*.json"):
        commit.write_text("garbage")


def value_of(settings: Settings) -> int:
    """Return the value that the stream's table holds."""
    path = StreamPaths.of("orders", settings).data
    (value,) = DeltaTable(path).to_pyarrow_table()["id"].to_pylist()
    return int(value)


def test_an_entry_says_what_it_is_and_why(settings: Settings) -> None:
    """Rows, waiting records and the reason are there to choose by."""
    (entry,) = archive.list_archive("orders", settings)

    assert entry.why == "reset: a trial"
    assert entry.tables == ("orders", "orders__ledger", "orders__quarantine")
    assert (entry.rows, entry.waiting) == (1, 1)
    assert entry.size_bytes > 0


def test_a_restore_changes_places_and_loses_nothing(settings: Settings) -> None:
    """The entry's tables are in place, the present ones in the archive, and the entry stays."""
    (entry,) = archive.list_archive("orders", settings)

    archive.restore("orders", entry.entry, settings, run_id="r")

    assert value_of(settings) == 0
    kept, added = archive.list_archive("orders", settings)
    assert (kept.entry, added.why) == (entry.entry, f"archive restore {entry.entry}")


def test_a_restore_that_was_cut_short_is_done_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash while copying leaves the stream as it was; the next restore begins anew."""
    (entry,) = archive.list_archive("orders", settings)
    copied, whole = [], shutil.copytree

    def copy_two(*paths: Path) -> None:
        if len(copied) == 2:
            raise KeyboardInterrupt
        copied.append(whole(*paths))

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copytree", copy_two)
        with pytest.raises(KeyboardInterrupt):
            archive.restore("orders", entry.entry, settings, run_id="r")
    before = value_of(settings)
    archive.restore("orders", entry.entry, settings, run_id="r")

    assert (before, value_of(settings)) == (1, 0)


def test_a_swap_that_was_cut_short_is_finished_by_the_next_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash while the tables change places ends with the restored ones in place."""
    (entry,) = archive.list_archive("orders", settings)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("oncelake.ingestion.lake.archive.hit", crash)
        with pytest.raises(KeyboardInterrupt):
            archive.restore("orders", entry.entry, settings, run_id="r")
    paths = StreamPaths.of("orders", settings)
    with held_by_python(paths, Holder.me("next")):
        finish_swap(paths)

    assert value_of(settings) == 0
    assert len(archive.list_archive("orders", settings)) == 2


def test_who_has_slept_past_its_lease_leaves_no_swap_for_the_next_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run would carry it out, in place of what others have ingested since."""

    def slept(_: StreamPaths) -> None:
        raise StreamLockedError("its lease is another's")

    with monkeypatch.context() as patch:
        patch.setattr("oncelake.ingestion.lake.archive.refuse_lost_lease", slept)
        with pytest.raises(StreamLockedError):
            reset("orders", settings, run_id="r", reason="another")

    refuse_half_swapped(StreamPaths.of("orders", settings))
    assert value_of(settings) == 1


@pytest.mark.parametrize("moves", range(3))
def test_a_reset_that_was_cut_short_is_finished_into_the_same_entry(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """Killed before any table is moved, nobody builds on what is left, and the entry is whole."""
    paths, moved, move = StreamPaths.of("orders", settings), [], shutil.move

    def move_some(*places: Path) -> str:
        if len(moved) == moves:
            raise KeyboardInterrupt
        moved.append(places)
        return str(move(*places))

    with monkeypatch.context() as patch:
        patch.setattr("shutil.move", move_some)
        with pytest.raises(KeyboardInterrupt):
            reset("orders", settings, run_id="r", reason="another")
    with pytest.raises(TableReplacedError, match="`reset: another` was cut short"):
        refuse_half_swapped(paths)
    with held_by_python(paths, Holder.me("next")):
        finish_swap(paths)
    refuse_half_swapped(paths)

    _, entry = archive.list_archive("orders", settings)
    archive.restore("orders", entry.entry, settings, run_id="r")
    assert (entry.why, value_of(settings)) == ("reset: another", 1)


def test_a_restore_leaves_a_rebuild_alone(settings: Settings) -> None:
    """What a rebuild has made so far lies elsewhere, and stays."""
    paths = StreamPaths.of("orders", settings)
    (entry,) = archive.list_archive("orders", settings)
    (paths.workshop.path / "orders").mkdir(parents=True)

    archive.restore("orders", entry.entry, settings, run_id="r")

    assert value_of(settings) == 0
    assert [path.name for path in paths.workshop.path.iterdir()] == ["orders"]
    assert not paths.restored.exists()


def test_what_is_no_whole_stream_is_refused(settings: Settings) -> None:
    """Nothing is changed: half a stream would be refused by every run."""
    paths = StreamPaths.of("orders", settings)
    (entry,) = archive.list_archive("orders", settings)
    shutil.rmtree(paths.archive / entry.entry / "orders__ledger")

    with pytest.raises(RefusedError, match="no whole stream"):
        archive.restore("orders", entry.entry, settings, run_id="r")

    assert value_of(settings) == 1


def test_what_was_erased_is_not_brought_back(settings: Settings) -> None:
    """An entry from before an erase may hold the key, so it can only be pruned."""
    (entry,) = archive.list_archive("orders", settings)
    erase_all(settings)

    with pytest.raises(RefusedError, match=f"oncelake archive prune orders {entry.entry}"):
        archive.restore("orders", entry.entry, settings, run_id="r")


def test_an_erase_that_a_rebuild_took_over_is_as_old_as_it_was(settings: Settings) -> None:
    """A table that was archived behind an erase holds no erased key, whatever is rebuilt later."""
    (entry,) = archive.list_archive("orders", settings)
    before = (entry.at - dt.timedelta(seconds=1)).isoformat()
    taken_over = row(
        2,
        kind="erase",
        committed_at=dt.datetime.now(dt.UTC),
        identity=Identity(cluster_id="c", topic_ids={}, keys=("id",), order=()),
        erased={"columns": ["id"], "salt": "s", "digest": "d", "at": before},
    )
    Ledger(StreamPaths.of("orders", settings).ledger).put(taken_over)
    # By another host's clock, it may have been made before that.
    with pytest.raises(RefusedError, match="a key was erased after"):
        archive.restore("orders", entry.entry, settings, run_id="r")
    (folder,) = StreamPaths.of("orders", settings).archive.path.iterdir()
    Ledger(Location.of(folder / "orders__ledger")).put(taken_over)

    archive.restore("orders", entry.entry, settings, run_id="r")

    assert value_of(settings) == 0


def test_an_erase_that_died_before_its_ledger_row_counts(settings: Settings) -> None:
    """Until a run heals it, only the table's log tells of it."""
    (entry,) = archive.list_archive("orders", settings)
    erasure = CommitMetadata(
        kind="erase",
        seq=2,
        run_id="r",
        epoch=1,
        identity=UNKNOWN,
        columns="",
        next=Offsets(),
        erased={"columns": ["id"], "salt": "s", "digest": "d"},
    )
    table = StreamPaths.of("orders", settings).table
    for before in (note(0), note(1), erasure):
        table.commit_note(before)

    with pytest.raises(RefusedError, match="a key was erased after"):
        archive.restore("orders", entry.entry, settings, run_id="r")


def test_an_erase_outside_the_lake_that_died_before_its_ledger_row_counts(
    settings: Settings,
) -> None:
    """Only a run of that sink brings it into the ledger, so an entry waits for one."""
    (entry,) = archive.list_archive("orders", settings)
    table = StreamPaths.of("orders", settings, SinkSpec.model_validate({"iceberg": {}})).table
    ledger = Ledger(StreamPaths.of("orders", settings).ledger)
    make(table)
    for seq in (0, 1):
        table.commit_note(note(seq))
    moved = {"table_id": table.log().table_id(), "committed_at": dt.datetime.now(dt.UTC)}
    ledger.put(row(1, **moved))
    table.commit_note(replace(note(2), kind="erase"))

    with pytest.raises(RefusedError, match="declare `sink: iceberg` again, and oncelake run"):
        archive.restore("orders", entry.entry, settings, run_id="r")

    assert (value_of(settings), list(archive.list_archive("orders", settings))) == (1, [entry])
    ledger.put(row(2, **moved))
    archive.restore("orders", entry.entry, settings, run_id="r")
    assert value_of(settings) == 0


def test_a_ledger_without_its_log_is_not_taken_for_none(settings: Settings) -> None:
    """It may have told of an erase."""
    (entry,) = archive.list_archive("orders", settings)
    shutil.rmtree(StreamPaths.of("orders", settings).ledger / "_delta_log")

    with pytest.raises(DamagedTableError, match="its _delta_log is gone"):
        archive.restore("orders", entry.entry, settings, run_id="r")


def test_a_damaged_ledger_in_the_archive_is_named_with_its_entry(settings: Settings) -> None:
    """It blocks only older entries, and these until a person says that it does not matter."""
    paths = StreamPaths.of("orders", settings)
    # The tables of these tests have no notes: the copy tells that no newer version wrote it.
    copy_ledger(paths)
    damage(paths.ledger)
    load_or_archive_ledger(paths)
    Ledger(paths.ledger).put(row(1))
    reset("orders", settings, run_id="r")
    older, damaged, newer = (each.entry for each in archive.list_archive("orders", settings))

    with pytest.raises(RefusedError, match=f"oncelake archive prune orders {damaged}"):
        archive.restore("orders", older, settings, run_id="r")
    archive.restore("orders", newer, settings, run_id="r")
    archive.prune("orders", (damaged,), settings, run_id="r")
    archive.restore("orders", older, settings, run_id="r")

    assert value_of(settings) == 0


def test_a_damaged_entry_is_listed_and_can_be_pruned(settings: Settings) -> None:
    """What cannot be counted is unknown, and the others are listed as ever."""
    paths = StreamPaths.of("orders", settings)
    damage(paths.data)
    damage(paths.quarantine)
    _, damaged_quarantine = archive_table(paths, [paths.data, paths.quarantine], why="damaged")

    sound, damaged = archive.list_archive("orders", settings)

    assert (sound.rows, damaged.rows, damaged.waiting) == (1, None, None)
    assert archive.waiting_records([damaged_quarantine]) == 0
    assert archive.prune("orders", (damaged.entry,), settings, run_id="r") == (damaged,)


def test_no_entry_outlives_what_tells_of_its_erased_key(settings: Settings) -> None:
    """The ledger of an erase goes with the older entries, or not at all."""
    erase_all(settings)
    reset("orders", settings, run_id="r")
    older, certificate = (each.entry for each in archive.list_archive("orders", settings))

    with pytest.raises(RefusedError, match=f"oncelake archive prune orders {older} {certificate}"):
        archive.prune("orders", (certificate,), settings, run_id="r")
    archive.prune("orders", (certificate, older, older), settings, run_id="r")

    assert archive.list_archive("orders", settings) == ()


def test_a_prune_that_was_cut_short_leaves_what_tells_of_an_erased_key(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order they are named, the oldest entry goes first."""
    erase_all(settings)
    reset("orders", settings, run_id="r")
    older, certificate = (each.entry for each in archive.list_archive("orders", settings))
    deleted, delete_all = [], Location.delete_all

    def delete_one(place: Location, *check: Callable[[], None]) -> None:
        if deleted:
            raise KeyboardInterrupt
        delete_all(place, *check)
        deleted.extend({older, certificate} & {place.name})

    monkeypatch.setattr(Location, "delete_all", delete_one)
    with pytest.raises(KeyboardInterrupt):
        archive.prune("orders", (certificate, older), settings, run_id="r")

    assert deleted == [older]


def test_a_remedy_can_be_typed_as_it_is_printed(home: Path) -> None:
    """Where there is no terminal, too."""
    settings = load_settings()
    fill(settings, 0)
    reset("orders", settings, run_id="r")
    fill(settings, 1)
    erase_all(settings)
    (entry,) = archive.list_archive("orders", settings)
    with pytest.raises(RefusedError) as refused:
        archive.restore("orders", entry.entry, settings, run_id="r")

    result = oncelake(*refused.value.remedy.split()[1:])

    assert (result.exit_code, archive.list_archive("orders", settings)) == (0, ()), result.output


def test_copies_of_a_killed_restore_go_with_their_entry(settings: Settings) -> None:
    """What is deleted for good lies nowhere else."""
    paths = StreamPaths.of("orders", settings)
    (entry,) = archive.list_archive("orders", settings)
    (paths.restored.path / "orders").mkdir(parents=True)

    archive.prune("orders", (entry.entry,), settings, run_id="r")

    assert not paths.restored.exists()


def test_pruning_waits_for_no_run(settings: Settings) -> None:
    """A run, or another decision, may be writing to the entry."""
    paths = StreamPaths.of("orders", settings)
    (entry,) = archive.list_archive("orders", settings)

    with held_by_python(paths, Holder.me("other")), pytest.raises(StreamLockedError, match="other"):
        archive.prune("orders", (entry.entry,), settings, run_id="r")

    assert len(archive.list_archive("orders", settings)) == 1


def test_a_restore_says_what_waits_in_quarantine(home: Path) -> None:
    """It went into the archive, where no redrive finds it, as with a reset."""
    settings = load_settings()
    fill(settings, 0)
    reset("orders", settings, run_id="r")
    fill(settings, 1)
    (entry,) = archive.list_archive("orders", settings)

    result = oncelake("archive", "restore", "orders", entry.entry, "--yes")

    assert f"orders: {WAITING} went into the archive" in result.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param("archive restore orders none --yes", 2, id="no such entry"),
        pytest.param("archive restore orders none", 2, id="nobody to ask"),
        pytest.param("reset orders", 2, id="nobody to ask for a reset"),
        pytest.param("reset orders --yes", 4, id="held by a run"),
        pytest.param("rebuild orders", 5, id="a rebuild without Kafka"),
    ],
)
def test_what_is_refused_moves_nothing_and_says_so_of_nothing(
    home: Path, command: str, code: int
) -> None:
    """Records of the quarantine are said to be archived only once they are."""
    settings = load_settings()
    fill(settings, 0)
    paths = StreamPaths.of("orders", settings)

    with held_by_python(paths, Holder.me("other")) if code == 4 else nullcontext():
        result = oncelake(*command.split())

    assert result.exit_code == code
    assert "into the archive" not in result.output.replace("its tables, which go into the", "")
    assert paths.quarantine.exists()


@pytest.mark.parametrize("command", ["reset orders", "archive restore orders none"])
def test_a_question_says_what_waits(home: Path, command: str) -> None:
    """Whoever is asked knows how many records would go out of sight."""
    fill(load_settings(), 0)

    code, shown = type_on_terminal(*command.split(), answer="n")

    assert (code, f", with {WAITING}? [y/N]" in shown) == (3, True), shown
    assert "into the archive" not in shown


def test_pruning_deletes_what_is_named_and_nothing_else(settings: Settings) -> None:
    """A name that is not there deletes nothing at all."""
    (entry,) = archive.list_archive("orders", settings)
    with pytest.raises(InvalidSpecError, match="oncelake archive list orders"):
        archive.prune("orders", (entry.entry, "20200101T000000000000Z"), settings, run_id="r")
    assert len(archive.list_archive("orders", settings)) == 1

    (deleted,) = archive.prune("orders", (entry.entry,), settings, run_id="r")

    assert deleted == entry
    assert archive.list_archive("orders", settings) == ()
    assert value_of(settings) == 1
