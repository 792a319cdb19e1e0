"""What was taken away can be looked at, brought back, and deleted; tables by delta-rs, no Kafka."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ingestion.errors import InvalidSpecError, RefusedError
from ingestion.lake.archive import finish_swap
from ingestion.lake.ledger import Ledger
from ingestion.lake.lock import Holder, held_by_python
from ingestion.lake.paths import StreamPaths
from ingestion.operations import archive
from ingestion.operations.decisions import reset
from ingestion.settings import Settings
from tests.cli.shell import row


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
        write_deltalake(path, pa.table(rows))
    Ledger(paths.ledger).put(row(1))


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
        patch.setattr("ingestion.lake.archive.hit", crash)
        with pytest.raises(KeyboardInterrupt):
            archive.restore("orders", entry.entry, settings, run_id="r")
    paths = StreamPaths.of("orders", settings)
    with held_by_python(paths, Holder.me("next")):
        finish_swap(paths)

    assert value_of(settings) == 0
    assert len(archive.list_archive("orders", settings)) == 2


def test_what_is_no_whole_stream_or_meets_a_rebuild_is_refused(settings: Settings) -> None:
    """Nothing is changed: half a stream would be refused by every run, a rebuild would be lost."""
    paths = StreamPaths.of("orders", settings)
    (entry,) = archive.list_archive("orders", settings)
    (paths.workshop / "orders").mkdir(parents=True)
    with pytest.raises(RefusedError, match="a rebuild is under way"):
        archive.restore("orders", entry.entry, settings, run_id="r")
    shutil.rmtree(paths.workshop)
    shutil.rmtree(paths.archive / entry.entry / "orders__ledger")
    with pytest.raises(RefusedError, match="no whole stream"):
        archive.restore("orders", entry.entry, settings, run_id="r")

    assert value_of(settings) == 1


def test_what_was_erased_is_not_brought_back(settings: Settings) -> None:
    """An entry from before an erase may hold the key, so it can only be pruned."""
    (entry,) = archive.list_archive("orders", settings)
    erasure = row(2, kind="erase", committed_at=dt.datetime.now(dt.UTC))
    Ledger(StreamPaths.of("orders", settings).ledger).put(erasure)

    with pytest.raises(RefusedError, match=f"oncelake archive prune orders {entry.entry}"):
        archive.restore("orders", entry.entry, settings, run_id="r")


def test_pruning_deletes_what_is_named_and_nothing_else(settings: Settings) -> None:
    """A name that is not there deletes nothing at all."""
    (entry,) = archive.list_archive("orders", settings)
    with pytest.raises(InvalidSpecError, match="oncelake archive list orders"):
        archive.prune("orders", (entry.entry, "20200101T000000000000Z"), settings)
    assert len(archive.list_archive("orders", settings)) == 1

    (deleted,) = archive.prune("orders", (entry.entry,), settings)

    assert deleted == entry
    assert archive.list_archive("orders", settings) == ()
    assert value_of(settings) == 1
