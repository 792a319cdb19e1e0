"""An Iceberg table takes rows and note as one snapshot, and gives back what it was given."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    ServiceUnavailableError,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from sqlalchemy.exc import OperationalError

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_type
from oncelake.ingestion.declaration.sinks import SINKS, IcebergSink
from oncelake.ingestion.errors import (
    CommitConflictError,
    DamagedTableError,
    DependencyError,
    IngestionError,
    InvalidSpecError,
    RefusedError,
    RewindError,
    SinkUnavailableError,
    TableBusyError,
)
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks import files as shared_files
from oncelake.ingestion.sinks.iceberg import catalog as iceberg_catalog
from oncelake.ingestion.sinks.iceberg import files
from oncelake.ingestion.sinks.iceberg import table as sink
from oncelake.ingestion.sinks.iceberg.catalog import CatalogEntry
from oncelake.ingestion.sinks.iceberg.table import IcebergTable, open_table
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import UnknownOutcomeError
from oncelake.ingestion.tables.commit_metadata import app_id
from oncelake.ingestion.tables.table import Change, TableDefinition
from oncelake.testing.tables import with_columns
from tests.support.long import only_long
from tests.support.orders import (
    COLUMNS,
    KEYS,
    NOTE,
    STREAM,
    change,
    column,
    commit,
    ids,
    last_seq,
    names_in,
    rows,
)
from tests.support.store import environment_of_store, make_bucket, moto
from tests.trials.failpoints import PlannedError, crashing_at
from tests.trials.power import mounted_disk

ROOT = Path(__file__).parents[2]
LONG = dt.timedelta(days=7)


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no configuration of this machine's pyiceberg be seen."""
    for name in [name for name in os.environ if name.upper().startswith("PYICEBERG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """A table that was created, and has its first note."""
    table = opened(tmp_path)
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS, description="what was ordered"))
    table.commit_note(NOTE)
    return table


def opened(lake: Path, stream: str = STREAM, **more: Any) -> IcebergTable:
    """Open the table of a lake; ``more`` is declared of its sink."""
    declared = IcebergSink(table="shop.orders", **more)
    return open_table(stream, declared, Settings(), Location.of(lake))


def others(lake: Path) -> Table:
    """Load the table as somebody else does."""
    folder = lake / ".iceberg"
    catalog = SqlCatalog(
        "oncelake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"{folder}/warehouse"
    )
    with closing(catalog):
        return catalog.load_table("shop.orders")


def version_of(table: IcebergTable, seq: int) -> int:
    """Return the version of a commit of ours."""
    found = table.log().find(STREAM, seq)
    assert found is not None
    return found.version


def data_in(lake: Path) -> set[Path]:
    """List the data files on disk."""
    return set((lake / ".iceberg").rglob("*.parquet"))


def test_what_create_makes_is_what_was_declared(tmp_path: Path) -> None:
    """Columns, comments and keys are as meant, once: to look, or to create again, makes nothing."""
    table = opened(tmp_path)
    assert (table.log().exists, table.log().versions(), [*tmp_path.iterdir()]) == (False, [], [])
    declared = (COLUMNS[0], replace(COLUMNS[1], comment="it's a name"), *COLUMNS[2:])

    for _ in range(2):
        table.create(
            TableDefinition(columns=tuple(declared), keys=KEYS, description="what's ordered")
        )

    seen, log = others(tmp_path), table.log()
    assert (table.columns(), len(seen.metadata.metadata_log)) == (declared, 0)
    assert (log.is_empty, log.last_seq(STREAM), log.versions()) == (True, None, [])
    assert seen.schema().identifier_field_names() == {"id"}
    assert (seen.format_version, seen.properties["comment"]) == (2, "what's ordered")
    seen.catalog.drop_table("shop.orders")
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    assert table.log().table_id() not in {log.table_id(), ""}


@pytest.mark.parametrize("has_rows", [False, True], ids=["empty", "with rows"])
def test_of_tables_that_somebody_made_only_an_empty_one_is_taken(
    tmp_path: Path, *, has_rows: bool
) -> None:
    """An empty one takes commits; one that has rows stays as it is, and shows no note."""
    table = opened(tmp_path)
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    foreign = others(tmp_path)
    foreign.transaction().remove_properties("oncelake.stream").commit_transaction()
    if has_rows:
        foreign.append(rows({1: "theirs"}, seq=0).cast(foreign.schema().as_arrow()))

    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))

    log = table.log()
    assert (log.exists, log.is_empty, log.last_seq(STREAM)) == (True, not has_rows, None)
    assert ("oncelake.stream" in others(tmp_path).properties) != has_rows
    if not has_rows:
        commit(table, 0, change(0, inserted={1: "a"}))
        commit(table, 1, change(1, updated={1: "b"}))
        assert names_in(table) == {1: "b"}


def test_a_log_reads_no_data_file(tmp_path: Path, table: IcebergTable) -> None:
    """One commit is one snapshot, and what the log tells of it stands there."""
    commit(table, 1, change(1, inserted={1: "a", 2: "b", 3: None}))
    what = change(2, inserted={4: ""}, updated={1: "A", 3: "c"}, deleted=[2])
    commit(table, 2, what)
    log = table.log()
    commits = list(log.newest_first())
    counts = [(1, 1), (1, 0), (2, 0)]
    assert [table.rows_of_seq(seq, commit=commits[at]) for seq, at in counts] == [3, 0, 3]

    for path in data_in(tmp_path):
        path.unlink()

    assert (log.row_count(), log.highest_epoch(), log.is_empty) == (3, 1, False)
    assert [each.operation for each in commits] == ["MERGE", "APPEND", "WRITE"]
    assert commits[0].metrics == what.counts
    assert len(others(tmp_path).metadata.snapshots) == 3


def test_other_readers_read_the_table(tmp_path: Path, table: IcebergTable) -> None:
    """One that knows nothing of the catalog reads the same rows; files carry ids and bounds."""
    commit(table, 1, change(1, inserted={1: "a", 2: "b"}))
    commit(table, 2, change(2, updated={1: "A"}, inserted={7: "x"}))

    static = StaticTable.from_metadata(others(tmp_path).metadata_location)
    found = static.scan().to_arrow().select(["id", "name"]).to_pydict()
    assert dict(zip(*found.values(), strict=True)) == names_in(table)
    assert static.scan("id = 7").to_arrow().num_rows == 1
    [file] = static.inspect.files().to_pylist()
    read = file["readable_metrics"]["id"]
    assert (read["lower_bound"], read["upper_bound"], read["null_value_count"]) == (1, 7, 0)
    schema = pq.read_schema(file["file_path"])
    assert [int(each.metadata[b"PARQUET:field_id"]) for each in schema] == [*range(1, 9)]


def test_only_files_that_can_have_the_keys_are_searched(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds leave the others out, and a commit of keys that were looked up searches no more."""
    for seq in range(1, 5):
        commit(table, seq, change(seq, inserted={seq * 10: "a", seq * 10 + 5: "b"}))
    searched: list[str] = []
    read_file = files.read_file

    def counted(of: Any, file: DataFile, columns: Schema) -> Any:
        if columns.column_names == ["id"]:
            searched.append(file.file_path)
        return read_file(of, file, columns)

    monkeypatch.setattr(files, "read_file", counted)
    with closing(table.begin(5)) as transaction:
        assert transaction.rows_of(ids(10, 12, 22, 45)).num_rows == 2
        transaction.commit(change(5, updated={10: "A"}, deleted=[45]), replace(NOTE, seq=5))
        assert len(searched) == 3
    commit(table, 6, change(6, updated={20: "B"}))

    assert len(searched) == 5  # The first commit has put two small files together.
    names = names_in(table)
    assert (names[10], names[20], 45 in names, len(names)) == ("A", "B", False, 7)


def test_many_commits_put_old_metadata_together(tmp_path: Path, table: IcebergTable) -> None:
    """A few manifests and metadata files are kept, no row is lost, and every note is read."""
    few = {"commit.manifest.min-count-to-merge": "5", "write.metadata.previous-versions-max": "3"}
    others(tmp_path).transaction().set_properties(few).commit_transaction()
    for seq in range(1, 12):
        commit(table, seq, change(seq, inserted={seq: "a"}))
    commit(table, 12, change(12, updated={3: "b"}, deleted=[4]))

    foreign, log = others(tmp_path), table.log()
    snapshot = foreign.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(foreign.io)) <= 6
    assert len(list((tmp_path / ".iceberg").rglob("*.metadata.json"))) == 4
    assert names_in(table) == dict.fromkeys((1, 2, 3, *range(5, 12)), "a") | {3: "b"}
    assert foreign.scan().to_arrow().num_rows == log.row_count() == 10
    seqs = [each.metadata.seq for each in log.newest_first() if each.metadata]
    assert seqs == [*range(12, -1, -1)]
    assert [seq for _, seq, _ in table.notes(log.versions()[3])] == [*range(10)]


def test_a_stream_begins_at_seq_0(tmp_path: Path) -> None:
    """Before the first note no other seq is taken."""
    new = opened(tmp_path / "new")
    new.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    with pytest.raises(CommitConflictError, match="holds no commit of this stream"):
        new.begin(1)
    new.begin(0).close()


@pytest.mark.parametrize("first", [0, 1], ids=["on the empty table", "on a snapshot"])
def test_a_zombie_on_an_old_head_changes_nothing(
    tmp_path: Path, table: IcebergTable, first: int
) -> None:
    """Of two that began the same seq the second is refused, and its files are gone."""
    table = opened(tmp_path / "other")
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    for seq in range(first):
        commit(table, seq, change(seq, inserted={8: "old"}))
    zombie = table.begin(first)
    updated: dict[int, str | None] = {8: "new"} if first else {}
    commit(table, first, change(first, inserted={1: "a"}, updated=updated))
    before = data_in(tmp_path / "other")

    with closing(zombie), pytest.raises(CommitConflictError, match=f"seq {first} as its last"):
        zombie.commit(change(first, inserted={2: "b"}, updated=updated), replace(NOTE, seq=first))

    assert names_in(table) == {1: "a"} | updated
    assert (last_seq(table), len(table.log().versions())) == (first, first + 1)
    assert data_in(tmp_path / "other") == before


def test_a_foreign_append_in_between_is_not_lost(tmp_path: Path, table: IcebergTable) -> None:
    """The commit is refused, the other's rows stay, and the log shows what they did."""
    commit(table, 1, change(1, inserted={1: "a"}))
    transaction = table.begin(2)
    foreign = others(tmp_path)
    foreign.append(rows({9: "theirs"}, seq=0).cast(foreign.schema().as_arrow()))

    with closing(transaction), pytest.raises(TableBusyError, match="somebody else changed"):
        transaction.commit(change(2, updated={1: "A"}), replace(NOTE, seq=2))

    assert (names_in(table), last_seq(table)) == ({1: "a", 9: "theirs"}, 1)
    ours, by_others = table.log().since_our_newest(STREAM)
    assert ours is not None
    assert ours.metadata == replace(NOTE, seq=1)
    assert [(each.operation, each.changes_rows, each.txns) for each in by_others] == [
        ("append", True, {})
    ]
    commit(table, 2, change(2, updated={1: "A"}))
    assert names_in(table) == {1: "A", 9: "theirs"}


@pytest.mark.parametrize(
    "what",
    [change(2, updated={1: "A", 5: "B"}), change(2, deleted=[1, 5]), change(2, deleted=[7])],
    ids=["update", "delete", "twice there"],
)
def test_rows_that_are_not_as_they_should_be_are_missed(
    tmp_path: Path, table: IcebergTable, what: Change
) -> None:
    """A commit that concerns fewer or more rows than it means to is not made."""
    commit(table, 1, change(1, inserted={1: "a", 2: "b", 7: "c"}))
    foreign = others(tmp_path)
    foreign.append(rows({7: "theirs"}, seq=0).cast(foreign.schema().as_arrow()))
    before = data_in(tmp_path)

    with closing(table.begin(2)) as transaction:
        transaction.rows_of(ids(1))
        with pytest.raises(TableBusyError, match="somebody else has changed the same rows"):
            transaction.commit(what, replace(NOTE, seq=2))

    assert (table.log().row_count(), last_seq(table)) == (4, 1)
    assert data_in(tmp_path) == before


def test_a_row_that_does_not_fit_is_refused(table: IcebergTable) -> None:
    """A null where none may be, and a number that is too large, are refused by their columns."""
    good = rows({1: "a"}, seq=1)
    bad = good.set_column(0, "id", pa.array([None], pa.int64()))
    large = good.set_column(3, "_partition", pa.array([1 << 40]))

    for what in (bad, large):
        with pytest.raises(RefusedError, match="a row does not fit"):
            commit(table, 1, Change(inserted=what, updated=good[:0], deleted=ids()))

    assert (names_in(table), last_seq(table)) == ({}, 0)


# Those of the battery, which has no types within others, come back, too.
EXTREMES: dict[str, list[Any]] = {
    "STRING": ["\u00e9\u0000\U0001f600"],
    "VARCHAR(3)": ["", "abc"],
    "ARRAY<SMALLINT>": [[], [None], [1, None, -32768]],
    "ARRAY<STRUCT<a: INT, b: ARRAY<STRING>>>": [
        *([], [None], [{"a": None, "b": None}, {"a": 1, "b": []}, {"a": 2, "b": ["", None]}])
    ],
    "MAP<STRING, DECIMAL(10,2)>": [[], [("", None), ("k", Decimal("1.10"))]],
    "MAP<BIGINT, STRUCT<x: DATE, y: MAP<STRING, INT>>>": [
        *([], [(1, None)], [(2, {"x": None, "y": []}), (3, {"x": 5, "y": [("", None)]})])
    ],
    "STRUCT<a: TINYINT, b: STRUCT<c: TIMESTAMP, d: BINARY>>": [
        *({"a": None, "b": None}, {"a": 1, "b": {"c": -1, "d": b""}}),
        {"a": -128, "b": {"c": None, "d": None}},
    ],
}


@pytest.mark.parametrize("type_", EXTREMES)
def test_every_value_comes_back_as_it_was_sent(tmp_path: Path, type_: str) -> None:
    """The extremes of a type, and null, survive insert, update, look-up and scan to the bit."""
    table = opened(tmp_path)
    value = column(f"value {type_}")
    declared = (COLUMNS[0], value, *COLUMNS[2:])
    table.create(TableDefinition(columns=tuple(declared), keys=KEYS))
    stored = replace(value, type=SINKS["iceberg"].stored_type(value.type))
    field = arrow_of(stored)
    values = pa.array([*EXTREMES[type_], None], field)
    sent = rows(dict.fromkeys(range(len(values))), seq=0).set_column(1, "value", values)
    turned = sent.set_column(1, "value", values.take(pa.array([*range(1, len(values)), 0])))
    nothing = sent.slice(0, 0)

    commit(table, 0, Change(inserted=sent, updated=nothing, deleted=ids()))
    with closing(table.begin(1)) as transaction:
        assert exact(transaction.rows_of(sent.select(["id"])[1:])) == exact(sent[1:])
        updated = Change(inserted=nothing, updated=turned[2:], deleted=ids())
        transaction.commit(updated, replace(NOTE, seq=1))

    wanted = pa.concat_tables([sent[:2], turned[2:]])
    scanned = pa.Table.from_batches(table.scan(sent.column_names))
    assert exact(scanned) == exact(wanted)
    assert scanned.schema.field("value").type == field
    assert table.columns() == (COLUMNS[0], stored, *COLUMNS[2:])
    by_pyiceberg = others(tmp_path).scan(selected_fields=("id",)).to_arrow()
    assert by_pyiceberg.num_rows == len(values)


def arrow_of(column: DeclaredColumn) -> pa.DataType:
    """Return the Arrow type of a stored column."""
    type_ = sink._iceberg_type(column.type, iter(range(1000)))
    return schema_to_pyarrow(type_, include_field_ids=False)


def exact(table: pa.Table) -> list[str]:
    """Write rows so that only those that are the same to the bit compare as equal."""
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("length", [200, 5_000], ids=["truncated bounds", "no bounds"])
@pytest.mark.parametrize("groups", [1, 3], ids=["one row group", "several row groups"])
def test_a_long_key_is_found_whatever_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, groups: int, length: int
) -> None:
    """Keys that differ at their ends are found: in a file of their own, and beside short ones."""
    table = opened(tmp_path)
    declared = (COLUMNS[0], column("name STRING NOT NULL"), *COLUMNS[2:])
    table.create(TableDefinition(columns=tuple(declared), keys=("name",)))
    monkeypatch.setattr(shared_files, "_ROWS_IN_GROUP", 2)
    names = ["k" * length + str(at) for at in range(2)] + ["m", "n", "o", "p"][: 2 * groups - 2]
    sent = rows(dict(enumerate(names)), seq=0)
    commit(table, 0, Change(inserted=sent, updated=sent[:0], deleted=sent[:0].select(["name"])))
    [path] = data_in(tmp_path)
    assert pq.ParquetFile(path).num_row_groups == groups

    with closing(table.begin(1)) as transaction:
        for row in sent.to_pylist():
            found = transaction.rows_of(pa.table({"name": [row["name"]]}))
            assert found.to_pylist() == [row]
        absent = pa.table({"name": ["k" * length, "k" * length + "2", "k"]})
        assert transaction.rows_of(absent).num_rows == 0


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("STRING", ["k" * 15 + "\ud7ffk", "a"]),
        ("STRING", ["k" * 14 + "\ud7ff\U0010ffffk", "a"]),
        ("DATE", [2_932_897, 0]),
        ("DATE", [0, -800_000]),
        ("TIMESTAMP", [1 << 62, 0]),
        ("TIMESTAMP_NTZ", [0, -(1 << 63)]),
    ],
)
def test_a_value_of_which_no_bound_is_made_is_committed(
    tmp_path: Path, type_: str, values: list[Any]
) -> None:
    """Its column has no bounds in that file, and the others have theirs."""
    table, value = opened(tmp_path), column(f"value {type_}")
    table.create(TableDefinition(columns=(COLUMNS[0], value, *COLUMNS[2:]), keys=KEYS))
    stored = pa.array(values, {"STRING": pa.string(), "DATE": pa.int32()}.get(type_, pa.int64()))
    sent = rows(dict.fromkeys(range(2)), seq=0)
    sent = sent.set_column(1, "value", stored.cast(arrow_of(value)))

    commit(table, 0, Change(inserted=sent, updated=sent[:0], deleted=ids()))

    assert pa.Table.from_batches(table.scan(["value"]))["value"].equals(sent["value"])
    [task] = others(tmp_path).scan().plan_files()
    named = {others(tmp_path).schema().find_column_name(id_) for id_ in task.file.upper_bounds}
    assert named == {*sent.column_names} - {"value"}


def test_a_column_is_added_and_takes_nulls(table: IcebergTable) -> None:
    """Old rows read null in it, before and after they are written anew; doing it twice is once."""
    commit(table, 1, change(1, inserted={1: "a", 2: "b"}))
    version = version_of(table, 1)
    more = replace(column("more STRUCT<x: SMALLINT>"), comment="it's more")
    kind = SINKS["iceberg"]
    assert kind.statement(kind.statements.add, more, table="shop.orders") == (
        r"ALTER TABLE shop.orders ADD COLUMN `more` STRUCT<x: INT> COMMENT 'it\'s more'"
    )
    more = replace(more, type=kind.stored_type(more.type))
    with closing(table.begin(2)) as stale:
        table.reshape(with_columns(table, [more]), replace(NOTE, seq=2))
        with pytest.raises(CommitConflictError):
            stale.commit(change(2, inserted={3: "c"}), replace(NOTE, seq=2, run_id="late"))
    table.reshape(with_columns(table, [more]), replace(NOTE, seq=3))

    assert table.columns() == (*COLUMNS, more)
    assert mores(table) == {1: None, 2: None}
    new = rows({1: "A"}, seq=4).append_column("more", pa.array([{"x": 5}]))
    commit(table, 4, Change(inserted=new[:0], updated=new, deleted=ids()))
    assert mores(table) == {1: {"x": 5}, 2: None}
    assert mores(table, version) == {1: None, 2: None}


def mores(table: IcebergTable, version: int | None = None) -> dict[int, Any]:
    """Read the column that was added, by ids."""
    batches = table.scan(["more", "id"], version)
    return {row["id"]: row["more"] for batch in batches for row in batch.to_pylist()}


def test_a_column_is_freed_to_be_null(tmp_path: Path) -> None:
    """What was NOT NULL takes nulls afterwards."""
    table = opened(tmp_path)
    name = column("name STRING NOT NULL")
    table.create(TableDefinition(columns=(COLUMNS[0], name, *COLUMNS[2:]), keys=KEYS))
    kind = SINKS["iceberg"]
    assert kind.statement(kind.statements.take_nulls, name, table="shop.orders") == (
        "ALTER TABLE shop.orders ALTER COLUMN `name` DROP NOT NULL"
    )

    table.reshape(with_columns(table, [COLUMNS[1]]), NOTE)
    commit(table, 1, change(1, inserted={2: None}))

    assert (table.columns(), names_in(table)) == (COLUMNS, {2: None})


def test_a_foreign_rollback_is_seen(tmp_path: Path, table: IcebergTable) -> None:
    """The last seq stays, and a RESTORE by somebody else stands after our newest commit."""
    for seq in range(1, 4):
        commit(table, seq, change(seq, inserted={seq: "a"}))
    foreign = others(tmp_path)
    old = foreign.metadata.snapshots[1].snapshot_id
    foreign.manage_snapshots().rollback_to_snapshot(old).commit()

    log = table.log()
    ours, by_others = log.since_our_newest(STREAM)
    assert (log.last_seq(STREAM), names_in(table)) == (3, {1: "a"})
    assert ours is not None
    assert ours.metadata == replace(NOTE, seq=1)
    assert [(each.operation, each.changes_rows) for each in by_others] == [("RESTORE", True)]

    commit(table, 4, change(4, inserted={4: "d"}))

    log = table.log()
    assert [each.operation for each in log.newest_first()] == [
        *("APPEND", "RESTORE", "APPEND", "WRITE")
    ]
    assert log.versions() == sorted(log.versions(), reverse=True)
    assert names_in(table) == {1: "a", 4: "d"}
    drop = RemoveSnapshotRefUpdate(ref_name="main")
    table._entry.commit(table._entry.loaded(), [drop])
    assert [each.operation for each in table.log().newest_first()] == ["RESTORE"]


def test_compaction_by_somebody_else_is_no_change(tmp_path: Path, table: IcebergTable) -> None:
    """A snapshot of the operation replace moves rows and changes none."""
    commit(table, 1, change(1, inserted={1: "a"}))
    foreign = others(tmp_path)
    staged = files.StagedSnapshot(foreign)
    updates = staged.write(Operation.REPLACE)
    table._entry.commit(table._entry.loaded(), updates, staged.snapshot_id)

    ours, by_others = table.log().since_our_newest(STREAM)

    assert ours is not None
    assert ours.version == version_of(table, 1)
    assert [(each.operation, each.changes_rows) for each in by_others] == [("replace", False)]


def test_a_damaged_note_is_named(tmp_path: Path, table: IcebergTable) -> None:
    """A digit that was changed in a note is not taken for an offset."""
    path = Path(others(tmp_path).metadata_location)
    content = path.read_text()
    path.write_text(changed := content.replace(r"\"seq\": 0", r"\"seq\": 9"))
    assert changed != content

    log = table.log()
    with pytest.raises(DamagedTableError, match="checksum"):
        log.read(log.versions()[0])


def test_files_that_are_gone_or_cut_short_are_named(tmp_path: Path, table: IcebergTable) -> None:
    """A data file that is not as it was committed is damage, with what to do."""
    commit(table, 1, change(1, inserted={1: "a"}))
    table.check(table.log())
    [path] = data_in(tmp_path)
    content = path.read_bytes()

    path.write_bytes(content[:-100])
    with pytest.raises(DamagedTableError, match="bytes"):
        table.check(table.log())
    with pytest.raises(DamagedTableError, match="cannot be read"), table.translate_read_errors():
        names_in(table)
    middle = content.index(b"\x28\xb5\x2f\xfd") + 8  # Of a page that is compressed.
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    with pytest.raises(DamagedTableError, match="cannot be read"):
        commit(table, 2, change(2, updated={1: "A"}))
    path.unlink()
    with pytest.raises(DamagedTableError, match="missing"):
        table.check(table.log())
    with pytest.raises(DamagedTableError, match="missing"), table.translate_read_errors():
        names_in(table)


def test_an_earlier_version_is_restored(tmp_path: Path, table: IcebergTable) -> None:
    """Its rows and columns are back by one snapshot, no file is copied, and the seq goes on."""
    commit(table, 1, change(1, inserted={1: "a", 2: "b"}))
    version = version_of(table, 1)
    table.reshape(with_columns(table, [column("more INT")]), replace(NOTE, seq=2))
    new = rows({1: "A"}, seq=3).append_column("more", pa.array([5]))
    commit(table, 3, Change(inserted=new[:0], updated=new, deleted=ids(2)))
    before = data_in(tmp_path)

    rewind = replace(NOTE, kind="rewind", seq=4, counts={"rewound_to": 1})
    restored = table.restore(version, rewind)

    assert (restored.operation, restored.changes_rows, restored.metadata) == (
        *("RESTORE", True, rewind),
    )
    assert (names_in(table), table.columns(), last_seq(table)) == (*({1: "a", 2: "b"}, COLUMNS, 4),)
    assert (data_in(tmp_path), table.log().row_count()) == (before, 2)
    commit(table, 5, change(5, updated={2: "B"}, inserted={3: "c"}))
    assert names_in(table) == {1: "a", 2: "B", 3: "c"}
    assert names_in(table, version) == {1: "a", 2: "b"}


def test_a_version_that_is_gone_is_not_restored(tmp_path: Path, table: IcebergTable) -> None:
    """What has no snapshot, or lacks a file, is refused with what to do instead."""
    commit(table, 1, change(1, inserted={1: "a"}))
    version = version_of(table, 1)
    [path] = data_in(tmp_path)
    commit(table, 2, change(2, deleted=[1]))
    path.unlink()

    for gone in (99, version):
        with pytest.raises(RewindError, match="oncelake reset orders"):
            table.restore(gone, replace(NOTE, kind="rewind", seq=3))
    with pytest.raises(DamagedTableError, match="version 99 has expired"):
        names_in(table, 99)
    assert last_seq(table) == 2


def aged(path: Path, days: int = 30) -> None:
    """Make a file as old as that."""
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


def test_maintenance_compacts_and_keeps_what_can_be_reached(
    tmp_path: Path, table: IcebergTable
) -> None:
    """Small files become one by a commit that changes no row; old versions stay readable."""
    for seq in range(1, 5):
        commit(table, seq, change(seq, inserted={seq: "a"}))
    commit(table, 5, change(5, updated={1: "A"}))
    version, before = version_of(table, 3), data_in(tmp_path)
    for path in (tmp_path / ".iceberg").rglob("*.*"):
        aged(path)
    orphan = next(iter(before)).with_name("orphan.parquet")
    orphan.write_bytes(b"x")
    aged(orphan)
    young = orphan.with_name("young.parquet")
    young.write_bytes(b"x")

    done = table.maintain(LONG)

    assert (done["compacted"], done["written"], done["expired"]) == (4, 1, 0)
    assert not orphan.exists()
    assert young.exists()
    assert before < data_in(tmp_path)
    assert names_in(table) == {1: "A", 2: "a", 3: "a", 4: "a"}
    assert names_in(table, version) == {1: "a", 2: "a", 3: "a"}
    ours, by_others = table.log().since_our_newest(STREAM)
    assert ours is not None
    assert ours.txns == {app_id(STREAM): 5}
    assert [each.changes_rows for each in by_others] == [False]
    assert others(tmp_path).scan().to_arrow().num_rows == 4
    assert table.maintain(LONG)["compacted"] == 0
    commit(table, 6, change(6, updated={4: "D"}))
    assert names_in(table)[4] == "D"


def test_maintenance_expires_all_but_what_is_needed(tmp_path: Path, table: IcebergTable) -> None:
    """Our newest commit and all after it stay, files of the rest go, and the table reads."""
    for seq in range(1, 5):
        commit(table, seq, change(seq, inserted={seq: "a"}))
    commit(table, 5, change(5, updated={1: "A"}))
    version = version_of(table, 3)
    for path in (tmp_path / ".iceberg").rglob("*.*"):
        if path.name != "catalog.db":
            aged(path)

    done = table.maintain(dt.timedelta(0))

    assert (done["expired"], done["compacted"]) == (5, 4)
    # Of the five: their lists, a manifest and a data file; four are compacted, into one.
    assert (done["deleted"], len(data_in(tmp_path))) == (7, 5)
    log = table.log()
    assert (log.last_seq(STREAM), len(log.versions())) == (5, 2)
    ours, _ = log.since_our_newest(STREAM)
    assert ours is not None
    assert ours.metadata == replace(NOTE, seq=5)
    assert table.rows_of_seq(5, commit=ours) == 1
    assert names_in(table) == {1: "A", 2: "a", 3: "a", 4: "a"}
    with pytest.raises(DamagedTableError, match="has expired"):
        names_in(table, version)
    commit(table, 6, change(6, deleted=[2]))
    assert others(tmp_path).scan().to_arrow().num_rows == 3


def test_the_last_seq_outlives_the_snapshots(tmp_path: Path, table: IcebergTable) -> None:
    """When somebody has expired all but a snapshot of theirs, the next seq is still known."""
    commit(table, 1, change(1, inserted={1: "a"}))
    foreign = others(tmp_path)
    foreign.append(rows({9: "theirs"}, seq=0).cast(foreign.schema().as_arrow()))
    foreign.maintenance.expire_snapshots().older_than(
        dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    ).commit()

    log = table.log()
    assert (log.last_seq(STREAM), log.since_our_newest(STREAM)[0]) == (1, None)
    assert [each.operation for each in log.newest_first()] == ["append"]
    commit(table, 2, change(2, inserted={2: "b"}))
    assert names_in(table) == {1: "a", 2: "b", 9: "theirs"}


@pytest.mark.parametrize(
    ("moment", "names", "seq"),
    [("before", {1: "a"}, 1), ("inside", {1: "a"}, 1), ("after", {1: "A", 2: "b"}, 2)],
    ids=["before the catalog is asked", "before the catalog commits", "right after"],
)
def test_a_killed_writer_leaves_nothing_or_all(
    tmp_path: Path, table: IcebergTable, *, moment: str, names: dict[int, str | None], seq: int
) -> None:
    """SIGKILL before the catalog's commit leaves only orphans, and after it every row."""
    commit(table, 1, change(1, inserted={1: "a"}))

    died = subprocess.run(
        [sys.executable, "-c", DYING, str(tmp_path), moment],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )

    assert died.returncode == -signal.SIGKILL, died.stderr
    assert (names_in(table), last_seq(table)) == (names, seq)
    assert len(data_in(tmp_path)) == 2
    commit(table, seq + 1, change(seq + 1, inserted={9: "z"}))
    assert names_in(table) == names | {9: "z"}


DYING = "import sys; from tests.lake.test_iceberg_table import die; die(*sys.argv[1:])"


def die(lake: str, moment: str) -> None:
    """Commit seq 2, and be killed before, in or right after the catalog's commit."""
    writes = SqlCatalog._write_metadata

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def commit_and_die(catalog: SqlCatalog, *args: Any, **kwargs: Any) -> Any:
        if moment == "before":
            kill()
        COMMIT(catalog, *args, **kwargs)
        kill()

    def write_and_die(*args: Any, **kwargs: Any) -> None:
        writes(*args, **kwargs)
        if moment == "inside":
            kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", commit_and_die)
        patch.setattr(SqlCatalog, "_write_metadata", staticmethod(write_and_die))
        commit(opened(Path(lake)), 2, change(2, inserted={2: "b"}, updated={1: "A"}))


@pytest.mark.parametrize("is_made", [False, True], ids=["lost before", "lost after"])
@pytest.mark.parametrize(
    "error",
    [
        CommitStateUnknownException("504"),
        ServiceUnavailableError("503"),
        OperationalError("COMMIT", {}, Exception("database is locked")),
        TimeoutError("read"),
        KeyError("of a catalog's own client"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_commit_without_an_answer_has_an_unknown_outcome(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch, *, is_made: bool, error: Exception
) -> None:
    """The log tells whether it was made, and no file that it may need is deleted."""
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", losing(error, is_made=is_made))
        with pytest.raises(UnknownOutcomeError, match=r"orders: shop\.orders.* run the same"):
            commit(table, 1, change(1, inserted={1: "a"}))

    assert names_in(table) == ({1: "a"} if is_made else {})
    assert last_seq(table) == (1 if is_made else 0)
    commit(table, 2 if is_made else 1, change(1, inserted={2: "b"}))


@pytest.mark.parametrize("error", [ForbiddenError("no"), CommitFailedException("changed")])
def test_a_commit_that_is_refused_leaves_nothing_unless_it_was_made(
    tmp_path: Path, table: IcebergTable, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Files go only if the catalog lacks them: a client that asks twice is refused by itself."""
    kind = DependencyError if isinstance(error, ForbiddenError) else TableBusyError
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", losing(error, is_made=False))
        with pytest.raises(kind, match="Nothing was changed") as raised:
            commit(table, 1, change(1, inserted={1: "a"}))
        assert (data_in(tmp_path), last_seq(table)) == (set(), 0)
        patch.setattr(SqlCatalog, "commit_table", losing(error, is_made=True))
        commit(table, 1, change(1, inserted={1: "a"}))

    assert not isinstance(raised.value, UnknownOutcomeError)
    assert (names_in(table), last_seq(table)) == ({1: "a"}, 1)


COMMIT = SqlCatalog.commit_table


def losing(error: Exception, *, is_made: bool) -> Callable[..., Any]:
    """Make a commit of the catalog whose answer is an error."""

    def commit_table(catalog: SqlCatalog, *args: Any, **kwargs: Any) -> Any:
        if is_made:
            COMMIT(catalog, *args, **kwargs)
        raise error

    return commit_table


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("odd://me:hush-hush@host/db", "configuration of catalog far is wrong"),
        ("http://me:hush-hush@127.0.0.1:1/", "catalog far.*check that"),
    ],
    ids=["of no catalog", "not there"],
)
def test_a_catalog_is_named_without_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, message: str
) -> None:
    """The error says which catalog it is and what to check, and nothing of its password."""
    monkeypatch.setenv("PYICEBERG_CATALOG__FAR__URI", uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__FAR__TOKEN", "hush-hush-token")
    table = open_table(STREAM, IcebergSink(catalog="far"), Settings(), Location.of(tmp_path))

    with pytest.raises(IngestionError, match=message) as refused:
        table.begin(0)

    assert "hush" not in str(refused.value)


def test_a_secret_within_the_configuration_is_masked() -> None:
    """A login by OAuth stands a level deeper than the others."""
    entry = CatalogEntry(
        stream="orders",
        identifier=("app", "orders"),
        catalog="far",
        configuration={"auth": {"oauth2": {"client_secret": "hush-hush"}}},
        folder=None,
    )

    assert entry.reason(ValueError("no hush-hush here")) == "no *** here"


@pytest.mark.parametrize(
    "login",
    [
        lambda uri: {},
        lambda uri: {"credential": "me:word", "oauth2-server-uri": uri},
        lambda uri: {
            "auth": {
                "type": "oauth2",
                "oauth2": {"client_id": "me", "client_secret": "word", "token_url": uri},
            }
        },
    ],
    ids=["its configuration", "its token", "the token of another"],
)
def test_a_catalog_that_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, login: Callable[[str], dict[str, Any]]
) -> None:
    """It takes the connection and never answers, like one that is not there."""
    monkeypatch.setattr(iceberg_catalog, "_REQUEST_SECONDS", (5.0, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}/"
        entry = CatalogEntry(
            stream=STREAM,
            identifier=("shop", "orders"),
            catalog="far",
            configuration={"type": "rest", "uri": uri, **login(uri)},
            folder=None,
        )

        with pytest.raises(
            SinkUnavailableError, match=r"catalog far.*timed out.*check that"
        ) as raised:
            entry.load()

    assert raised.value.exit_code == 5


def test_a_catalog_that_is_not_configured_is_named(tmp_path: Path) -> None:
    """A misspelt name, and a lake in a store without a catalog, say what to configure."""
    local, store = Location.of(tmp_path), Location.of("s3://bucket/lake")

    with pytest.raises(InvalidSpecError, match=r"no catalog mien .*PYICEBERG_CATALOG__MIEN__URI"):
        open_table(STREAM, IcebergSink(catalog="mien"), Settings(), local)
    with pytest.raises(InvalidSpecError, match="PYICEBERG_CATALOG__DEFAULT__URI"):
        open_table(STREAM, IcebergSink(), Settings(), store)


@only_long
def test_many_writers_commit_each_seq_once(tmp_path: Path) -> None:
    """Processes that race to create, and for every seq, make one table; one wins each seq."""
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        won = pool.starmap(race, [(tmp_path, racer) for racer in range(3)])

    assert sorted(seq for of_racer in won for seq in of_racer) == [*range(15)]
    names = {seq: str(racer) for racer in range(3) for seq in won[racer]}
    assert (names_in(opened(tmp_path)), last_seq(opened(tmp_path))) == (names, 14)
    assert len(others(tmp_path).metadata.snapshots) == 15


def race(lake: Path, racer: int) -> list[int]:
    """Commit each of 15 seqs that nobody else has; return those that were won."""
    table, won, deadline = opened(lake), list[int](), time.monotonic() + 120
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    while (seq := -1 if (last := last_seq(table)) is None else last) < 14:
        assert time.monotonic() < deadline
        with suppress(CommitConflictError, TableBusyError):
            commit(table, seq + 1, change(seq + 1, inserted={seq + 1: str(racer)}))
            won.append(seq + 1)
    return won


def test_the_catalog_of_the_configuration_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default one where one is configured, and any by its name."""
    for name in ("default", "mine"):
        place = tmp_path / name
        place.mkdir()
        variable = f"PYICEBERG_CATALOG__{name.upper()}"
        monkeypatch.setenv(f"{variable}__URI", f"sqlite:///{place}/c.db")
        monkeypatch.setenv(f"{variable}__WAREHOUSE", f"file://{place}/warehouse")
    lake = Location.of(tmp_path / "lake")

    for catalog, folder in ((None, "default"), ("mine", "mine")):
        table = open_table(STREAM, IcebergSink(catalog=catalog), Settings(), lake)
        table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
        table.commit_note(NOTE)
        commit(table, 1, change(1, inserted={1: "a"}))
        commit(table, 2, change(2, updated={1: "A"}))
        assert names_in(table) == {1: "A"}
        assert table.maintain(LONG)["deleted"] == 0
        assert f"oncelake.orders (Iceberg, of catalog {folder})" == table.where
        assert len(list((tmp_path / folder).rglob("*.parquet"))) == 2
    assert not lake.exists()


def test_the_configuration_may_stand_in_a_file_of_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``.env`` names a catalog as the environment does, which wins."""
    (tmp_path / "dagster.yaml").touch()
    names = [f"PYICEBERG_CATALOG__MINE__{name}" for name in ("URI", "WAREHOUSE")]
    (tmp_path / ".env").write_text(f"{names[0]}=sqlite:///{tmp_path}/c.db\n{names[1]}=file:///no\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(names[0], raising=False)
    # What the file sets is not there in the next test.
    monkeypatch.setattr(os, "environ", {**os.environ, names[1]: f"file://{tmp_path}/warehouse"})
    declared, lake = IcebergSink(catalog="mine"), Location.of(tmp_path / "lake")

    table = open_table(STREAM, declared, Settings(), lake)

    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    assert table.uri.startswith(f"file://{tmp_path}/warehouse")
    assert (tmp_path / "c.db").exists()


def test_a_table_that_was_set_aside_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalog gives the next table the same folder, of which maintenance takes only orphans."""
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", f"sqlite:///{tmp_path}/c.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__WAREHOUSE", f"file://{tmp_path}")
    table = open_table(STREAM, IcebergSink(), Settings(), Location.of(tmp_path))
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    commit(table, 0, change(0, inserted={1: "old"}))
    folder, aside = table.uri, table.set_aside("X1")
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    commit(table, 0, change(0, inserted={1: "new"}))
    orphan = Path(folder.removeprefix("file://")) / "data" / "orphan.parquet"
    orphan.write_bytes(b"x")
    monkeypatch.setattr(sink, "_ORPHAN_AGE", dt.timedelta(seconds=-60))

    assert table.maintain(dt.timedelta(seconds=-60))["deleted"] == 1

    old = open_table(STREAM, IcebergSink(table=aside), Settings(), Location.of(tmp_path))
    assert (table.uri, orphan.exists()) == (folder, False)
    assert (names_in(old), names_in(table)) == ({1: "old"}, {1: "new"})


def test_a_warehouse_in_a_store_keeps_the_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in S3 are written, found, refused to a zombie, restored and maintained alike."""
    with moto(tmp_path) as address:
        keys = environment_of_store(address)
        variable = "PYICEBERG_CATALOG__DEFAULT__"
        monkeypatch.setenv(f"{variable}URI", f"sqlite:///{tmp_path}/c.db")
        monkeypatch.setenv(f"{variable}WAREHOUSE", f"s3://{make_bucket(address)}/warehouse")
        monkeypatch.setenv(f"{variable}S3__ENDPOINT", address)
        monkeypatch.setenv(f"{variable}S3__REGION", "us-east-1")
        monkeypatch.setenv(f"{variable}S3__ACCESS_KEY_ID", keys["AWS_ACCESS_KEY_ID"])
        monkeypatch.setenv(f"{variable}S3__SECRET_ACCESS_KEY", keys["AWS_SECRET_ACCESS_KEY"])
        lake = Location.of("s3://bucket/lake")
        table = open_table(STREAM, IcebergSink(), Settings(), lake)
        table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
        commit(table, 0, change(0, inserted={1: "a", 2: "b"}))
        version = version_of(table, 0)

        with closing(table.begin(1)) as zombie:
            commit(table, 1, change(1, updated={1: "A"}, inserted={3: "c"}))
            with pytest.raises(CommitConflictError):
                zombie.commit(change(1, updated={1: "Z"}), replace(NOTE, seq=1))
        table.restore(version, replace(NOTE, kind="rewind", seq=2))

        assert names_in(table) == {1: "a", 2: "b"}
        commit(table, 3, change(3, inserted={4: "d"}))
        assert table.maintain(LONG)["compacted"] == 2
        monkeypatch.setattr(sink, "_ORPHAN_AGE", dt.timedelta(seconds=-60))
        done = table.maintain(dt.timedelta(seconds=-60))
        assert (done["expired"], done["deleted"] > 0) == (3, True)
        assert names_in(table) == {1: "a", 2: "b", 4: "d"}
        commit(table, 4, change(4, deleted=[4]))
        assert names_in(table) == {1: "a", 2: "b"}


PERSON, NUMBER = "Ada Lovelace", 18_151_210
OTHERS = {1: "A", 2: None, 4: "d", 5: "e", 8: "h"}


def traces(lake: Path) -> list[str]:
    """Name the table's files that hold the person's name or number; as a bound it is bytes."""
    shapes = (PERSON, str(NUMBER), repr(NUMBER.to_bytes(8, "little"))[2:-1])
    texts = dict[Path, str]()
    for path in (lake / ".iceberg").rglob("*.*"):
        if path.suffix == ".parquet":
            texts[path] = repr(pq.read_table(path).to_pylist())
        elif path.suffix == ".avro":
            with path.open("rb") as file:
                texts[path] = repr(list(fastavro.reader(file)))
        else:
            texts[path] = path.read_bytes().decode(errors="replace")
    return [str(path) for path, text in texts.items() if any(shape in text for shape in shapes)]


def erased(table: IcebergTable, seq: int, **values: Any) -> int:
    """Erase all rows that have some values; return how many files of rows went with them."""
    keys = pa.table({name: [value] for name, value in values.items()})
    written = table.written_files()
    said = table.erase(keys, replace(NOTE, kind="erase", seq=seq))
    assert said.operation == ("MERGE" if any(said.metrics.values()) else "WRITE")
    return table.remove_older_versions(written)


class Theirs(files.StagedSnapshot):
    """A snapshot as Spark writes it: the bounds of what goes are beside those of what stays."""

    def _manifests(self) -> list[ManifestFile]:
        with self.new_manifest_writer(self._transaction.table_metadata.spec()) as writer:
            for file in self._added_data_files:
                writer.add(ManifestEntry.from_args(data_file=file))
            for manifest in self._current_manifests():
                for entry in manifest.fetch_manifest_entry(self._io):
                    is_gone = entry.data_file in self._deleted_data_files
                    (writer.delete if is_gone else writer.existing)(entry)
        return [writer.to_manifest_file()]


def history_of_a_person(lake: Path, table: IcebergTable) -> None:
    """Commit rows of a person and of others, compact them as we do and as others do, and die."""
    commit(table, 1, change(1, inserted={NUMBER: PERSON, 1: "a", 2: None}))
    commit(table, 2, change(2, inserted={3: PERSON, 4: "d"}, updated={NUMBER: f"{PERSON} II"}))
    table.maintain(LONG)
    commit(table, 3, change(3, inserted={5: "e", 6: PERSON}, updated={1: "A", NUMBER: PERSON}))
    [large] = table._entry.data_files(others(lake))
    commit(table, 4, change(4, inserted={8: "h"}))
    foreign = others(lake)
    writer = files.IcebergFileWriter(foreign)
    for batch in files.read_file(foreign, large.data, foreign.schema()):
        writer.write(batch)
    writer.close()
    added = [each.data for each in writer.files]
    compacted = Theirs(foreign, added=added, removed=[large.data])
    updates = compacted.write(Operation.REPLACE)
    # Of ours, that died before its commit, a file of rows and manifests are left.
    dead = files.IcebergFileWriter(foreign)
    dead.write(rows({NUMBER: PERSON}, seq=5))
    dead.close()
    files.StagedSnapshot(foreign, added=[each.data for each in dead.files]).write(Operation.APPEND)
    table._entry.commit(table._entry.loaded(), updates)


@pytest.mark.parametrize(
    ("values", "left", "deleted"),
    [
        pytest.param({"name": PERSON}, OTHERS, 3, id="any column"),
        pytest.param({"id": 9, "name": PERSON}, None, 0, id="no row"),
    ],
)
def test_what_is_erased_is_in_no_file(
    tmp_path: Path,
    table: IcebergTable,
    values: dict[str, Any],
    left: dict[int, str | None] | None,
    deleted: int,
) -> None:
    """Not in rows, bounds or older snapshots; the last note stays, and the table goes on."""
    history_of_a_person(tmp_path, table)
    before = names_in(table)
    assert len(traces(tmp_path)) > 8

    assert erased(table, 5, **values) > 3

    [commit_of_it] = table.log().newest_first()
    assert (commit_of_it.txns, commit_of_it.changes_rows) == ({app_id(STREAM): 5}, deleted > 0)
    assert sorted(commit_of_it.metrics.values()) == [0, 0, deleted]
    assert names_in(table) == (before if left is None else left)
    assert table.log().row_count() == len(names_in(table))
    assert bool(traces(tmp_path)) == (values.get("name") != PERSON or not deleted)
    table.maintain(dt.timedelta(seconds=-60))
    commit(table, 6, change(6, inserted={7: "g"}, updated={1: "B"}))
    assert names_in(table)[1] == "B"


def test_an_erase_that_dies_is_finished_by_the_next(tmp_path: Path, table: IcebergTable) -> None:
    """Files go before the snapshots that lead to them, and what others may commit stays."""
    history_of_a_person(tmp_path, table)
    theirs = next(iter(data_in(tmp_path))).with_name("theirs.parquet")
    pq.write_table(ids(9), theirs)
    with crashing_at(Failpoint.VACUUMED), pytest.raises(PlannedError):
        erased(table, 5, name=PERSON)
    assert len(table.log().versions()) > 3
    table.maintain(LONG)

    erased(table, 6, name=PERSON)

    assert (len(table.log().versions()), theirs.exists()) == (1, True)
    assert (names_in(table), traces(tmp_path)) == (OTHERS, [])


def test_what_a_successor_has_written_stays_where_an_erase_slept(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be about to commit what it has written since the erase did."""
    commit(table, 1, change(1, inserted={1: PERSON, 2: "b"}))
    written = table.written_files()
    key = pa.table({"id": [1]})
    table.erase(key, replace(NOTE, kind="erase", seq=2))
    write = files.StagedSnapshot.write

    def write_and_wait(staged: files.StagedSnapshot, *given: Any) -> Any:
        updates = write(staged, *given)
        table.remove_older_versions(written)
        return updates

    monkeypatch.setattr(files.StagedSnapshot, "write", write_and_wait)

    commit(table, 3, change(3, inserted={3: "c"}))

    assert names_in(table) == {2: "b", 3: "c"}


def test_a_version_that_has_a_name_is_not_erased_behind_it(
    tmp_path: Path, table: IcebergTable
) -> None:
    """A tag keeps older rows: who erases is told of it before anything is changed."""
    commit(table, 1, change(1, inserted={1: PERSON}))
    foreign = others(tmp_path)
    (current,) = (each.snapshot_id for each in [foreign.current_snapshot()] if each)
    foreign.manage_snapshots().create_tag(current, "audit").commit()

    with pytest.raises(RefusedError, match=r"tags.*audit.*ALTER TABLE shop.orders DROP"):
        erased(table, 2, id=1)
    assert (last_seq(table), names_in(table)) == (1, {1: PERSON})
    with pytest.raises(RefusedError, match="audit"):
        table.remove_older_versions(table.written_files())


def test_a_table_of_another_stream_is_not_committed_to(tmp_path: Path, table: IcebergTable) -> None:
    """A stream that is led to the table of another sees no seq of its own, and is no first one."""
    commit(table, 1, change(1, inserted={1: "a"}))
    other = opened(tmp_path, stream="others")

    assert other.log().last_seq("others") is None
    assert not other.log().is_empty
    assert [app_id("others") in each.txns for each in other.log().newest_first()] == [False, False]


def test_a_scan_reads_a_part_of_a_file_at_a_time(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large a file is, little of it is in memory, and only the columns asked for."""
    monkeypatch.setattr("oncelake.ingestion.sinks.files._ROWS_READ_AT_ONCE", 2)
    commit(table, 1, change(1, inserted=dict.fromkeys(range(5), "a")))

    batches = list(table.scan(["name"]))

    assert [(len(batch), batch.num_columns) for batch in batches] == [(2, 1), (2, 1), (1, 1)]


def test_what_was_committed_outlives_a_power_cut(tmp_path: Path) -> None:
    """The catalog, which is on the disk with each commit, names only files that are there, too."""
    with mounted_disk(tmp_path / "disk") as disk:
        table = opened(disk.path)
        table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
        commit(table, 0, change(0, inserted={1: "a", 2: "b"}))

        disk.lose_power()

        assert names_in(opened(disk.path)) == {1: "a", 2: "b"}


def test_fields_in_another_order_are_no_wider_type() -> None:
    """The table would stay as it is, and every run would change it again."""
    found, wider, turned = map(
        parse_type,
        ("STRUCT<a: INT, b: INT>", "STRUCT<a: BIGINT, b: INT>", "STRUCT<b: INT, a: INT>"),
    )

    assert SINKS["iceberg"].can_widen(found, wider)
    assert not SINKS["iceberg"].can_widen(found, turned)
