"""A rebuild's table in a branch: as good as one of its own, and nothing that others notice."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from oncelake.ingestion.declaration.ddl import parse_columns, system_columns
from oncelake.ingestion.declaration.partitions import parse_partition
from oncelake.ingestion.declaration.sinks import REBUILD, IcebergSink, SinkPart
from oncelake.ingestion.errors import (
    CommitConflictError,
    MissingRightError,
    RefusedError,
    SinkUnavailableError,
    TableBusyError,
)
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.iceberg import branches
from oncelake.ingestion.sinks.iceberg import table as sink
from oncelake.ingestion.sinks.iceberg.files import files_in_folder
from oncelake.ingestion.sinks.iceberg.table import IcebergTable, open_table
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import TableDefinition
from oncelake.testing.tables import (
    begin,
    change,
    commit,
    keys,
    make,
    note,
    rows_in,
    with_columns,
)

STREAM = "orders"
SOON = dt.timedelta(seconds=-60)


@pytest.fixture(autouse=True)
def table_and_branch(tmp_path: Path) -> None:
    """A table of one row, and an empty one in its branch."""
    begin(partial(opened, tmp_path))
    commit(opened(tmp_path), 1, inserted={1: "old"})
    begin(partial(rebuilt, tmp_path))


def opened(lake: Path) -> IcebergTable:
    """Open the table that is read."""
    return open_table(STREAM, IcebergSink(), Settings(), Location.of(lake))


def rebuilt(lake: Path) -> IcebergTable:
    """Open the table that a rebuild fills."""
    part: SinkPart = IcebergSink().beside(STREAM)
    assert isinstance(part, IcebergSink)
    return open_table(STREAM, part, Settings(), Location.of(lake))


def archived(lake: Path, entry: str) -> IcebergTable:
    """Open the table that a rebuild has replaced."""
    part = IcebergSink().model_copy(update={"table": f"oncelake.orders.tag_{branches.TAG}{entry}"})
    return open_table(STREAM, part, Settings(), Location.of(lake))


def paths_in(table: IcebergTable) -> set[str]:
    """Return the data files in the table's folder."""
    found = (path for path, _ in files_in_folder(table._entry.loaded()))
    return {path for path in found if path.endswith(".parquet")}


def test_what_is_committed_to_a_branch_others_do_not_see(tmp_path: Path) -> None:
    """Neither rows, columns, properties nor the newest seq of the table change."""
    before = opened(tmp_path)._entry.loaded().metadata
    commit(rebuilt(tmp_path), 1, inserted={1: "new", 2: "b"})
    commit(rebuilt(tmp_path), 2, updated={1: "newer"})

    after = opened(tmp_path)._entry.loaded().metadata

    def own(of: dict[str, str]) -> dict[str, str]:
        return {name: of[name] for name in of if not name.startswith(REBUILD)}

    assert own(after.properties) == own(before.properties)
    assert after.current_snapshot_id == before.current_snapshot_id
    assert (rows_in(opened(tmp_path)), opened(tmp_path).log().last_seq(STREAM)) == ({1: "old"}, 1)
    assert rows_in(rebuilt(tmp_path)) == {1: "newer", 2: "b"}
    assert rebuilt(tmp_path).log().last_seq(STREAM) == 2


def test_two_who_commit_at_once_do_not_stop_each_other(tmp_path: Path) -> None:
    """Each takes the next number of a snapshot, whichever of them comes first, and none waits."""

    def write(which: Callable[[Path], IcebergTable], first: int) -> None:
        for seq in range(first, first + 12):
            commit(which(tmp_path), seq, inserted={100 + seq: f"{seq}"})

    with ThreadPoolExecutor() as threads:
        both = [threads.submit(write, opened, 2), threads.submit(write, rebuilt, 1)]
    for each in both:
        each.result()

    assert len(rows_in(opened(tmp_path))) == 13
    assert len(rows_in(rebuilt(tmp_path))) == 12
    versions = [*opened(tmp_path).log().versions(), *rebuilt(tmp_path).log().versions()]
    assert len({*versions}) == len(versions)


def test_a_commit_that_was_begun_before_the_swap_is_refused(tmp_path: Path) -> None:
    """On the table of before, and on the branch that there is no more."""
    commit(rebuilt(tmp_path), 1, inserted={1: "new"})
    zombies = [opened(tmp_path).begin(2), rebuilt(tmp_path).begin(2)]
    opened(tmp_path).set_aside("E1", is_replaced=True)

    for zombie in zombies:
        with pytest.raises((TableBusyError, CommitConflictError)), closing(zombie):
            zombie.commit(change(2, inserted={9: "zombie"}), note(2))

    assert rows_in(opened(tmp_path)) == {1: "new"}
    assert rows_in(archived(tmp_path, "e1")) == {1: "old"}


def test_columns_of_another_type_are_other_columns(tmp_path: Path) -> None:
    """The others keep their ids, so that what is partitioned by them stays readable."""
    rebuilt(tmp_path).drop()
    make(rebuilt(tmp_path), "id INT NOT NULL, name BINARY, extra STRUCT<a: INT, b: STRING>")
    rebuilt(tmp_path).commit_note(note(0))
    old = {field.name: field.field_id for field in opened(tmp_path)._entry.loaded().schema().fields}
    opened(tmp_path).set_aside("E1", is_replaced=True)

    table = opened(tmp_path)._entry.loaded()
    new = {field.name: field.field_id for field in table.schema().fields}
    assert {name for name in old if new[name] == old[name]} == {*old} - {"name"}
    assert min(new["name"], new["extra"]) > max(old.values())
    nested = [*table.schema().find_type("extra").fields]  # type: ignore[union-attr]
    assert len({*new.values(), *(each.field_id for each in nested)}) == len(new) + 2
    assert table.metadata.last_column_id >= max(each.field_id for each in nested)
    assert rows_in(archived(tmp_path, "e1")) == {1: "old"}


def test_upkeep_leaves_what_a_branch_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its files nor its newest snapshot go, and it goes on."""
    monkeypatch.setattr(sink, "_ORPHAN_AGE", SOON)
    for seq in (1, 2, 3):
        commit(rebuilt(tmp_path), seq, inserted={seq: f"{seq}"})

    opened(tmp_path).maintain(SOON)

    assert rows_in(rebuilt(tmp_path)) == {1: "1", 2: "2", 3: "3"}
    commit(rebuilt(tmp_path), 4, updated={1: "one"})
    opened(tmp_path).set_aside("E1", is_replaced=True)
    opened(tmp_path).maintain(SOON)
    assert rows_in(opened(tmp_path)) == {1: "one", 2: "2", 3: "3"}
    assert rows_in(archived(tmp_path, "e1")) == {1: "old"}


def test_a_branch_that_is_dropped_leaves_no_file(tmp_path: Path) -> None:
    """Nor a property; the files of the table stay, and it begins anew."""
    kept = paths_in(opened(tmp_path))
    commit(rebuilt(tmp_path), 1, inserted={1: "new"})
    commit(rebuilt(tmp_path), 2, updated={1: "newer"})

    rebuilt(tmp_path).drop()

    metadata = opened(tmp_path)._entry.loaded().metadata
    assert paths_in(opened(tmp_path)) == kept
    assert {*metadata.refs} == {"main"}
    assert not [name for name in metadata.properties if REBUILD in name]
    assert not rebuilt(tmp_path).log().exists
    begin(partial(rebuilt, tmp_path))
    assert rows_in(rebuilt(tmp_path)) == {}
    assert rows_in(opened(tmp_path)) == {1: "old"}


def test_an_erase_takes_the_branch_with_it(tmp_path: Path) -> None:
    """What it had is in no file; who writes to it is told, and one that begins behind stays."""
    commit(rebuilt(tmp_path), 1, inserted={1: "old", 2: "b"})
    table, zombie = opened(tmp_path), rebuilt(tmp_path).begin(2)
    written = table.written_files()
    table.erase(keys(1), replace(note(2), kind="erase"))
    with pytest.raises(CommitConflictError), closing(zombie):
        zombie.commit(change(2, inserted={9: "zombie"}), note(2))
    with pytest.raises(CommitConflictError):
        rebuilt(tmp_path).begin(2)
    begin(partial(rebuilt, tmp_path))
    commit(rebuilt(tmp_path), 1, inserted={3: "c"})

    table.remove_older_versions(written)

    assert len(paths_in(table)) == 1
    assert (rows_in(opened(tmp_path)), rows_in(rebuilt(tmp_path))) == ({}, {3: "c"})


def test_an_erase_is_refused_for_a_tag_until_it_is_pruned(tmp_path: Path) -> None:
    """The message names the entry of the archive; with the tag go the files of its rows."""
    commit(rebuilt(tmp_path), 1, inserted={1: "new"})
    opened(tmp_path).set_aside("20240101T000000000000Z", is_replaced=True)
    with pytest.raises(RefusedError, match="archive prune orders 20240101T000000000000Z --yes"):
        opened(tmp_path).erase(keys(1), replace(note(2), kind="erase"))

    opened(tmp_path).drop_archived("20240101T000000000000Z")

    assert len(paths_in(opened(tmp_path))) == 1
    opened(tmp_path).erase(keys(1), replace(note(2), kind="erase"))
    assert rows_in(opened(tmp_path)) == {}


def test_a_branch_that_somebody_has_dropped_begins_anew(tmp_path: Path) -> None:
    """Its seq is forgotten with it, and so is what a tag had that is gone."""
    commit(rebuilt(tmp_path), 1, inserted={1: "new"})
    entry = opened(tmp_path)._entry
    entry.commit(entry.loaded(), [RemoveSnapshotRefUpdate(ref_name=REBUILD)])
    assert not rebuilt(tmp_path).log().exists

    begin(partial(rebuilt, tmp_path))

    assert rebuilt(tmp_path).log().last_seq(STREAM) == 0
    opened(tmp_path).set_aside("E1", is_replaced=True)
    entry.commit(entry.loaded(), [RemoveSnapshotRefUpdate(ref_name=f"{branches.TAG}e1")])
    begin(partial(rebuilt, tmp_path))
    opened(tmp_path).set_aside("E2", is_replaced=True)
    names = opened(tmp_path)._entry.loaded().metadata.properties
    assert not [name for name in names if name.startswith(f"{branches.TAG}e1")]


def test_a_branch_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """It stays as it is."""
    rebuilt(tmp_path).drop()
    entry = opened(tmp_path)._entry
    head = entry.loaded().metadata.current_snapshot_id
    assert head is not None
    theirs = branches._set_ref(REBUILD, head, SnapshotRefType.BRANCH)
    entry.commit(entry.loaded(), [theirs])

    with pytest.raises(RefusedError, match=f"branch {REBUILD}, which somebody else"):
        make(rebuilt(tmp_path))

    assert entry.loaded().metadata.refs[REBUILD].snapshot_id == head


def test_a_table_that_is_not_there_is_made_empty(tmp_path: Path) -> None:
    """With a branch; once that takes its place, no tag is left."""
    wanted = TableDefinition(
        columns=(*parse_columns("id INT NOT NULL, name STRING"), *system_columns()), keys=("id",)
    )
    lake = tmp_path / "other"
    rebuilt(lake).create(wanted)
    rebuilt(lake).commit_note(note(0))
    commit(rebuilt(lake), 1, inserted={1: "new"})
    log = opened(lake).log()
    assert (log.exists, log.is_empty, log.last_seq(STREAM)) == (True, True, None)

    assert opened(lake).set_aside("E1", is_replaced=True) is None

    assert (rows_in(opened(lake)), opened(lake).log().last_seq(STREAM)) == ({1: "new"}, 1)
    assert {*opened(lake)._entry.loaded().metadata.refs} == {"main"}


def test_readers_never_find_a_mixture(tmp_path: Path) -> None:
    """While one rebuild follows another, the rows are those of one of them, by its columns."""
    found, is_done = list[dict[int, str]](), threading.Event()

    def read() -> None:
        while not is_done.is_set():
            found.append(rows_in(opened(tmp_path)))

    with ThreadPoolExecutor() as threads:
        reader = threads.submit(read)
        for turn in range(6):
            rebuilt(tmp_path).drop()
            begin(partial(rebuilt, tmp_path))
            commit(rebuilt(tmp_path), 1, inserted=dict.fromkeys(range(turn + 1), f"{turn}"))
            opened(tmp_path).set_aside(f"E{turn}", is_replaced=True)
        is_done.set()
    reader.result()

    whole = [{1: "old"}, *(dict.fromkeys(range(turn + 1), f"{turn}") for turn in range(6))]
    assert len(found) > 1
    assert all(rows in whole for rows in found)
    assert [*map(whole.index, found)] == sorted(map(whole.index, found))


def test_a_table_that_takes_the_place_meanwhile_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removes the branch, and is second, has deleted nothing."""
    commit(rebuilt(tmp_path), 1, inserted={1: "new"})
    removed, swapped = branches.removed, list[str | None]()

    def swap_first(stored: Any, ref: str) -> Any:
        if not swapped:
            swapped.append("now")
            swapped.append(opened(tmp_path).set_aside("E1", is_replaced=True))
        return removed(stored, ref)

    monkeypatch.setattr(branches, "removed", swap_first)
    with pytest.raises(TableBusyError):
        rebuilt(tmp_path).drop()

    assert len(swapped) == 2
    assert rows_in(opened(tmp_path)) == {1: "new"}
    assert rows_in(archived(tmp_path, "e1")) == {1: "old"}


def test_columns_that_both_get_at_once_have_numbers_of_their_own(tmp_path: Path) -> None:
    """Who is second is told to come again, and takes the next."""
    [one, other] = parse_columns("one STRING, other BIGINT")
    late, table = rebuilt(tmp_path).begin(1), rebuilt(tmp_path)
    layout = with_columns(table, [other])
    opened(tmp_path).reshape(with_columns(opened(tmp_path), [one]), note(2))

    with pytest.raises(TableBusyError), closing(late):
        late.reshape(layout, note(1))
    table.reshape(layout, note(1))

    stored = opened(tmp_path)._entry.loaded().stored
    numbers = [each.schema_id for each in stored.schemas]
    assert len({*numbers}) == len(numbers)
    named = {f.field_id: f.name for schema in stored.schemas for f in schema.fields}
    assert {"one", "other"} <= {*named.values()}
    assert "one" in [each.name for each in opened(tmp_path).columns()]
    assert "other" in [each.name for each in rebuilt(tmp_path).columns()]


def test_a_table_that_somebody_brings_back_is_noticed(tmp_path: Path) -> None:
    """Though its newest batch has the number that is expected."""
    commit(rebuilt(tmp_path), 1, inserted={1: "new"})
    opened(tmp_path).set_aside("E1", is_replaced=True)
    assert opened(tmp_path).log().read(opened(tmp_path).log().versions()[0]).operation != "RESTORE"
    table = opened(tmp_path)._entry.loaded()
    tag = table.metadata.refs[f"{branches.TAG}e1"]

    with closing(table.catalog) as catalog:
        back = branches._set_ref("main", tag.snapshot_id, SnapshotRefType.BRANCH)
        catalog.commit_table(table, (), (back,))

    log = opened(tmp_path).log()
    assert log.read(log.versions()[0]).operation == "RESTORE"


def test_a_table_that_replaced_one_by_other_partitions_gets_columns(tmp_path: Path) -> None:
    """A column of another type, by which the old one was partitioned, is no obstacle."""
    lake = tmp_path / "other"
    old, new = opened(lake), rebuilt(lake)
    columns = (*parse_columns("id INT NOT NULL, name STRING"), *system_columns())
    by_name = (parse_partition("name"),)
    old.create(TableDefinition(columns=columns, keys=("id",), partitions=by_name))
    old.commit_note(note(0))
    make(new, "id INT NOT NULL, name BINARY")
    new.commit_note(note(0))
    old.set_aside("E1", is_replaced=True)
    [more] = parse_columns("more STRING")

    opened(lake).reshape(with_columns(opened(lake), [more]), note(1))

    assert opened(lake).columns()[-1] == more


def test_a_swap_that_is_refused_is_given_up_and_one_that_is_not_seen_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kinds of errors that ``finish_swap`` goes by."""
    commit(rebuilt(tmp_path), 1, inserted={1: "new"})

    def deny(*given: Any) -> None:
        raise ForbiddenError("no tags for you")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", deny)
        with pytest.raises(RefusedError, match="no tags for you"):
            opened(tmp_path).set_aside("E1", is_replaced=True)
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "load_table", deny)
        with pytest.raises(SinkUnavailableError) as unseen:
            opened(tmp_path).set_aside("E1", is_replaced=True)

    assert not isinstance(unseen.value, MissingRightError)
    assert rows_in(opened(tmp_path)) == {1: "old"}
    opened(tmp_path).set_aside("E1", is_replaced=True)
    assert rows_in(opened(tmp_path)) == {1: "new"}


def test_a_batch_that_waits_beside_the_table_is_none_of_the_rebuilds(tmp_path: Path) -> None:
    """A rebuild neither shows one there nor removes it."""
    with closing(opened(tmp_path).begin(2)) as transaction:
        transaction.stage(change(2, inserted={7: "waits"}), note(2), "audit")
    shown = opened(tmp_path)._entry.loaded().metadata.refs["audit"]

    rebuilt(tmp_path).drop_branch("audit")
    with closing(rebuilt(tmp_path).begin(1)) as transaction:
        transaction.stage(change(1, inserted={8: "too"}), note(1), "audit")

    assert opened(tmp_path)._entry.loaded().metadata.refs["audit"] == shown
