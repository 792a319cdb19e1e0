"""A file that names a sort order is in it; whatever others rely on that for, they miss no row."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform

from oncelake.ingestion.declaration.ddl import parse_columns, system_columns
from oncelake.ingestion.declaration.partitions import parse_partition
from oncelake.ingestion.sinks import files as shared_files
from oncelake.ingestion.sinks.iceberg import files
from oncelake.ingestion.sinks.iceberg import table as sink
from oncelake.ingestion.sinks.iceberg.table import IcebergTable
from oncelake.ingestion.tables.arrow_types import arrow_schema
from oncelake.ingestion.tables.table import Change, Layout, TableDefinition
from tests.lake.test_iceberg_table import no_configuration, opened, others
from tests.support.long import IS_LONG
from tests.support.orders import NOTE

__all__ = ["no_configuration"]

COLUMNS: Final = (
    *parse_columns(
        "id BIGINT NOT NULL, share DOUBLE, f FLOAT, name STRING, raw BINARY, is_open BOOLEAN, "
        "n DECIMAL(20, 3), day DATE, at TIMESTAMP, place STRUCT<a: INT, z: ARRAY<STRING>>, "
        "tags MAP<STRING, BIGINT>"
    ),
    *system_columns(),
)
SCHEMA: Final = arrow_schema(COLUMNS)
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MINUS_NAN: Final = struct.unpack("<d", struct.pack("<q", -1))[0]
FLOATS: Final = [None, math.nan, MINUS_NAN, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.5, 5e-324]
VALUES: Final[dict[str, list[Any]]] = {
    "share": FLOATS,
    "f": FLOATS[:-1],
    "name": [None, "", "a", "aa", "Z", "é", "\ud7ff", "\ue000", "😀", "a\0b", "'"],
    "raw": [None, b"", b"\0", b"\x7f", b"\x80", b"\xff\xff"],
    "is_open": [None, True, False],
    "n": [None, Decimal("-0.001"), Decimal(0), Decimal("99999999999999999.999")],
    "day": [None, dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
    "at": [None, EPOCH, EPOCH - dt.timedelta(microseconds=1), EPOCH.replace(year=9999)],
    "place": [None, {"a": 1, "z": ["", None]}, {"a": None, "z": None}],
    "tags": [None, [], [("k", 1), ("none", None)]],
}
# Each column of a type that has an order comes first in one of them.
ORDERS: Final = [
    *(["share", "name"], ["f", "id"], ["name"], ["raw", "share"], ["is_open", "name"]),
    *(["n", "at"], ["day", "is_open"], ["at", "f"], ["id"], ["_offset"]),
]
Row = dict[str, Any]


def created(lake: Path, *columns: str, partitions: Sequence[str] = (), **more: Any) -> IcebergTable:
    """Make a table that is sorted by columns."""
    table = opened(lake)
    by = tuple(map(parse_partition, partitions))
    table.create(
        TableDefinition(columns=COLUMNS, keys=("id",), sort_by=columns, partitions=by, **more)
    )
    table.commit_note(NOTE)
    return table


def row(id: int, dice: random.Random, seq: int) -> Row:
    """Make a row of any values."""
    ours = {"_topic": "t", "_partition": 0, "_timestamp": EPOCH, "_epoch": 1, "_seq": seq}
    drawn = {name: dice.choice(values) for name, values in VALUES.items()}
    return {"id": id, **drawn, **ours, "_offset": dice.randrange(100)}


def commit(table: IcebergTable, seq: int, **changed: Sequence[Row]) -> None:
    """Commit rows that are inserted or updated, and such as are deleted by their ids."""
    rows = {name: pa.Table.from_pylist([*of], SCHEMA) for name, of in changed.items()}
    nothing = SCHEMA.empty_table()
    change = Change(
        inserted=rows.get("inserted", nothing),
        updated=rows.get("updated", nothing),
        deleted=rows.get("deleted", nothing).select(["id"]),
    )
    with closing(table.begin(seq)) as transaction:
        transaction.commit(change, replace(NOTE, seq=seq))


def rows_of(table: IcebergTable) -> list[str]:
    """Read all rows, to the bit, in the order of their keys."""
    return exact(pa.Table.from_batches(table.scan(SCHEMA.names)))


def exact(rows: pa.Table) -> list[str]:
    """Write rows so that only those that are the same to the bit compare as equal."""
    found = sorted(rows.to_pylist(), key=lambda each: int(each["id"]))
    return [f"{each} {rank(each['share'])} {rank(each['f'])}" for each in found]


def files_of(lake: Path) -> list[DataFile]:
    """List the files that are in the table."""
    return [task.file for task in others(lake).scan().plan_files()]


def rank(value: Any) -> Any:
    """Return what has the order of the specification, computed one by one."""
    if isinstance(value, float):
        bits = struct.unpack("<Q", struct.pack("<d", value))[0]
        return -(bits & ((1 << 63) - 1)) - 1 if bits >> 63 else bits
    return value.encode() if isinstance(value, str) else value


def key_of(row: Row, fields: Sequence[tuple[str, SortField]]) -> list[tuple[bool, Any]]:
    """Return a row's place in an order that ascends."""
    found = list[tuple[bool, Any]]()
    for name, field in fields:
        assert isinstance(field.transform, IdentityTransform)
        is_first = field.null_order == NullOrder.NULLS_FIRST
        is_null = row[name] is None
        found.append((is_null != is_first, 0 if is_null else rank(row[name])))
    return found


def claimed(lake: Path) -> list[bool]:
    """Tell of each file whether it names an order; one that does must be in it."""
    foreign, said = others(lake), []
    for file in files_of(lake):
        order = foreign.sort_orders().get(file.sort_order_id or 0)
        said.append(order is not None and not order.is_unsorted)
        if order is None or order.is_unsorted:
            continue
        read = files.read_file(foreign, file, foreign.schema())
        rows = pa.Table.from_batches(read).to_pylist()
        names = [(foreign.schema().find_column_name(f.source_id), f) for f in order.fields]
        for before, after in pairwise(rows):
            for one in names:
                first, second = (key_of(each, [one])[0] for each in (before, after))
                if one[1].direction == SortDirection.DESC and first[0] == second[0]:
                    first, second = second, first
                assert first <= second, (one, before, after)
                if first != second:
                    break
    return said


@pytest.mark.parametrize("seed", range(len(ORDERS) * (5 if IS_LONG else 1)))
def test_files_that_name_an_order_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """After each batch, with files written anew or marked, of several row groups, in partitions."""
    dice, columns = random.Random(seed), ORDERS[seed % len(ORDERS)]
    monkeypatch.setattr(shared_files, "_ROWS_IN_GROUP", dice.choice([3, 7, 1000]))
    by = dice.choice([[], ["bucket(2, id)"], ["name"]])
    table = created(tmp_path, *columns, partitions=by, deletion_vectors=dice.random() < 0.5)
    rows = dict[int, Row]()

    for seq in range(1, 7):
        new = {id: row(id, dice, seq) for id in range(seq * 100, seq * 100 + dice.randrange(25))}
        known = dice.sample([*rows], min(len(rows), 6))
        changed = {id: row(id, dice, seq) for id in known[:3]}
        gone = [rows.pop(id) for id in known[3:]]
        commit(table, seq, inserted=[*new.values()], updated=[*changed.values()], deleted=gone)
        rows |= new | changed
        claimed(tmp_path)
    expected = exact(pa.Table.from_pylist([*rows.values()], SCHEMA))
    assert rows_of(table) == expected
    target = dice.choice([1, 20_000, 1 << 27])
    table.maintain(dt.timedelta(0), target_bytes=target)

    assert all(claimed(tmp_path))
    assert rows_of(table) == expected
    done = [table.maintain(dt.timedelta(0), target_bytes=target)["compacted"] for _ in range(3)]
    assert done[-1] == 0


def test_a_batch_is_sorted_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of several row groups, in each of its partitions."""
    monkeypatch.setattr(shared_files, "_ROWS_IN_GROUP", 10)
    table, dice = created(tmp_path, "name", partitions=["bucket(3, id)"]), random.Random(1)

    commit(table, 1, inserted=[row(id, dice, 1) for id in range(100)])

    assert claimed(tmp_path) == [True] * 3


def test_a_file_that_is_copied_in_parts_names_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is updated comes behind the rows that stay; upkeep sorts them, and then all is done."""
    table, dice = created(tmp_path, "_offset"), random.Random(2)
    monkeypatch.setattr(shared_files, "_ROWS_IN_GROUP", 10)
    commit(table, 1, inserted=[{**row(id, dice, 1), "_offset": id} for id in range(40)])
    assert claimed(tmp_path) == [True]

    commit(table, 2, updated=[{**row(39, dice, 2), "_offset": 0}])
    assert claimed(tmp_path) == [False]
    # One file is not too many, but it is not sorted.
    assert table.maintain(dt.timedelta(0))["compacted"] == 1
    assert claimed(tmp_path) == [True]
    assert table.maintain(dt.timedelta(0))["compacted"] == 0


def test_upkeep_sorts_some_files_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it needs no more room on disk, however large a table is."""
    table, dice = created(tmp_path, "name"), random.Random(3)
    for seq in range(1, 7):
        commit(table, seq, inserted=[row(seq * 100 + at, dice, seq) for at in range(20)])
    before, size = rows_of(table), files_of(tmp_path)[0].file_size_in_bytes
    monkeypatch.setattr(sink, "_MOST_SORTED", 2 * size)

    table.maintain(dt.timedelta(0), target_bytes=size)

    assert rows_of(table) == before
    assert all(claimed(tmp_path))


def test_others_see_the_order(tmp_path: Path) -> None:
    """In the table's metadata, the lowest first, and null before it."""
    table = created(tmp_path, "day", "name")
    commit(table, 1, inserted=[row(1, random.Random(4), 1)])

    foreign = others(tmp_path)
    order, schema = foreign.sort_order(), foreign.schema()
    assert [
        (schema.find_column_name(each.source_id), str(each.transform), each.direction.value)
        for each in order.fields
    ] == [("day", "identity", "asc"), ("name", "identity", "asc")]
    assert {each.null_order for each in order.fields} == {NullOrder.NULLS_FIRST}
    assert [file.sort_order_id for file in files_of(tmp_path)] == [order.order_id] == [1]
    assert table.sort_by() == ("day", "name")


def given(lake: Path, *fields: tuple[str, Any, SortDirection, NullOrder]) -> IcebergTable:
    """Take an empty table to which somebody gave an order."""
    entry: Any = opened(lake)._entry
    created(lake / "theirs")
    schema = others(lake / "theirs").schema()
    by = [SortField(schema.find_field(name).field_id, *rest) for name, *rest in fields]
    with entry.session() as catalog:
        catalog.create_namespace("shop")
        catalog.create_table(
            entry.identifier, schema, entry.new_location(), sort_order=SortOrder(*by)
        )
    table = opened(lake)
    table.create(TableDefinition(columns=COLUMNS, keys=("id",)))
    table.commit_note(NOTE)
    return table


@pytest.mark.parametrize("nulls", [NullOrder.NULLS_FIRST, NullOrder.NULLS_LAST])
@pytest.mark.parametrize("direction", [SortDirection.ASC, SortDirection.DESC])
def test_an_order_of_others_is_kept(
    tmp_path: Path, direction: SortDirection, nulls: NullOrder
) -> None:
    """Whichever way its columns are sorted."""
    table, dice = (
        given(tmp_path, ("share", IdentityTransform(), direction, nulls)),
        random.Random(5),
    )
    commit(table, 1, inserted=[row(id, dice, 1) for id in range(40)])
    commit(table, 2, inserted=[row(id, dice, 1) for id in range(40, 60)])
    assert claimed(tmp_path) == [True, True]

    table.maintain(dt.timedelta(0))

    assert claimed(tmp_path) == [True]
    is_ours = (direction, nulls) == (SortDirection.ASC, NullOrder.NULLS_FIRST)
    says = f"identity(share) {direction} {nulls}"
    assert table.sort_by() == (("share",) if is_ours else (says,))


@pytest.mark.parametrize("transform", [BucketTransform(4), TruncateTransform(1)])
def test_an_order_that_is_not_computed_is_never_named(tmp_path: Path, transform: Any) -> None:
    """It stays the table's, and files say that they are in none."""
    ascending = SortDirection.ASC, NullOrder.NULLS_FIRST
    plain = ("id", IdentityTransform(), *ascending)
    table, dice = given(tmp_path, plain, ("name", transform, *ascending)), random.Random(6)
    for seq in range(1, 4):
        commit(table, seq, inserted=[row(seq * 100 + at, dice, seq) for at in range(9)])

    table.maintain(dt.timedelta(0))

    assert [file.sort_order_id for file in files_of(tmp_path)] == [None]
    assert len(others(tmp_path).sort_order().fields) == 2


def reshape(table: IcebergTable, seq: int, **layout: Any) -> None:
    """Alter the table."""
    found = table.columns()
    columns = layout.pop("columns", found)
    table.reshape(Layout(columns=columns, found=found, **layout), replace(NOTE, seq=seq))


def test_another_order_is_of_new_files(tmp_path: Path) -> None:
    """Files of before keep their own, until upkeep; one that comes back is the same."""
    table, dice = created(tmp_path, "name"), random.Random(7)
    commit(table, 1, inserted=[row(id, dice, 1) for id in range(20)])
    reshape(table, 2, sort_by=("at", "id"))
    commit(table, 3, inserted=[row(id, dice, 3) for id in range(20, 40)])

    assert sorted(file.sort_order_id or 0 for file in files_of(tmp_path)) == [1, 2]
    assert claimed(tmp_path) == [True, True]
    table.maintain(dt.timedelta(0))
    assert [file.sort_order_id for file in files_of(tmp_path)] == [2]
    reshape(table, 4, sort_by=("name",))
    table.maintain(dt.timedelta(0))
    assert [file.sort_order_id for file in files_of(tmp_path)] == [1]
    assert claimed(tmp_path) == [True]


def test_the_columns_of_the_order_stay(tmp_path: Path) -> None:
    """A rewind to before one of them was there ends the order, and files say so."""
    table, dice = created(tmp_path), random.Random(8)
    commit(table, 1, inserted=[row(id, dice, 1) for id in range(20)])
    then, [more] = table.log().versions()[0], parse_columns("more INT")
    reshape(table, 2, columns=[*table.columns(), more], sort_by=("name", "more"))
    with pytest.raises(Exception, match="its rows are sorted by more"):
        reshape(table, 3, columns=[each for each in table.columns() if each.name != "more"])

    table.restore(then, replace(NOTE, kind="rewind", seq=3))

    assert others(tmp_path).sort_order().is_unsorted
    assert table.sort_by() == ()
    commit(table, 4, inserted=[row(99, dice, 4)])
    assert claimed(tmp_path) == [False, False]
    reshape(table, 5, sort_by=("name",))
    table.maintain(dt.timedelta(0))
    assert claimed(tmp_path) == [True]
