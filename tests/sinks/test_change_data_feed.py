"""A table's change data feed is the exact history of its rows, whoever reads it."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.declaration.partitions import parse_partition
from oncelake.ingestion.delta.durability import FEED_FOLDER, find_half_written
from oncelake.ingestion.delta.features import FEED, unwritable_features
from oncelake.ingestion.delta.files import read_delta
from oncelake.ingestion.delta.vacuum import vacuum
from oncelake.ingestion.sinks.delta import transaction
from oncelake.ingestion.sinks.delta.compaction import compact
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import TableDefinition
from tests.sinks.test_delta_transaction import COLUMNS, STREAM, change, commit, note

Names = dict[Any, Any]
DAY = dt.timedelta(days=1)


def made(folder: Path, *, marks: bool, by: str = "") -> DeltaSinkTable:
    """Make a table with a feed, perhaps with partitions."""
    found = DeltaSinkTable(STREAM, Location.of(folder / STREAM), {FEED: "true"})
    columns = (*parse_columns(COLUMNS), *parse_columns("_offset BIGINT, _seq BIGINT"))
    partitions = (parse_partition(by),) if by else ()
    found.create(
        TableDefinition(
            columns=columns, keys=("id",), deletion_vectors=marks, partitions=partitions
        )
    )
    found.commit_note(note(0))
    return found


def feed(table: DeltaSinkTable, version: int) -> list[tuple[str, Any, Any]]:
    """Return what delta-rs reads of one version: what became of which id and name."""
    read = pa.table(DeltaTable(table.path.path).load_cdf(version, version))
    named = read.select(["_change_type", "id", "name"]).to_pylist()
    return sorted(((*each.values(),) for each in named), key=str)


def expected(before: Names, after: Names) -> list[tuple[str, Any, Any]]:
    """Compare the rows before and after a commit in which every update changes its row."""
    changes = [("insert", id, after[id]) for id in after.keys() - before.keys()]
    changes += [("delete", id, before[id]) for id in before.keys() - after.keys()]
    for id in before.keys() & after.keys():
        if before[id] != after[id]:
            changes += [("update_preimage", id, before[id]), ("update_postimage", id, after[id])]
    return sorted(changes, key=str)


@pytest.mark.parametrize("marks", [False, True], ids=["files", "vectors"])
@pytest.mark.parametrize(("seed", "by"), [(0, ""), (1, ""), (2, "name"), (3, "id")])
def test_the_feed_tells_what_each_batch_has_changed(
    tmp_path: Path, seed: int, by: str, *, marks: bool
) -> None:
    """Inserts, updates with the row before, and deletes; upkeep in between changes nothing."""
    dice, table, now = random.Random(seed), made(tmp_path, marks=marks, by=by), Names()
    for seq in range(1, 9):
        ids = dice.sample(range(60), 20)
        gone = [id for id in ids if id in now and dice.random() < 0.4]
        kept = [id for id in ids if id not in gone]
        new = {id: f"{seq}-{id}" for id in kept}
        after = {id: name for id, name in (now | new).items() if id not in gone}
        inserted = {id: name for id, name in new.items() if id not in now}
        updated = {id: name for id, name in new.items() if id in now}

        commit(table, seq, change(table, inserted=inserted, updated=updated, deleted=gone))

        assert feed(table, read_delta(table.path).version()) == expected(now, after)
        now = after
        compact(table.path, target_bytes=1 << 20)
        table.seal()
    assert unwritable_features(read_delta(table.path)) == []
    assert find_half_written(table.path) is None


@pytest.mark.parametrize("marks", [False, True], ids=["files", "vectors"])
def test_the_feed_of_a_rewind_tells_of_the_files_that_go_and_come(
    tmp_path: Path, *, marks: bool
) -> None:
    """Their rows as deleted, and as inserted; the batch behind it tells its changes again."""
    table = made(tmp_path, marks=marks)
    commit(table, 1, change(table, inserted={1: "a", 2: "b", 3: "c"}))
    then = read_delta(table.path).version()
    commit(table, 2, change(table, updated={1: "A"}, deleted=[2]))

    table.restore(then, replace(note(3), kind="rewind"))
    commit(table, 4, change(table, updated={3: "C"}))

    before, after = {1: "A", 3: "c"}, {1: "a", 2: "b", 3: "c"}
    told = [("delete", *row) for row in before.items()]
    told += [("insert", *row) for row in after.items()]
    version = read_delta(table.path).version()
    assert feed(table, version - 1) == sorted(told, key=str)
    assert feed(table, version) == expected(after, after | {3: "C"})


def test_a_batch_that_failed_leaves_no_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the log nor on the disk; the next try tells its changes once."""
    table = made(tmp_path, marks=False)
    commit(table, 1, change(table, inserted={1: "a", 2: "b"}))
    put, failed = transaction.put_commit, list[str]()

    def fail_once(*given: Any, **more: Any) -> None:
        if not failed:
            failed.append("once")
            raise CommitFailedError("somebody was first")
        put(*given, **more)

    monkeypatch.setattr(transaction, "put_commit", fail_once)
    commit(table, 2, change(table, updated={1: "A"}))

    assert failed
    assert len([*(table.path.path / FEED_FOLDER).glob("part-*")]) == 1
    assert feed(table, read_delta(table.path).version()) == expected({1: "a"}, {1: "A"})


@pytest.mark.parametrize("marks", [False, True], ids=["files", "vectors"])
def test_the_feed_of_a_truncate_tells_of_its_rows(tmp_path: Path, *, marks: bool) -> None:
    """It is a delete as any other, in a partitioned table, too; the feed is read over it."""
    table = made(tmp_path, marks=marks, by="name")
    commit(table, 1, change(table, inserted={1: "a", 2: "b", 3: "a"}))
    ids = pa.table({"id": pa.array([1, 2], pa.int64())})

    table.delete(ids, note(2))

    version = read_delta(table.path).version()
    assert feed(table, version) == expected({1: "a", 2: "b"}, {})
    commit(table, 3, change(table, updated={3: "c"}))
    told = pa.table(DeltaTable(table.path.path).load_cdf(0)).column("_change_type").to_pylist()
    assert Counter(told) == {"insert": 3, "delete": 2, "update_preimage": 1, "update_postimage": 1}


def test_a_feed_is_kept_for_the_window_and_no_longer(tmp_path: Path) -> None:
    """Upkeep leaves what is younger; what an erase has taken out is in no file of a feed."""
    table = made(tmp_path, marks=True)
    folder = table.path.path / FEED_FOLDER
    commit(table, 1, change(table, inserted={1: "a", 2: "secret"}))
    commit(table, 2, change(table, updated={1: "A"}, deleted=[]))
    commit(table, 3, change(table, updated={2: "secret too"}))
    vacuum(table.path, window=DAY)
    assert len([*folder.glob("part-*")]) == 2

    written = table.written_files()
    table.erase(pa.table({"id": pa.array([2], pa.int64())}), note(4))
    table.remove_older_versions(written)

    assert not [*folder.iterdir()]
    assert not [
        path.name
        for path in table.path.path.rglob("*")
        if path.is_file() and b"secret" in path.read_bytes()
    ]


def test_a_power_cut_that_takes_the_feed_is_noticed(tmp_path: Path) -> None:
    """A commit whose feed is not wholly on the disk was never wholly there."""
    table = made(tmp_path, marks=False)
    commit(table, 1, change(table, inserted={1: "a"}))
    table.seal()
    commit(table, 2, change(table, updated={1: "b"}))
    [file] = (table.path.path / FEED_FOLDER).glob("*.parquet")

    os.truncate(file, 10)

    found = find_half_written(table.path)
    assert found is not None
    assert file.name in found.problem


def test_a_table_that_is_there_gets_a_feed(tmp_path: Path) -> None:
    """The next run turns it on; from then on its readers are told."""
    plain = DeltaSinkTable(STREAM, Location.of(tmp_path / STREAM))
    columns = (*parse_columns(COLUMNS), *parse_columns("_offset BIGINT, _seq BIGINT"))
    plain.create(TableDefinition(columns=columns, keys=("id",)))
    plain.commit_note(note(0))
    commit(plain, 1, change(plain, inserted={1: "a"}))
    table = DeltaSinkTable(STREAM, plain.path, {FEED: "true"})

    for _ in range(2):
        table.configure(deletion_vectors=False)
    begin = read_delta(table.path).version()
    commit(table, 2, change(table, updated={1: "b"}))

    assert read_delta(table.path).version() == begin + 1
    assert feed(table, begin + 1) == expected({1: "a"}, {1: "b"})
