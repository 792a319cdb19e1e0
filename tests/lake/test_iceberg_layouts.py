"""A partitioned Iceberg table has each row once, in its partition, wherever the row was before."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, unquote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThan, IsNull, LessThan
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    VoidTransform,
)
from pyiceberg.typedef import Record

from oncelake.ingestion.declaration.ddl import system_columns
from oncelake.ingestion.declaration.partitions import TYPES, DeclaredPartition, parse_partition
from oncelake.ingestion.errors import DamagedTableError, RefusedError, TableBusyError
from oncelake.ingestion.sinks.iceberg import files
from oncelake.ingestion.sinks.iceberg.table import IcebergTable
from oncelake.ingestion.tables.arrow_types import arrow_schema
from oncelake.ingestion.tables.table import Change, Layout, TableDefinition
from tests.lake.test_iceberg_table import PERSON, no_configuration, opened, others, traces
from tests.support.long import twins
from tests.support.orders import NOTE, STREAM, column

__all__ = ["no_configuration"]

COLUMNS: Final = (
    column("id BIGINT NOT NULL"),
    column("at TIMESTAMP"),
    column("region STRING"),
    column("name STRING"),
    *system_columns(),
)
SCHEMA: Final = arrow_schema(COLUMNS)
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LAYOUTS: Final = {
    "bucket of the key": ["bucket(4, id)"],
    "day": ["day(at)"],
    "identity": ["region"],
    "truncate": ["truncate(2, name)"],
    "two fields": ["day(at)", "bucket(3, id)"],
}
REGIONS: Final = ["eu", None, "", "a/b=c d", "é😀", "x" * 300, "..", "null"]
NAMES: Final = ["", None, "é😀x", "é😀y", "é", "aa", "ab", "aab"]
Row = dict[str, Any]


def created(lake: Path, *partitions: str, is_marked: bool = False) -> IcebergTable:
    """Make a partitioned table, and commit its first note."""
    table = opened(lake)
    fields = tuple(map(parse_partition, partitions))
    table.create(
        TableDefinition(
            columns=COLUMNS, keys=("id",), partitions=fields, deletion_vectors=is_marked
        )
    )
    table.commit_note(NOTE)
    return table


def row(id: int, dice: random.Random, seq: int) -> Row:
    """Make a row with values of all kinds."""
    micros = dice.choice([None, -1, 0, 86_399_999_999, 86_400_000_000, -86_400_000_001, 10**15])
    return {
        "id": id,
        "at": None if micros is None else EPOCH + dt.timedelta(microseconds=micros),
        "region": dice.choice(REGIONS),
        "name": dice.choice(NAMES),
        "_topic": "t",
        "_partition": 0,
        "_offset": seq,
        "_timestamp": EPOCH,
        "_epoch": 1,
        "_seq": seq,
    }


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Make rows of the table."""
    return pa.Table.from_pylist([*rows], SCHEMA)


def ids(values: Sequence[int]) -> pa.Table:
    """Make keys."""
    return pa.table({"id": pa.array([*values], pa.int64())})


def commit(
    table: IcebergTable,
    seq: int,
    *,
    inserted: Sequence[Row] = (),
    updated: Sequence[Row] = (),
    deleted: Sequence[int] = (),
) -> None:
    """Look up, and commit, as a batch does."""
    keys = ids([*(each["id"] for each in (*inserted, *updated)), *deleted])
    change = Change(inserted=table_of(inserted), updated=table_of(updated), deleted=ids(deleted))
    with closing(table.begin(seq)) as transaction:
        found = transaction.rows_of(keys)
        assert found.num_rows == len(updated) + len(deleted)
        transaction.commit(change, replace(NOTE, seq=seq))


def rows_of(table: IcebergTable) -> dict[int, Row]:
    """Read all rows by their keys, of which none is there twice."""
    found = [each for batch in table.scan(SCHEMA.names) for each in batch.to_pylist()]
    by_id = {each["id"]: each for each in found}
    assert len(by_id) == len(found), "a key is there twice"
    return by_id


def files_of(lake: Path) -> list[DataFile]:
    """List the files that are in the table."""
    return [task.file for task in others(lake).scan().plan_files()]


def check_partitions(lake: Path) -> None:
    """Each file's partition is that of each of its rows, by pyiceberg's own transforms."""
    foreign = others(lake)
    schema = foreign.schema()
    for file in files_of(lake):
        spec = foreign.specs()[file.spec_id]
        found = pa.Table.from_batches(files.read_file(foreign, file, schema)).to_pylist()
        for nth, field in enumerate(spec.fields):
            source = schema.find_field(field.source_id)
            compute = field.transform.transform(source.field_type)
            assert {compute(each[source.name]) for each in found} == {file.partition[nth]}


@pytest.mark.parametrize("is_marked", [False, *twins(True)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_where_they_belong_after_every_change(
    tmp_path: Path, layout: str, *, is_marked: bool
) -> None:
    """Inserts, updates that move rows, and deletes leave each row once, as it was last written."""
    table, dice = created(tmp_path, *LAYOUTS[layout], is_marked=is_marked), random.Random(layout)
    assert [str(each) for each in table.partitions()] == LAYOUTS[layout]
    assert table.check(table.log()) is None
    due: dict[int, Row] = {}

    for seq in range(1, 6):
        chosen = dice.sample([*due], len(due) // 2)
        updated = [row(id, dice, seq) for id in chosen[::2]]
        deleted = chosen[1::2]
        inserted = [row(seq * 100 + nth, dice, seq) for nth in range(12)]
        commit(table, seq, inserted=inserted, updated=updated, deleted=deleted)
        due |= {each["id"]: each for each in (*inserted, *updated)}
        due = {id: each for id, each in due.items() if id not in deleted}
    for seq in range(6, 8):
        inserted = [row(seq * 100 + nth, dice, seq) for nth in range(12)]
        commit(table, seq, inserted=inserted)
        due |= {each["id"]: each for each in inserted}

    assert rows_of(table) == due
    check_partitions(tmp_path)
    read = others(tmp_path).scan().to_arrow().cast(SCHEMA).to_pylist()
    assert {each["id"]: each for each in read} == due
    assert len(read) == len(due)
    before = len(files_of(tmp_path))
    done = table.maintain(dt.timedelta(0))
    assert before - len(files_of(tmp_path)) == done["compacted"] - done["written"] > 0
    partitions = {str(file.partition) for file in files_of(tmp_path)}
    assert len(files_of(tmp_path)) == len(partitions)
    assert rows_of(table) == due
    check_partitions(tmp_path)


@pytest.mark.parametrize("is_marked", [False, *twins(True)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_that_moves_is_gone_from_where_it_was(
    tmp_path: Path, layout: str, *, is_marked: bool
) -> None:
    """Between each two values, null among them; a delete takes it from the last place."""
    table = created(tmp_path, *LAYOUTS[layout], is_marked=is_marked)
    dice, seq = random.Random(1), 1
    fixed = row(2, dice, 1)
    commit(table, seq, inserted=[row(1, dice, 1), fixed])
    for region, name in zip(REGIONS, NAMES, strict=True):
        seq += 1
        moved = {**row(1, dice, seq), "region": region, "name": name}
        commit(table, seq, updated=[moved])

        assert rows_of(table) == {1: moved, 2: fixed}
    commit(table, seq + 1, deleted=[1])

    assert rows_of(table) == {2: fixed}


def test_only_partitions_of_the_keys_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the partition follows from the key, a lookup reads its files and no other."""
    table, dice = created(tmp_path, "bucket(8, id)", "day(at)"), random.Random(3)
    commit(table, 1, inserted=[row(id, dice, 1) for id in range(100)])
    read = set[str]()
    read_file = files.read_file

    def counted(of: Any, file: DataFile, columns: Schema) -> Any:
        read.add(file.file_path)
        return read_file(of, file, columns)

    monkeypatch.setattr(files, "read_file", counted)
    with closing(table.begin(2)) as transaction:
        assert transaction.rows_of(ids([7, 7_000])).num_rows == 1
    monkeypatch.undo()

    compute = BucketTransform(8).transform(others(tmp_path).schema().find_type("id"))
    buckets = {unquote_plus(path.split("id_bucket_8=")[1][0]) for path in read}
    assert buckets == {str(compute(7)), str(compute(7_000))}
    assert len(read) > 2


FILTERS: Final[list[tuple[str, BooleanExpression, Any]]] = [
    ("bucket(4, id)", EqualTo("id", 7), lambda each: each["id"] == 7),
    ("truncate(10, id)", LessThan("id", 15), lambda each: each["id"] < 15),
    ("id", GreaterThan("id", 35), lambda each: each["id"] > 35),
    (
        "day(at)",
        LessThan("at", "1970-01-01T00:00:00+00:00"),
        lambda each: each["at"] is not None and each["at"] < EPOCH,
    ),
    (
        "hour(at)",
        And(
            GreaterThan("at", "1969-12-31T23:59:00+00:00"),
            LessThan("at", "1970-01-01T00:00:00+00:00"),
        ),
        lambda each: each["at"] == EPOCH - dt.timedelta(microseconds=1),
    ),
    (
        "month(at)",
        EqualTo("at", "1970-01-01T23:59:59.999999+00:00"),
        lambda each: each["at"] == EPOCH + dt.timedelta(microseconds=86_399_999_999),
    ),
    ("year(at)", IsNull("at"), lambda each: each["at"] is None),
    ("region", EqualTo("region", "a/b=c d"), lambda each: each["region"] == "a/b=c d"),
    ("region", EqualTo("region", ""), lambda each: each["region"] == ""),
    ("region", IsNull("region"), lambda each: each["region"] is None),
    ("truncate(2, name)", EqualTo("name", "é😀y"), lambda each: each["name"] == "é😀y"),
    ("bucket(3, name)", EqualTo("name", "é😀y"), lambda each: each["name"] == "é😀y"),
    ("bucket(3, region)", EqualTo("region", "x" * 300), lambda each: each["region"] == "x" * 300),
]


@pytest.mark.parametrize(("by", "wanted", "is_wanted"), FILTERS, ids=[f[0] for f in FILTERS])
def test_a_reader_that_filters_finds_all_its_rows(
    tmp_path: Path, by: str, wanted: BooleanExpression, is_wanted: Any
) -> None:
    """It skips partitions by their values, which are those that it computes itself."""
    table, dice = created(tmp_path, by), random.Random(4)
    rows = [row(id, dice, 1) for id in range(40)]
    commit(table, 1, inserted=rows)

    foreign = others(tmp_path)
    found = foreign.scan(row_filter=wanted).to_arrow()["id"].to_pylist()
    assert sorted(found) == [each["id"] for each in rows if is_wanted(each)]
    assert found
    assert len([*foreign.scan(row_filter=wanted).plan_files()]) < len(files_of(tmp_path))


def test_thousands_of_partitions_need_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is written behind the other, and begun again where more of it comes later."""
    monkeypatch.setattr("oncelake.ingestion.sinks.files._OPEN_FILES", 3)
    monkeypatch.setattr("oncelake.ingestion.sinks.files._ROWS_IN_GROUP", 20)
    table, dice = created(tmp_path, "id"), random.Random(5)
    open_files, most = set[str](), 0
    begin, describe = files.IcebergFileWriter._begin, files.IcebergFileWriter._describe

    def counting_begin(writer: Any) -> Any:
        nonlocal most
        path, stream = begin(writer)
        open_files.add(path)
        most = max(most, len(open_files))
        return path, stream

    def counting_describe(writer: Any, path: str, *rest: Any) -> Any:
        open_files.discard(path)
        return describe(writer, path, *rest)

    monkeypatch.setattr(files.IcebergFileWriter, "_begin", counting_begin)
    monkeypatch.setattr(files.IcebergFileWriter, "_describe", counting_describe)

    commit(table, 1, inserted=[row(id, dice, 1) for id in range(50)])

    assert (len(rows_of(table)), len(files_of(tmp_path)), most) == (50, 50, 3)


def test_a_commit_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of all partitions go, the one that is being written too."""
    table, dice = created(tmp_path, "region"), random.Random(6)
    describe = files.IcebergFileWriter._describe
    described: list[str] = []

    def failing(writer: Any, path: str, *rest: Any) -> Any:
        described.append(path)
        if len(described) == 3:
            raise OSError(28, "no space left on device")
        return describe(writer, path, *rest)

    monkeypatch.setattr(files.IcebergFileWriter, "_describe", failing)
    with pytest.raises(OSError, match="no space"):
        commit(table, 1, inserted=[row(id, dice, 1) for id in range(60)])

    assert [*(tmp_path / ".iceberg").rglob("*.parquet")] == []
    assert rows_of(table) == {}


def test_a_moment_that_python_lacks_has_a_partition(tmp_path: Path) -> None:
    """Such a row is written, found, and deleted."""
    table = created(tmp_path, "day(at)", "hour(at)", "at")
    far = table_of([row(1, random.Random(0), 1)])
    moment = pa.array([1 << 60], pa.int64()).cast(SCHEMA.field("at").type)
    far = far.set_column(1, "at", moment)

    with closing(table.begin(1)) as transaction:
        change = Change(inserted=far, updated=far[:0], deleted=ids([]))
        transaction.commit(change, replace(NOTE, seq=1))

    assert pa.Table.from_batches(table.scan(["at"]))["at"].cast(pa.int64()).to_pylist() == [1 << 60]
    with closing(table.begin(2)) as transaction:
        assert transaction.rows_of(ids([1])).num_rows == 1
        change = Change(inserted=far[:0], updated=far[:0], deleted=ids([1]))
        transaction.commit(change, replace(NOTE, seq=2))
    assert table.log().row_count() == 0


def test_a_table_that_somebody_partitioned_is_taken_as_it_is(tmp_path: Path) -> None:
    """By its own fields and their names, those that are always null too."""
    entry: Any = opened(tmp_path)._entry
    theirs = created(tmp_path / "theirs")
    schema = others(tmp_path / "theirs").schema()
    spec = PartitionSpec(
        PartitionField(schema.find_field("id").field_id, 1000, VoidTransform(), "gone"),
        PartitionField(schema.find_field("at").field_id, 1001, DayTransform(), "on"),
        PartitionField(schema.find_field("id").field_id, 1002, BucketTransform(5), "part"),
    )
    with entry.session() as catalog:
        catalog.create_namespace("shop")
        catalog.create_table(entry.identifier, schema, entry.new_location(), partition_spec=spec)
    table, dice = opened(tmp_path), random.Random(7)

    table.create(TableDefinition(columns=COLUMNS, keys=("id",)))
    table.commit_note(NOTE)
    rows = [row(id, dice, 1) for id in range(50)]
    commit(table, 1, inserted=rows)
    commit(table, 2, deleted=[3, 4])

    assert [str(each) for each in table.partitions()] == ["day(at)", "bucket(5, id)"]
    assert theirs.partitions() == ()
    assert rows_of(table) == {each["id"]: each for each in rows if each["id"] not in (3, 4)}
    check_partitions(tmp_path)
    assert {file.file_path.split("/")[-4] for file in files_of(tmp_path)} == {"gone=null"}


def test_upkeep_puts_more_partitions_together_than_files_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition after the other, so that there is nothing left to do."""
    monkeypatch.setattr("oncelake.ingestion.sinks.files._OPEN_FILES", 3)
    table, dice = created(tmp_path, "bucket(20, id)"), random.Random(17)
    for seq in range(1, 5):
        commit(table, seq, inserted=[row(seq * 100 + nth, dice, seq) for nth in range(60)])
    before = rows_of(table)

    done = table.maintain(dt.timedelta(0))

    parts = {str(file.partition) for file in files_of(tmp_path)}
    assert done["written"] == len(files_of(tmp_path)) == len(parts) > 10
    assert table.maintain(dt.timedelta(0))["compacted"] == 0
    assert rows_of(table) == before


@pytest.mark.parametrize("by", ["region", "truncate(9, region)"])
def test_what_is_erased_is_in_no_partition(tmp_path: Path, by: str) -> None:
    """A partition is a value of its rows, in manifests and in the names of files and folders."""
    table, dice = created(tmp_path, by), random.Random(18)
    rows = [{**row(id, dice, 1), "region": "eu"} for id in range(9)]
    rows.append({**row(9, dice, 1), "region": PERSON})
    commit(table, 1, inserted=rows)
    assert traces(tmp_path)

    written = table.written_files()
    table.erase(ids([9]), replace(NOTE, kind="erase", seq=2))
    table.remove_older_versions(written)

    assert [*rows_of(table)] == [*range(9)]
    assert not traces(tmp_path)
    folders = [quote_plus(str(each)) for each in (tmp_path / ".iceberg").rglob("*")]
    assert not [each for each in folders if "Lovelace" in each or "region=Ada" in each]


def test_a_batch_that_only_inserts_reads_no_list_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs as much, however many files there are; so does a note."""
    table, dice = created(tmp_path, "region"), random.Random(19)
    commit(table, 1, inserted=[row(1, dice, 1)])

    def fail(*_: object) -> None:
        raise AssertionError("the files were listed")

    monkeypatch.setattr("oncelake.ingestion.sinks.iceberg.catalog.CatalogEntry.data_files", fail)
    with closing(table.begin(2)) as transaction:
        new = Change(inserted=table_of([row(2, dice, 2)]), updated=table_of([]), deleted=ids([]))
        transaction.commit(new, replace(NOTE, seq=2))
    table.commit_note(replace(NOTE, seq=3))
    monkeypatch.undo()

    assert {*rows_of(table)} == {1, 2}


def test_a_table_whose_partitions_are_not_computed_is_refused(tmp_path: Path) -> None:
    """Nothing is written, and the message names the field."""
    table = created(tmp_path)
    with others(tmp_path).update_schema() as update:
        update.add_column("share", files.iceberg.DoubleType())
    with others(tmp_path).update_spec() as update:
        update.add_field("share", IdentityTransform())

    assert "is partitioned by identity of share" in str(table.check(table.log()))
    with pytest.raises(RefusedError, match="identity of share, of which no values are computed"):
        table.begin(1)


def test_files_of_other_partitions_stay_and_are_found(tmp_path: Path) -> None:
    """Where somebody changes the fields, rows that are written anew follow them, others do not."""
    table, dice = created(tmp_path, "bucket(4, id)"), random.Random(11)
    commit(table, 1, inserted=[row(id, dice, 1) for id in range(40)])
    with others(tmp_path).update_spec() as update:
        update.remove_field("id_bucket_4")
        update.add_field("region", IdentityTransform())
    assert [*map(str, table.partitions())] == ["region"]
    updated = [row(id, dice, 2) for id in range(5)]
    commit(table, 2, inserted=[row(100, dice, 2)], updated=updated, deleted=[39])
    with others(tmp_path).update_spec() as update:
        update.add_field("id", BucketTransform(2), "part")
    commit(table, 3, inserted=[row(101, dice, 3)], deleted=[3, 38])

    due = {*range(3), *range(4, 38), 100, 101}
    assert {*rows_of(table)} == due
    check_partitions(tmp_path)
    assert {file.spec_id for file in files_of(tmp_path)} > {2}
    table.maintain(dt.timedelta(0))
    commit(table, 4, deleted=[0, 101])
    assert {*rows_of(table)} == due - {0, 101}
    check_partitions(tmp_path)


def test_rows_of_other_buckets_are_put_into_those_of_today(tmp_path: Path) -> None:
    """A number of before is never taken for one of the new buckets."""
    table, dice = created(tmp_path, "bucket(4, id)"), random.Random(15)
    commit(table, 1, inserted=[row(id, dice, 1) for id in range(30)])
    more = (parse_partition("bucket(7, id)"),)
    same = Layout(columns=table.columns(), found=table.columns(), partitions=more)
    table.reshape(same, replace(NOTE, seq=2))

    commit(table, 3, updated=[row(id, dice, 3) for id in range(0, 30, 3)], deleted=[1])

    assert {*rows_of(table)} == {*range(30)} - {1}
    assert 1 in {file.spec_id for file in files_of(tmp_path)}
    check_partitions(tmp_path)


def test_a_new_column_may_partition_what_comes_with_it(tmp_path: Path) -> None:
    """In one commit; a field that was there before is the same one again, and its column stays."""
    table, dice = created(tmp_path, "region", "bucket(4, id)"), random.Random(13)
    commit(table, 1, inserted=[row(id, dice, 1) for id in range(20)])
    more = column("more INT")
    fields = tuple(map(parse_partition, ("bucket(4, id)", "truncate(10, more)")))
    wider = Layout(columns=(*COLUMNS, more), found=table.columns(), partitions=fields)

    table.reshape(wider, replace(NOTE, seq=2))
    new = table_of([row(100, dice, 3)]).append_column("more", pa.array([17], pa.int32()))
    with closing(table.begin(3)) as transaction:
        change = Change(inserted=new, updated=new[:0], deleted=ids([3]))
        transaction.commit(change, replace(NOTE, seq=3))

    first, second = others(tmp_path).metadata.partition_specs
    assert [*map(str, table.partitions())] == ["bucket(4, id)", "truncate(10, more)"]
    assert [field.field_id for field in first.fields] == [1000, 1001]
    assert [field.field_id for field in second.fields] == [1001, 1002]
    assert {*rows_of(table)} == {*range(20), 100} - {3}
    check_partitions(tmp_path)
    for columns, gone in ((COLUMNS, "more"), ((*COLUMNS[:2], *COLUMNS[3:], more), "region")):
        smaller = Layout(columns=columns, found=table.columns())
        with pytest.raises(RefusedError, match=f"files of it are partitioned by {gone}"):
            table.reshape(smaller, replace(NOTE, seq=4))
    back = tuple(map(parse_partition, ("region", "bucket(4, id)")))
    same = Layout(columns=table.columns(), found=table.columns(), partitions=back)
    table.reshape(same, replace(NOTE, seq=4))
    assert others(tmp_path).spec() == first


def test_a_version_without_the_column_comes_back_without_its_partitions(tmp_path: Path) -> None:
    """New files follow those of before; else no run could go on."""
    table, dice = created(tmp_path, "bucket(4, id)"), random.Random(17)
    commit(table, 1, inserted=[row(id, dice, 1) for id in range(20)])
    before = table.log().find(STREAM, 1)
    assert before is not None
    fields = tuple(map(parse_partition, ("bucket(4, id)", "truncate(10, more)")))
    wider = (*COLUMNS, column("more INT"))
    table.reshape(
        Layout(columns=wider, found=table.columns(), partitions=fields), replace(NOTE, seq=2)
    )

    table.restore(before.version, replace(NOTE, seq=3))

    assert table.columns() == COLUMNS
    assert [*map(str, table.partitions())] == ["bucket(4, id)"]
    commit(table, 4, updated=[row(3, dice, 4)], deleted=[1])
    assert {*rows_of(table)} == {*range(20)} - {1}
    check_partitions(tmp_path)


def test_partitions_that_somebody_changes_meanwhile_make_the_table_busy(tmp_path: Path) -> None:
    """A commit is made on exactly the table that was loaded."""
    table, dice = created(tmp_path, "region"), random.Random(14)
    with closing(table.begin(1)) as transaction:
        with others(tmp_path).update_spec() as update:
            update.add_field("id", BucketTransform(2), "part")
        new = table_of([row(1, dice, 1)])
        change = Change(inserted=new, updated=new[:0], deleted=ids([]))
        with pytest.raises(TableBusyError, match="somebody else changed the table"):
            transaction.commit(change, replace(NOTE, seq=1))

    commit(table, 1, inserted=[row(1, dice, 1)])
    assert {*rows_of(table)} == {1}


def test_a_field_is_never_called_as_another_column(tmp_path: Path) -> None:
    """A reader would take its values for that column's."""
    table = opened(tmp_path)
    columns = (*COLUMNS[:2], column("at_day STRING"), *COLUMNS[4:])
    fields = (parse_partition("day(at)"), parse_partition("at_day"))
    table.create(TableDefinition(columns=columns, keys=("id",), partitions=fields))

    spec = others(tmp_path).spec()
    assert [field.name for field in spec.fields] == ["at_day_", "at_day"]


def test_a_column_of_a_partition_takes_a_wider_type(tmp_path: Path) -> None:
    """Files of before are found by the wider keys."""
    columns = (column("id INT NOT NULL"), *COLUMNS[1:])
    table, dice = opened(tmp_path), random.Random(8)
    fields = tuple(map(parse_partition, ("bucket(4, id)", "truncate(10, id)", "id")))
    table.create(TableDefinition(columns=columns, keys=("id",), partitions=fields))
    table.commit_note(NOTE)
    narrow = table_of([row(id, dice, 1) for id in range(5)])
    narrow = narrow.set_column(0, pa.field("id", pa.int32(), False), narrow["id"].cast(pa.int32()))
    with closing(table.begin(1)) as transaction:
        change = Change(inserted=narrow, updated=narrow[:0], deleted=narrow[:0].select(["id"]))
        transaction.commit(change, replace(NOTE, seq=1))

    table.reshape(Layout(columns=COLUMNS, found=table.columns()), replace(NOTE, seq=2))
    new = row(1 << 40, dice, 3)
    commit(table, 3, inserted=[new], updated=[row(2, dice, 3)], deleted=[1])
    commit(table, 4, updated=[{**new, "_seq": 4}])

    assert {*rows_of(table)} == {0, 2, 3, 4, 1 << 40}
    check_partitions(tmp_path)


OF_EACH_TYPE: Final[dict[str, list[Any]]] = {
    "BOOLEAN": [True, False],
    "INT": [-(2**31) + 1000, -1, 0, 2**31 - 1],
    "BIGINT": [-(2**63) + 1000, -1, 0, 2**63 - 1],
    "DECIMAL(9,2)": [Decimal("-9999999.99"), Decimal("-1.28"), Decimal("0.00"), Decimal("1.27")],
    "DECIMAL(38,0)": [Decimal(-(10**38) + 1), Decimal(128), Decimal(10**38 - 1)],
    "STRING": ["", "é😀x", "a/b", "\u0000"],
    "BINARY": [b"", b"\xff\xfe", b"abcd"],
    "DATE": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    "TIMESTAMP": [EPOCH - dt.timedelta(microseconds=1), EPOCH],
    "TIMESTAMP_NTZ": [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 23, 59, 59)],  # noqa: DTZ001
}


@pytest.mark.parametrize("type_", OF_EACH_TYPE)
def test_a_key_of_each_type_is_found_in_its_partition(tmp_path: Path, type_: str) -> None:
    """By each transform of the type, also after manifests were put together."""
    value = column(f"value {type_} NOT NULL")
    columns, table = (value, *COLUMNS[1:]), opened(tmp_path)
    fields = [
        DeclaredPartition(transform=word, column="value", number=number)
        for word, number in {"identity": 0, "day": 0, "bucket": 4, "truncate": 3}.items()
        if value.type.word in TYPES[word]
    ]
    table.create(TableDefinition(columns=columns, keys=("value",), partitions=tuple(fields)))
    few = {"commit.manifest.min-count-to-merge": "2"}
    others(tmp_path).transaction().set_properties(few).commit_transaction()
    schema, dice = arrow_schema(columns), random.Random(12)
    rows = [{**row(0, dice, 0), "value": each} for each in OF_EACH_TYPE[type_]]

    for seq, each in enumerate(rows):
        with closing(table.begin(seq)) as transaction:
            new = pa.Table.from_pylist([each], schema)
            change = Change(inserted=new, updated=new[:0], deleted=new[:0].select(["value"]))
            transaction.commit(change, replace(NOTE, seq=seq))

    assert len(files_of(tmp_path)) == len(rows)
    for seq, each in enumerate(rows, len(rows)):
        keys = pa.Table.from_pylist([each], schema).select(["value"])
        with closing(table.begin(seq)) as transaction:
            assert len(transaction.searched(keys)) == 1
            assert transaction.rows_of(keys)["value"].to_pylist() == [each["value"]]
            nothing = pa.Table.from_pylist([], schema)
            change = Change(inserted=nothing, updated=nothing, deleted=keys)
            transaction.commit(change, replace(NOTE, seq=seq))
    assert table.log().row_count() == 0


def test_an_erased_value_is_looked_for_in_its_partition(tmp_path: Path) -> None:
    """A column that is erased by may be the partition's own."""
    table, dice = created(tmp_path, "region"), random.Random(9)
    rows = [row(id, dice, 1) for id in range(60)]
    commit(table, 1, inserted=rows)

    table.erase(pa.table({"region": ["a/b=c d", ""]}), replace(NOTE, kind="erase", seq=2))

    assert {*rows_of(table)} == {
        each["id"] for each in rows if each["region"] not in ("a/b=c d", "")
    }


def test_an_earlier_version_comes_back(tmp_path: Path) -> None:
    """Its files have their partitions still."""
    table, dice = created(tmp_path, "day(at)", "region"), random.Random(10)
    rows = [row(id, dice, 1) for id in range(30)]
    commit(table, 1, inserted=rows)
    before = table.log().find(STREAM, 1)
    assert before is not None
    commit(table, 2, updated=[row(id, dice, 2) for id in range(10)], deleted=[20, 21])

    table.restore(before.version, replace(NOTE, seq=3))
    commit(table, 4, deleted=[0])

    assert rows_of(table) == {each["id"]: each for each in rows[1:]}
    check_partitions(tmp_path)


@pytest.mark.parametrize("is_marked", [False, True], ids=["rewritten", "marked"])
def test_files_of_earlier_partitions_come_back(tmp_path: Path, *, is_marked: bool) -> None:
    """A rewind over an alter brings them back with the partitions that they have."""
    table, dice = created(tmp_path, "bucket(4, id)", is_marked=is_marked), random.Random(16)
    rows = [row(id, dice, 1) for id in range(30)]
    commit(table, 1, inserted=rows)
    before = table.log().find(STREAM, 1)
    assert before is not None
    fields = tuple(map(parse_partition, ("region", "bucket(7, id)")))
    same = Layout(columns=table.columns(), found=table.columns(), partitions=fields)
    table.reshape(same, replace(NOTE, seq=2))
    commit(table, 3, updated=[row(id, dice, 3) for id in range(10)], deleted=[29])

    table.restore(before.version, replace(NOTE, seq=4))
    assert rows_of(table) == {each["id"]: each for each in rows}
    check_partitions(tmp_path)
    commit(table, 5, updated=[row(id, dice, 5) for id in range(5)], deleted=[20])

    assert {*rows_of(table)} == {*range(30)} - {20}
    check_partitions(tmp_path)


# As files of others must be, or pyiceberg does not take them.
REQUIRED: Final = SCHEMA.set(0, SCHEMA.field(0).with_nullable(False))


def added(
    lake: Path, rows: Sequence[Row], folder: str, without: Sequence[str], *values: Any
) -> None:
    """Add a file of others, without some columns, to a partition, as Spark's `add_files` does."""
    foreign, path = others(lake), lake / folder / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table_of(rows).cast(REQUIRED).drop_columns([*without]), path)
    with foreign.transaction() as transaction:
        named = create_mapping_from_schema(foreign.schema()).model_dump_json()
        transaction.set_properties({"schema.name-mapping.default": named})
        file = parquet_file_to_data_file(foreign.io, foreign.metadata, str(path))
        file[files._PARTITION] = Record(*values)
        file.spec_id = foreign.spec().spec_id
        with transaction.update_snapshot().fast_append() as append:
            append.append_data_file(file)


def test_a_column_that_a_file_of_hive_lacks_is_its_partitions(tmp_path: Path) -> None:
    """For readers, look-ups and upkeep, of each kind of value; null is a partition, too."""
    table, dice = created(tmp_path, "region", "at"), random.Random(30)
    lacking, at = ("region", "at"), EPOCH + dt.timedelta(days=3, microseconds=1)
    folders: list[tuple[str | None, dt.datetime | None]] = [("eu", at), ("us", None), (None, at)]
    expected = dict[int, Row]()
    for nth, (region, moment) in enumerate(folders):
        rows = [{**row(id, dice, 0), "region": region, "at": moment} for id in (nth, nth + 10)]
        micros = None if moment is None else (moment - EPOCH) // dt.timedelta(microseconds=1)
        added(tmp_path, rows, f"region={region}/at={nth}", lacking, region, micros)
        expected |= {each["id"]: each for each in rows}

    assert rows_of(table) == expected
    seen = others(tmp_path).scan(selected_fields=("id", "region")).to_arrow().to_pylist()
    assert {each["id"]: each["region"] for each in seen} == {
        id: each["region"] for id, each in expected.items()
    }
    moved = {**expected[0], "region": "asia"}
    commit(table, 1, updated=[moved], deleted=[11])
    expected = {**expected, 0: moved}
    del expected[11]
    assert rows_of(table) == expected
    table.maintain(dt.timedelta(0), target_bytes=1 << 20)
    assert rows_of(table) == expected


def test_files_without_ids_are_read_by_the_tables_names(tmp_path: Path) -> None:
    """As pyiceberg's `add_files` leaves them, also when a column has got another name since."""
    table, dice = created(tmp_path), random.Random(31)
    rows, path = [row(id, dice, 0) for id in range(9)], tmp_path / "theirs.parquet"
    pq.write_table(table_of(rows).cast(REQUIRED), path)
    others(tmp_path).add_files([str(path)])

    found = table.columns()
    columns = [replace(each, name="zone") if each.name == "region" else each for each in found]
    layout = Layout(columns=columns, found=found, renamed={"zone": "region"})
    table.reshape(layout, replace(NOTE, seq=1))

    zones = [each for batch in table.scan(["id", "zone"]) for each in batch.to_pylist()]
    assert zones == [{"id": each["id"], "zone": each["region"]} for each in rows]

    with others(tmp_path).transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    says = r"no field ids, and the table has no schema\.name-mapping\.default"
    with pytest.raises(DamagedTableError, match=says), table.translate_read_errors():
        [*table.scan(["id"])]
