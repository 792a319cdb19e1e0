"""Rows of a Delta table are found by their keys, and the files that have them written anew."""

from __future__ import annotations

import datetime as dt
import errno
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.errors import CommitConflictError, TableBusyError
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.sinks import files as shared_files
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.sinks.delta.transaction import DeltaTransaction
from oncelake.ingestion.storage.location import Location, Tag
from oncelake.ingestion.tables.commit_log import UnknownOutcomeError
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Identity
from oncelake.ingestion.tables.table import Change, TableDefinition

STREAM = "orders"
COLUMNS = "id BIGINT NOT NULL, name STRING"
DAY = dt.date(2024, 2, 28)
MOMENT = dt.datetime(2024, 2, 28, 12, 34, 56, 789_999, dt.UTC)
LONG_TEXT = "x" * 300
# Of each type three keys, each in a file of its own.
KEYS: Mapping[str, tuple[Any, Any, Any]] = {
    "TINYINT": (-128, 0, 127),
    "INT": (1, 2, 3),
    "BIGINT": (-(2**63), 0, 2**63 - 1),
    "STRING": ("a", "ü\U0001f600", ""),
    "STRING ": (LONG_TEXT + "a", LONG_TEXT + "b", "\uffff"),
    "BINARY": (b"", b"\x00", b"\xff"),
    "BOOLEAN": (True, False, None),
    "DATE": (DAY, dt.date.min, dt.date.max),
    "TIMESTAMP": (MOMENT, MOMENT.replace(year=1), MOMENT.replace(year=9999)),
    "TIMESTAMP_NTZ": (MOMENT.replace(tzinfo=None), dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)),  # noqa: DTZ001
    "DECIMAL(10, 2)": (Decimal("1.25"), Decimal("-99999999.99"), Decimal("0.10")),
    "DECIMAL(38, 3)": (Decimal("12345678901234567890.123"), Decimal("0.001"), Decimal("-1.000")),
}  # fmt: skip


def note(seq: int, *, run_id: str = "me", keys: tuple[str, ...] = ("id",)) -> CommitMetadata:
    """What a commit says of itself."""
    identity = Identity(cluster_id="c", topic_ids={}, keys=keys, order=())
    return CommitMetadata(
        kind="ingest", seq=seq, run_id=run_id, epoch=1, identity=identity, columns=COLUMNS,
        next=Offsets(),
    )  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> DeltaSinkTable:
    """An empty table that is keyed by ``id``."""
    return made(tmp_path / "orders")


def made(folder: Path, columns: str = COLUMNS) -> DeltaSinkTable:
    """Make a table; it has a seq, as every one where a stream has begun."""
    found = DeltaSinkTable(STREAM, Location.of(folder))
    declared = (*parse_columns(columns), *parse_columns("_offset BIGINT, _seq BIGINT"))
    found.create(TableDefinition(columns=tuple(declared), keys=("id",)))
    found.commit_note(note(0))
    return found


def rows_of(table: DeltaSinkTable, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows as the table has them."""
    schema = pa.schema(DeltaTable(table.path.path).schema().to_arrow())
    return pa.Table.from_pylist([{"_offset": 0, "_seq": 1, **row} for row in rows], schema=schema)


def change(
    table: DeltaSinkTable,
    *,
    inserted: Mapping[Any, str] | None = None,
    updated: Mapping[Any, str] | None = None,
    deleted: Iterable[Any] = (),
) -> Change:
    """Return a change of names by their ids."""
    new, old = (
        rows_of(table, ({"id": id, "name": name} for id, name in (each or {}).items()))
        for each in (inserted, updated)
    )
    gone = rows_of(table, ({"id": id} for id in deleted)).select(["id"])
    return Change(inserted=new, updated=old, deleted=gone)


def commit(table: DeltaSinkTable, seq: int, wanted: Change, *, looks_up: bool = True) -> None:
    """Commit as a run does: look up, then commit."""
    with closing(table.begin(seq)) as transaction:
        if looks_up:
            parts = (wanted.inserted, wanted.updated, wanted.deleted)
            transaction.rows_of(pa.concat_tables(part.select(["id"]) for part in parts))
        transaction.commit(wanted, note(seq))


def names(table: DeltaSinkTable) -> dict[Any, str]:
    """Return the names by their ids, as delta-rs reads them."""
    rows = DeltaTable(table.path.path).to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["name"] for row in rows}


@pytest.mark.parametrize("by_arrow", [False, True], ids=["DuckDB", "Arrow"])
@pytest.mark.parametrize("type_", KEYS)
def test_a_row_is_found_by_a_key_of_any_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: str, by_arrow: bool
) -> None:
    """In files of ours, and in one of delta-rs, whose statistics are less exact."""
    if by_arrow:
        monkeypatch.setattr(DeltaTransaction, "_is_searched_by_duckdb", False)
    # That it is a VARCHAR is Spark's to say.
    table = made(tmp_path / "a b'c", f"id {type_.replace('VARCHAR(400)', 'STRING')}, name STRING")
    keys = [key for key in KEYS[type_] if key is not None]
    for seq, key in enumerate(keys, 1):
        commit(table, seq, change(table, inserted={key: "new"}))
    seq = len(keys) + 1
    commit(table, seq, change(table, updated=dict.fromkeys(keys, "old")))
    write_deltalake(
        table.path.path, DeltaTable(table.path.path).to_pyarrow_table(), mode="overwrite"
    )

    for more, key in enumerate(keys, 1):
        commit(table, seq + more, change(table, updated={key: "found"}))

    assert names(table) == dict.fromkeys(keys, "found")


def test_statistics_hold_for_all_row_groups(
    table: DeltaSinkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many groups a file has, they tell its lowest and highest key."""
    monkeypatch.setattr(shared_files, "_ROWS_IN_GROUP", 2)
    commit(table, 1, change(table, inserted=dict.fromkeys((5, 6, 1, 2, 9, 8), "a")))

    added = pa.table(DeltaTable(table.path.path).get_add_actions(flatten=True)).to_pylist()

    (file,) = added
    assert (file["num_records"], file["min.id"], file["max.id"]) == (6, 1, 9)
    assert file["null_count.id"] == 0
    commit(table, 2, change(table, updated={9: "b"}, deleted=[1]))
    assert names(table) == {5: "a", 6: "a", 2: "a", 9: "b", 8: "a"}


def test_rows_of_many_files_are_written_anew(table: DeltaSinkTable) -> None:
    """Small ones become one; what nobody touches stays where it is."""
    for seq in range(1, 31):
        commit(table, seq, change(table, inserted={seq * 10 + n: f"{seq}.{n}" for n in range(3)}))
    untouched = set(table.path.files())

    wanted = change(
        table,
        inserted={1: "new"},
        updated={seq * 10 + 1: "changed" for seq in range(1, 21)},
        deleted=[seq * 10 + 2 for seq in range(1, 11)],
    )
    commit(table, 31, wanted)

    due = {seq * 10 + n: f"{seq}.{n}" for seq in range(1, 31) for n in range(3)}
    due |= {1: "new", **{seq * 10 + 1: "changed" for seq in range(1, 21)}}
    for seq in range(1, 11):
        del due[seq * 10 + 2]
    assert names(table) == due
    now = table.log().find(STREAM, 31)
    assert now is not None
    assert (now.operation, len(now.removed), len(now.added)) == ("MERGE", 20, 1)
    assert untouched < set(table.path.files())
    assert {name: now.metrics[f"numTargetRows{name}"] for name in ("Inserted", "Updated")} == {
        "Inserted": 1,
        "Updated": 20,
    }
    assert (now.metrics["numTargetRowsDeleted"], now.metrics["numTargetRowsCopied"]) == (10, 30)


def test_places_may_come_in_any_order(
    table: DeltaSinkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several files are searched at a time: which is the first to answer does not matter."""
    find_in = DeltaTransaction.find_in

    def shuffled(self: DeltaTransaction, keys: pa.Table, numbers: Iterable[int]) -> pa.Table:
        found = find_in(self, keys, numbers)
        return found.take([0, 3, 1, 4, 2, 5])

    for seq in (1, 2, 3):
        commit(table, seq, change(table, inserted={seq * 10 + n: "a" for n in range(3)}))
    monkeypatch.setattr(DeltaTransaction, "find_in", shuffled)

    commit(table, 4, change(table, updated={10: "b", 20: "b", 30: "b"}, deleted=[11, 21, 31]))

    assert names(table) == {10: "b", 20: "b", 30: "b", 12: "a", 22: "a", 32: "a"}


def test_only_files_that_may_have_a_key_are_searched(
    table: DeltaSinkTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics leave one of ten, and none for a key that is beyond them all."""
    for seq in range(1, 11):
        commit(table, seq, change(table, inserted={seq * 10: "a", seq * 10 + 5: "b"}))

    with closing(table.begin(11)) as transaction:
        found = [transaction.searched(pa.table({"id": ids})) for ids in ([35], [36], [1000], [32])]

    assert [len(each) for each in found] == [1, 0, 0, 1]


def test_rows_that_others_have_changed_end_the_commit(table: DeltaSinkTable) -> None:
    """What was looked up is not what is there, whichever rows they are."""
    commit(table, 1, change(table, inserted={1: "a"}))
    with closing(table.begin(2)) as transaction:
        transaction.rows_of(pa.table({"id": [1]}))
        write_deltalake(table.path.path, rows_of(table, [{"id": 9, "name": "x"}]), mode="append")

        with pytest.raises(TableBusyError, match="somebody else changed the table meanwhile"):
            transaction.commit(change(table, updated={1: "b"}), note(2))

    assert names(table) == {1: "a", 9: "x"}


def test_a_table_that_asks_for_more_ends_the_commit(table: DeltaSinkTable) -> None:
    """Nothing was evaluated of a constraint that came meanwhile."""
    with closing(table.begin(1)) as transaction:
        DeltaTable(table.path.path).alter.add_constraint({"positive": "id > 0"})

        with pytest.raises(TableBusyError, match="somebody else changed the table meanwhile"):
            transaction.commit(change(table, inserted={-1: "a"}), note(1))

    assert names(table) == {}


def test_files_that_others_have_put_together_are_searched_again(table: DeltaSinkTable) -> None:
    """Upkeep changes no row: the commit is made on what it has left; an erase likewise."""
    commit(table, 1, change(table, inserted={1: "a", 2: "b"}))
    commit(table, 2, change(table, inserted={3: "c", 4: "d"}))
    with closing(table.begin(3)) as transaction:
        transaction.rows_of(pa.table({"id": [2, 3]}))
        DeltaTable(table.path.path).optimize.compact()
        transaction.commit(change(table, updated={2: "B"}, deleted=[3]), note(3))
    commit(table, 4, change(table, inserted={5: "e"}))

    with closing(table.begin(5)) as transaction:
        transaction.searched(pa.table({"id": [1]}))
        DeltaTable(table.path.path).optimize.compact()
        transaction.erase(pa.table({"id": [1]}), replace(note(5), kind="erase"))

    assert names(table) == {2: "B", 4: "d", 5: "e"}


def test_who_comes_second_is_refused(table: DeltaSinkTable) -> None:
    """Two have begun the same seq: the second finds the first's, and its own files go."""
    with closing(table.begin(1)) as late:
        commit(table, 1, change(table, inserted={1: "first"}))
        files = set(table.path.files())

        with pytest.raises(CommitConflictError, match="holds seq 1 as its last"):
            late.commit(change(table, inserted={1: "second"}), note(1, run_id="another"))

    assert names(table) == {1: "first"}
    assert set(table.path.files()) == files


@pytest.mark.parametrize("is_there", [True, False])
def test_an_answer_that_is_lost_loses_no_file(
    table: DeltaSinkTable, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """Where a commit landed that failed to say so, its files stay; else they go."""
    create, files = Location.create, set(table.path.files())

    def failing(self: Location, content: bytes) -> Tag:
        if is_there:
            create(self, content)
        raise OSError(errno.EIO, "no answer")

    with closing(table.begin(1)) as transaction, monkeypatch.context() as patch:
        patch.setattr(Location, "create", failing)
        with pytest.raises(UnknownOutcomeError if is_there else OSError, match="no answer"):
            transaction.commit(change(table, inserted={1: "a"}), note(1))

    assert names(table) == ({1: "a"} if is_there else {})
    assert is_there or set(table.path.files()) == files


def test_a_checkpoint_is_written_as_often_as_the_table_says(table: DeltaSinkTable) -> None:
    """Every ten commits, so that the log is quick to read."""
    for seq in range(1, 20):
        commit(table, seq, change(table, inserted={seq: "a"}))

    log = set((table.path / "_delta_log").files())

    assert {name for name in log if "checkpoint." in name} == {
        f"{version:020d}.checkpoint.parquet" for version in (10, 20)
    }
    assert len(names(table)) == 19


@pytest.mark.spark
def test_spark_reads_it_and_goes_on(tmp_path: Path, spark: SparkSession) -> None:
    """Rows of every type, their statistics, and the history by MERGE's name."""
    columns = (
        "id BIGINT NOT NULL, name STRING, small TINYINT, day DATE, at TIMESTAMP, "
        "local TIMESTAMP_NTZ, price DECIMAL(10, 2), bytes BINARY, many ARRAY<STRUCT<n: INT>>, "
        "named MAP<STRING, DOUBLE>"
    )
    table = made(tmp_path / "orders", columns)
    row = {
        "id": 1, "name": "ü", "small": -1, "day": DAY, "at": MOMENT,
        "local": MOMENT.replace(tzinfo=None), "price": Decimal("1.25"), "bytes": b"\x00",
        "many": [{"n": 1}, {"n": None}], "named": [("a", 0.5)],
    }  # fmt: skip
    nothing = rows_of(table, [])
    rows = rows_of(table, [row, {**row, "id": 2}])
    commit(table, 1, Change(inserted=rows, updated=nothing, deleted=nothing.select(["id"])))
    new = rows_of(table, [{**row, "name": "new"}])
    commit(table, 2, Change(inserted=nothing, updated=new, deleted=nothing.select(["id"])))

    path = str(table.path)
    frame = spark.read.format("delta").load(path)
    found = frame.where(f"id = 1 AND at = timestamp'{MOMENT.isoformat()}'").collect()
    assert [(each.name, each.small, each.day, each.price) for each in found] == [
        ("new", -1, DAY, Decimal("1.25"))
    ]
    assert (found[0].many[0].n, found[0].named, bytes(found[0].bytes)) == (1, {"a": 0.5}, b"\x00")
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]
    assert (history.operation, history.operationMetrics["numTargetRowsUpdated"]) == ("MERGE", "1")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2")
    assert names(table) == {1: "new"}
    assert spark.read.format("delta").option("versionAsOf", 2).load(path).count() == 2
