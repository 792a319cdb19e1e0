"""Rows that are marked as gone are gone for every reader, and their files go in time."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.delta.durability import find_half_written
from oncelake.ingestion.delta.files import open_rows, read_delta, scan_rows
from oncelake.ingestion.delta.integrity import refuse_damaged, refuse_unreadable, settings_error
from oncelake.ingestion.delta.log import DeltaLog, all_files
from oncelake.ingestion.delta.vacuum import checkpoint, vacuum
from oncelake.ingestion.delta.vectors import Vector, vectors_of
from oncelake.ingestion.errors import DamagedTableError
from oncelake.ingestion.sinks.delta.compaction import compact
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import Change, TableDefinition
from oncelake.testing.tables import with_columns
from tests.sinks.test_delta_transaction import STREAM, note
from tests.support.rows import rows_by_delta_rs

A_DAY = dt.timedelta(days=1)
NOTHING = dt.timedelta(0)


def definition(*, vectors: bool = True) -> TableDefinition:
    """Return what the table shall be."""
    columns = parse_columns("id BIGINT NOT NULL, name STRING, _offset BIGINT, _seq BIGINT")
    return TableDefinition(columns=tuple(columns), keys=("id",), deletion_vectors=vectors)


@pytest.fixture
def table(tmp_path: Path) -> DeltaSinkTable:
    """An empty table that marks rows as gone."""
    made = DeltaSinkTable(STREAM, Location.of(tmp_path / STREAM))
    made.create(definition())
    made.commit_note(note(0))
    return made


class Rows:
    """The rows that a table must have, and its batches.

    Attributes:
        now: Names by their ids.
        then: The same behind each version.
    """

    def __init__(self, table: DeltaSinkTable) -> None:
        """Begin with an empty table."""
        self.table, self.seq = table, 0
        self.now: dict[int, str] = {}
        self.then: dict[int, dict[int, str]] = {}

    def commit(
        self,
        inserted: Mapping[int, str] | None = None,
        updated: Mapping[int, str] | None = None,
        deleted: tuple[int, ...] = (),
    ) -> None:
        """Commit a batch as a run does."""
        self.seq += 1
        change = Change(
            inserted=self._rows(inserted or {}),
            updated=self._rows(updated or {}),
            deleted=pa.table({"id": pa.array(deleted, pa.int64())}),
        )
        with closing(self.table.begin(self.seq)) as transaction:
            keys = [*change.updated["id"].to_pylist(), *deleted]
            wanted = pa.table({"id": pa.array(keys, pa.int64())})
            known = transaction.rows_of(wanted, ["id", "name"])
            assert known.column_names[:2] == ["id", "name"]
            assert {row["id"]: row["name"] for row in known.to_pylist()} == {
                key: self.now[key] for key in keys
            }
            transaction.commit(change, note(self.seq))
        self.table.seal()
        self.now |= {**(inserted or {}), **(updated or {})}
        self.now = {key: name for key, name in self.now.items() if key not in deleted}
        self._remember()

    def rewind(self, version: int) -> None:
        """Go back to a version."""
        self.seq += 1
        self.table.restore(version, note(self.seq))
        self.now = dict(self.then[version])
        self._remember()

    def erase(self, key: int) -> None:
        """Erase a key."""
        self.seq += 1
        self.table.erase(
            pa.table({"id": pa.array([key], pa.int64())}), replace(note(self.seq), kind="erase")
        )
        self.now.pop(key, None)
        self._remember()

    def _remember(self) -> None:
        self.then[self.table.log().versions()[0]] = dict(self.now)

    def _rows(self, names: Mapping[int, str]) -> pa.Table:
        found = [
            {"id": id_, "name": name, "_offset": 0, "_seq": self.seq} for id_, name in names.items()
        ]
        schema = pa.schema(read_delta(self.table.path).schema().to_arrow())
        return pa.Table.from_pylist(found, schema)

    def check(self) -> None:
        """Compare what each reader finds."""
        path = self.table.path
        ours = [row for batch in scan_rows(path, ["id", "name"]) for row in batch.to_pylist()]
        assert len(ours) == len(self.now) == open_rows(path).count_rows()
        assert {row["id"]: row["name"] for row in ours} == self.now
        theirs = rows_by_delta_rs(read_delta(path), ["id", "name"])
        assert sorted(theirs, key=lambda row: row["id"]) == sorted(ours, key=lambda row: row["id"])
        log = DeltaLog(path)
        assert log.row_count() == len(self.now)
        of_seq = pc.field("_seq") == self.seq
        assert (
            open_rows(path).count_rows(of_seq) == open_rows(path).to_table(filter=of_seq).num_rows
        )
        refuse_damaged(log)
        assert settings_error(STREAM, log) is None


def vector_count(table: DeltaSinkTable) -> int:
    """Count the files of which rows are marked."""
    return len(vectors_of(table.path, read_delta(table.path)))


def test_any_life_of_a_table_leaves_its_rows(tmp_path: Path) -> None:
    """Batches, rewinds, upkeep, erased keys and a switch, in any order."""
    for seed in range(int(os.environ.get("VECTOR_LIVES", "3"))):
        table = DeltaSinkTable(STREAM, Location.of(tmp_path / f"{seed}" / STREAM))
        table.create(definition())
        table.commit_note(note(0))
        dice, rows = Random(seed), Rows(table)
        rows.commit(inserted={n: f"{n}" for n in range(40)})
        for _ in range(25):
            step = dice.choice(("batch",) * 6 + ("rewind", "compact", "vacuum", "erase", "switch"))
            keys = dice.sample(sorted(rows.now), min(len(rows.now), dice.randint(0, 6)))
            if step == "batch":
                new = {dice.randrange(1000, 9999): "new" for _ in range(dice.randint(0, 5))}
                at = len(keys) // 2
                changed = {key: f"{dice.random()}" for key in keys[:at]}
                new = {key: name for key, name in new.items() if key not in rows.now}
                rows.commit(new, changed, tuple(keys[at:]))
            elif step == "rewind":
                reached = [
                    v for commit, v, lost in table.restorable() if not lost and v in rows.then
                ]
                if reached:
                    rows.rewind(dice.choice(reached))
            elif step == "compact":
                compact(table.path, target_bytes=dice.choice((1, 1 << 20)))
            elif step == "vacuum":
                vacuum(table.path, window=dice.choice((NOTHING, A_DAY)))
            elif step == "erase" and keys:
                rows.erase(keys[0])
            elif step == "switch":
                table.configure(deletion_vectors=dice.random() < 0.7)
            rows.check()


@pytest.mark.spark
def test_spark_reads_writes_and_optimizes_what_is_marked(
    table: DeltaSinkTable, spark: SparkSession
) -> None:
    """Its older versions, too; and what Spark has marked is heeded here."""
    rows = Rows(table)
    rows.commit(inserted=dict.fromkeys(range(99), "a"))
    for n in range(12):
        rows.commit(updated={n: f"b{n}"}, deleted=(n + 15,))
    assert vector_count(table) > 0
    path = str(table.path)

    def in_spark(version: int | None = None) -> dict[int, str]:
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return {row["id"]: row["name"] for row in reader.load(path).collect()}

    assert in_spark() == rows.now
    for version in (5, 11):
        assert in_spark(version) == rows.then[version]
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id IN (12, 13)")
    del rows.now[12], rows.now[13]
    rows.check()
    spark.sql(f"UPDATE delta.`{path}` SET name = 'spark' WHERE id = 14")
    rows.now[14] = "spark"
    rows.check()
    rows.commit(updated={14: "ours"})
    spark.sql(f"OPTIMIZE delta.`{path}`")
    rows.check()
    assert in_spark() == rows.now
    compact(table.path, target_bytes=1 << 20)
    assert in_spark() == rows.now
    rows.check()


def test_marked_files_are_written_anew_in_time(table: DeltaSinkTable) -> None:
    """A tenth of dead rows is enough for upkeep; any where vectors are not declared any more."""
    rows = Rows(table)
    rows.commit(inserted=dict.fromkeys(range(100), "a"))
    rows.commit(deleted=tuple(range(5)))
    compact(table.path, target_bytes=1)
    assert vector_count(table) == 1
    rows.commit(deleted=tuple(range(5, 20)))

    compact(table.path, target_bytes=1)
    assert vector_count(table) == 0
    rows.check()
    rows.commit(deleted=(50,))
    table.configure(deletion_vectors=False)
    compact(table.path, target_bytes=1)

    assert vector_count(table) == 0
    rows.check()


def test_vacuum_leaves_each_vector_that_is_needed(table: DeltaSinkTable) -> None:
    """delta-rs takes them all for files of nobody; those of older versions go with the window."""
    rows = Rows(table)
    rows.commit(inserted=dict.fromkeys(range(100), "a"))
    rows.commit(deleted=(1,))
    rows.commit(deleted=(2,))
    (vector,) = vectors_of(table.path, read_delta(table.path)).values()
    there = {name for name in table.path.files() if name.endswith(".bin")}
    assert len(there) == 2
    # When a file was written says nothing of when it left the table.
    for name in there:
        os.utime((table.path / name).path, (0, 0))

    vacuum(table.path, window=A_DAY)
    assert {name for name in table.path.files() if name.endswith(".bin")} == there
    time.sleep(0.01)
    vacuum(table.path, window=NOTHING)

    assert {name for name in table.path.files() if name.endswith(".bin")} == {vector.file}
    rows.check()


def test_nothing_is_left_of_an_erased_key(table: DeltaSinkTable) -> None:
    """Its bytes go also where its row was marked before, in a file that others need."""
    rows = Rows(table)
    rows.commit(inserted={n: f"secret-{n}" for n in range(100)})
    rows.commit(deleted=(7,))
    rows.commit(deleted=(8,))
    assert vector_count(table) == 1

    rows.erase(7)
    table.remove_older_versions(table.written_files())

    rows.check()
    files = [table.path / name for name in table.path.files() if name.endswith(".parquet")]
    import pyarrow.parquet as pq

    found = [
        name
        for file in files
        if "_delta_log" not in str(file)
        for name in pq.ParquetFile(file.path).read(["name"])["name"].to_pylist()
    ]
    assert "secret-7" not in found
    assert len(found) == len(rows.now)


def test_a_damaged_vector_is_named(table: DeltaSinkTable) -> None:
    """Cut short, gone, or altered by a disk: no row comes back in silence."""
    rows = Rows(table)
    rows.commit(inserted=dict.fromkeys(range(100), "a"))
    rows.commit(deleted=(7,))
    (vector,) = vectors_of(table.path, read_delta(table.path)).values()
    file = (table.path / str(vector.file)).path
    whole = file.read_bytes()

    for damaged in (
        whole[:-1],
        whole[:20] + bytes([whole[20] ^ 1]) + whole[21:],
        b"\2" + whole[1:],
    ):
        file.write_bytes(damaged)
        with pytest.raises(DamagedTableError, match="deletion vector"):
            refuse_unreadable(table.path)
    file.unlink()
    with pytest.raises(DamagedTableError, match=f"deletion vector {file.name} is missing"):
        refuse_damaged(DeltaLog(table.path))
    file.write_bytes(whole)
    rows.check()


@pytest.mark.parametrize("digit", [";", "_", "`", "|", "~", " "])
@pytest.mark.parametrize("storage", ["i", "u"])
def test_a_digit_that_is_none_is_named(table: DeltaSinkTable, storage: str, digit: str) -> None:
    """In a vector, or in the name of its file: ZeroMQ's digits, and no others."""
    place = f"Hell{digit}".rjust(20 if storage == "u" else 5, "0")
    vector = Vector(storage=storage, place=place, offset=1, size=4, rows=1)

    with pytest.raises(DamagedTableError, match="bad base85 character"):
        vector.rows_of(table.path)


def test_a_power_cut_that_loses_a_vector_undoes_its_commit(table: DeltaSinkTable) -> None:
    """A commit whose vectors are not on the disk was acknowledged to nobody."""
    rows = Rows(table)
    rows.commit(inserted=dict.fromkeys(range(100), "a"))
    rows.commit(deleted=(7,))
    (vector,) = vectors_of(table.path, read_delta(table.path)).values()
    assert find_half_written(table.path) is None
    newest = table.path / "_delta_log" / f"{table.log().versions()[0]:020d}.json"
    (newest.with_name(f".{newest.name}.crc")).delete()

    (table.path / str(vector.file)).path.write_bytes(b"")

    found = find_half_written(table.path)
    assert found is not None
    assert str(vector.file) in found.problem


def test_a_checkpoint_keeps_vectors(table: DeltaSinkTable) -> None:
    """The files of a version are read of a checkpoint, once its commits have left the log."""
    rows = Rows(table)
    rows.commit(inserted=dict.fromkeys(range(100), "a"))
    rows.commit(deleted=(7, 9))
    rows.commit(inserted={200: "b"})
    checkpoint(table.path)
    for name in table.path.files():
        if name.endswith(".json") and name.startswith("_delta_log/0"):
            number = int(name.removeprefix("_delta_log/").partition(".")[0])
            if number < table.log().versions()[0]:
                (table.path / name).delete()

    rows.check()
    rows.commit(deleted=(11,))
    rows.check()
    assert vector_count(table) == 1


def test_a_merge_rewrites_no_file_that_it_can_mark(table: DeltaSinkTable) -> None:
    """The commit names one file twice, copies no row, and counts what it did."""
    rows = Rows(table)
    rows.commit(inserted=dict.fromkeys(range(1000), "a"))
    before = all_files(table.path, read_delta(table.path))

    rows.commit(updated={3: "b"}, deleted=(4,))

    commit = table.log().find(STREAM, rows.seq)
    assert commit is not None
    assert before <= all_files(table.path, read_delta(table.path))
    wanted = {"numTargetRowsCopied": 0, "numTargetDeletionVectorsUpdated": 1}
    assert {name: commit.metrics[name] for name in wanted} == wanted
    content = (table.path / "_delta_log" / f"{commit.version:020d}.json").read().decode()
    adds = [json.loads(line)["add"] for line in content.splitlines() if '"add"' in line]
    (marked,) = (add for add in adds if "deletionVector" in add)
    stats: dict[str, Any] = json.loads(marked["stats"])
    assert (stats["numRecords"], stats["tightBounds"]) == (1000, False)


def test_a_key_that_comes_again_is_found_once(table: DeltaSinkTable) -> None:
    """Its old row is still in the file where it is marked, and nobody has looked it up."""
    rows = Rows(table)
    rows.commit(inserted=dict.fromkeys(range(100), "a"))
    rows.commit(deleted=(5,))
    rows.commit(inserted={5: "again"})

    updated = rows._rows({5: "b"})
    change = Change(
        inserted=updated.slice(0, 0), updated=updated, deleted=updated.select(["id"])[:0]
    )
    with closing(table.begin(4)) as transaction:
        transaction.commit(change, note(4))

    rows.now[5] = "b"
    rows.check()


def test_vectors_of_many_files_are_told_apart(table: DeltaSinkTable) -> None:
    """One file has the vectors of all files that a batch has touched."""
    rows = Rows(table)
    for at in range(3):
        rows.commit(inserted=dict.fromkeys(range(100 * at, 100 * at + 100), "a"))

    rows.commit(deleted=(1, 102, 103, 250, 251, 252))

    vectors = vectors_of(table.path, read_delta(table.path)).values()
    assert (len({each.file for each in vectors}), sorted(each.rows for each in vectors)) == (
        1,
        [1, 2, 3],
    )
    rows.check()


def test_a_merge_removes_the_vector_that_it_replaces(table: DeltaSinkTable) -> None:
    """By the protocol, a file is known by its path and its vector."""
    rows = Rows(table)
    rows.commit(inserted=dict.fromkeys(range(100), "a"))
    rows.commit(deleted=(1,))
    (before,) = vectors_of(table.path, read_delta(table.path)).values()

    rows.commit(deleted=(2,))

    name = f"{table.log().versions()[0]:020d}.json"
    lines = (table.path / "_delta_log" / name).read().splitlines()
    (remove,) = (json.loads(line)["remove"] for line in lines if b'"remove"' in line)
    assert remove["deletionVector"] == before.as_field()


def test_a_column_that_older_files_lack_is_null(table: DeltaSinkTable) -> None:
    """Whoever looks rows up asks for it all the same; their other files stay as they are."""
    rows = Rows(table)
    rows.commit(inserted=dict.fromkeys(range(100), "a"))
    (column,) = parse_columns("more TIMESTAMP_NTZ COMMENT 'since then'")

    table.reshape(with_columns(table, [column]), note(2))
    rows.seq += 1
    with closing(table.begin(3)) as transaction:
        found = transaction.rows_of(pa.table({"id": pa.array([3], pa.int64())}), ["id", "more"])
    rows.commit(updated={3: "b"})
    with closing(table.begin(4)) as transaction:
        keys = pa.table({"id": pa.array([3, 4], pa.int64())})
        both = transaction.rows_of(keys, ["id", "name", "more"])

    assert found.to_pylist() == [{"id": 3, "more": None}]
    assert sorted(each["name"] for each in both.to_pylist()) == ["a", "b"]
    assert [each.name for each in table.columns()][-1] == "more"
    rows.check()


def test_a_table_that_is_there_begins_to_mark(tmp_path: Path) -> None:
    """Its protocol is raised, and nothing else changes."""
    made = DeltaSinkTable(STREAM, Location.of(tmp_path / STREAM))
    made.create(definition(vectors=False))
    made.commit_note(note(0))
    rows = Rows(made)
    rows.commit(inserted=dict.fromkeys(range(100), "a"))

    made.configure(deletion_vectors=True)
    rows.commit(deleted=(3,))

    assert vector_count(made) == 1
    rows.check()
    assert DeltaTable(made.path.path).protocol().min_writer_version == 7
