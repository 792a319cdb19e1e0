"""What others read of our Iceberg tables, in an environment of their own: ``make readers``."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile

from oncelake.ingestion.declaration.ddl import parse_columns, system_columns
from oncelake.ingestion.declaration.partitions import parse_partition
from oncelake.ingestion.declaration.sinks import IcebergSink
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.iceberg.table import open_table
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.arrow_types import cast_rows
from oncelake.ingestion.tables.table import Change, Layout, TableDefinition
from tests.lake.test_iceberg_table import LONG, STREAM, no_configuration, opened, others
from tests.support.orders import NOTE

__all__ = ["no_configuration"]

PYTHON = os.environ.get("ONCELAKE_READERS", "")
READERS = ("duckdb", "polars", "pyiceberg", "spark")
PAGE = Path(__file__).parents[2] / "docs" / "readers.md"

DDL = (
    "id BIGINT NOT NULL, b BOOLEAN, i INT, f FLOAT, d DOUBLE, n DECIMAL(20, 3), t STRING, "
    "y BINARY, day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, l ARRAY<INT>, m MAP<STRING, BIGINT>, "
    "s STRUCT<a: INT, z: STRING>"
)
UTC = dt.UTC


def values_of(id: int) -> dict[str, Any]:
    """Make a row, of far and near values; each seventh has none."""
    if id % 7 == 0:
        return {"id": id}
    day = dt.date(1850 + 3 * (id % 60), 1 + id % 12, 1 + id % 28)
    moment = dt.datetime(day.year, day.month, day.day, id % 24, id % 60, 1, id, UTC)
    return {
        "id": id,
        "b": id % 2 == 0,
        "i": -(id % 1000),
        "f": id / 4,
        "d": -id / 3,
        "n": Decimal(-id) / 8,
        "t": ("", "a/b=c", "ü 𝄞", "'q'")[id % 4] + str(id % 9),
        "y": bytes([id % 256, 0]),
        "day": day,
        "at": moment,
        "wall": moment.replace(tzinfo=None),
        "l": [id, None],
        "m": [("k", id), ("none", None)],
        "s": {"a": id, "z": None},
    }


class Shown:
    """A table of ours, and what it must show."""

    script = "read.py"

    def __init__(
        self, lake: Path, *, by: str = "", spark_names: bool = False, **definition: Any
    ) -> None:
        self.lake, self.seq = lake, 0
        self.table = opened(lake, spark_names=spark_names)
        columns = (*parse_columns(DDL), *system_columns())
        partitions = tuple(map(parse_partition, by.split("; "))) if by else ()
        wanted = TableDefinition(columns=columns, keys=("id",), partitions=partitions, **definition)
        self.table.create(wanted)
        self.table.commit_note(NOTE)

    def rows_of(self, schema: pa.Schema, ids: Any, **more: Any) -> pa.Table:
        """Make rows, with our columns."""
        at = dt.datetime(2024, 1, 1, tzinfo=UTC)
        ours = {"_topic": "t", "_partition": 0, "_timestamp": at, "_epoch": 1, "_seq": self.seq}
        found = [{**values_of(id), **more, **ours, "_offset": id} for id in ids]
        return pa.Table.from_pylist(found, schema=schema)

    def merge(self, new: Any = (), changed: Any = (), gone: Any = (), **more: Any) -> None:
        """Commit rows; ``more`` is what those that are changed have then."""
        self.seq += 1
        with closing(self.table.begin(self.seq)) as transaction:
            schema = transaction.schema
            change = Change(
                inserted=self.rows_of(schema, new),
                updated=self.rows_of(schema, changed, **more),
                deleted=pa.table({"id": pa.array([*gone], pa.int64())}),
            )
            transaction.commit(change, replace(NOTE, seq=self.seq))

    def reshape(self, **layout: Any) -> None:
        """Alter the table."""
        self.seq += 1
        found = self.table.columns()
        shaped = Layout(**{"columns": found, "found": found, **layout})
        self.table.reshape(shaped, replace(NOTE, seq=self.seq))

    def compact(self, target_bytes: int) -> None:
        """Put files together."""
        self.table.maintain(LONG, target_bytes=target_bytes)

    def expected(self) -> pa.Table:
        """Read by ourselves."""
        names = [each.name for each in self.table.columns()]
        batches = [*self.table.scan(names)]
        return pa.Table.from_batches(batches).sort_by("id")

    def address(self) -> str:
        """Return where others find the table."""
        return others(self.lake).metadata_location

    def read_raw(self, reader: str, *conditions: str, part: str = "") -> list[pa.Table]:
        """Read by another, as it gives the rows."""
        output = self.lake / f"{reader}.parquet"
        script = Path(__file__).with_name(self.script)
        metadata = self.address() + part
        ended = subprocess.run(
            [PYTHON, str(script), reader, metadata, str(output), *conditions],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        return [pq.read_table(f"{output}-{nth}") for nth in range(len(conditions) + 1)]

    def read_by(self, reader: str, *conditions: str) -> list[pa.Table]:
        """Read by another: all rows, and those that meet each condition."""
        schema, read = self.expected().schema, list[pa.Table]()
        for found in self.read_raw(reader, *conditions):
            found = found.rename_columns(
                [each.replace("_oncelake_", "_") for each in found.column_names]
            )
            known = pa.schema([each for each in schema if each.name in found.column_names])
            read.append(cast_rows(found.select(known.names), known).sort_by("id"))
        return read


def of_all_types(shown: Shown) -> None:
    """Insert, and update by writing files anew."""
    shown.merge(new=range(1, 200))
    shown.merge(changed=range(5, 20), gone=[1, 2], t="other")


def with_marks(shown: Shown) -> None:
    """Update and delete by position deletes, one upon the other, and put some together."""
    shown.merge(new=range(1, 200))
    shown.merge(new=range(200, 400))
    shown.merge(changed=range(5, 300, 40), gone=range(6, 300, 40), t="other")
    shown.merge(changed=range(5, 300, 80), gone=range(7, 300, 80), t="again")
    shown.compact(1)
    shown.merge(gone=range(8, 300, 80))


def rewound(shown: Shown) -> None:
    """Go back to before some marks."""
    shown.merge(new=range(1, 100))
    shown.merge(gone=range(5, 40, 5))
    then = shown.table.log().versions()[0]
    shown.merge(gone=range(6, 40, 5), changed=range(7, 40, 5), t="x")
    shown.seq += 1
    shown.table.restore(then, replace(NOTE, kind="rewind", seq=shown.seq))


def with_other_columns(shown: Shown) -> None:
    """Rename, widen, add and drop, with files of before."""
    shown.merge(new=range(1, 100))
    found = shown.table.columns()
    [wider] = parse_columns("i BIGINT")
    kept = [each for each in found if each.name not in ("y", "b")]
    columns = [wider if each.name == "i" else each for each in kept]
    columns = [replace(e, name="text") if e.name == "t" else e for e in columns]
    columns[3:3] = parse_columns("more STRING")
    shown.reshape(columns=columns, renamed={"text": "t"})


def with_moved_rows(shown: Shown) -> None:
    """Update rows so that they go to another partition, and delete some of those."""
    shown.merge(new=range(1, 200))
    shown.merge(changed=range(5, 120, 5), t="other", day=dt.date(1600, 2, 29))
    shown.merge(changed=range(5, 60, 5), gone=range(100, 120, 5), t=None)
    shown.merge(new=range(200, 220), changed=range(10, 40, 10), t="other")


def with_other_partitions(shown: Shown) -> None:
    """Divide new files otherwise, twice; some of those of before are written anew."""
    shown.merge(new=range(1, 120))
    shown.reshape(partitions=tuple(map(parse_partition, ("month(at)", "bucket(3, id)"))))
    shown.merge(new=range(120, 200), changed=range(5, 60, 5), gone=[1], t="other")
    shown.reshape(partitions=tuple(map(parse_partition, ("hour(wall)", "truncate(100, i)", "b"))))
    shown.merge(new=range(200, 260), changed=range(5, 200, 50), t="again")


def with_sorted_rows(shown: Shown) -> None:
    """Sort what is written, and what upkeep puts together; then by other columns."""
    for start in range(1, 400, 100):
        shown.merge(new=range(start, start + 100))
    shown.merge(changed=range(5, 300, 40), gone=range(6, 300, 40), t="other")
    shown.table.maintain(LONG)
    assert {file.sort_order_id for file in files_of(shown.lake)} == {1}
    shown.reshape(sort_by=("d", "n"))
    shown.merge(new=range(401, 450))
    assert {file.sort_order_id for file in files_of(shown.lake)} == {1, 2}


def rebuilt(shown: Shown) -> None:
    """Let a table of other types and partitions, made in a branch, take the place; twice."""
    by = tuple(map(parse_partition, ("bucket(3, i)", "truncate(2, t)")))
    part = IcebergSink(table="shop.orders").beside(STREAM)
    assert isinstance(part, IcebergSink)
    shown.merge(new=range(1, 120))
    for type_, wanted in (("BIGINT", by), ("DECIMAL(20, 0)", by[1:])):
        ddl = DDL.replace("i INT", f"i {type_}").replace("y BINARY, ", "")
        table = open_table(STREAM, part, Settings(), Location.of(shown.lake))
        table.create(
            TableDefinition(
                columns=(*parse_columns(ddl), *system_columns()), keys=("id",), partitions=wanted
            )
        )
        table.commit_note(NOTE)
        shown.table, shown.seq = table, 0
        shown.merge(new=range(1, 200))
        shown.merge(changed=range(5, 60, 5), gone=[1, 2], t="other")
        shown.table = opened(shown.lake)
        shown.table.set_aside(type_[:3], is_replaced=True)
    shown.merge(changed=range(100, 120), new=range(200, 220), t="again")


def files_of(lake: Path) -> list[DataFile]:
    """List the files that are in the table."""
    return [task.file for task in others(lake).scan().plan_files()]


MARKS: dict[str, Any] = {"deletion_vectors": True}
# By their names in docs/readers.md.
HISTORIES: dict[str, tuple[dict[str, Any], Callable[[Shown], None]]] = {
    "types": ({}, of_all_types),
    "marks": (MARKS, with_marks),
    "rewound": (MARKS, rewound),
    "columns": ({}, with_other_columns),
    "columns for Spark": ({"spark_names": True}, with_other_columns),
    "columns in partitions": ({"by": "year(at); bucket(3, id)"}, with_other_columns),
    "moved rows": ({"by": "t; year(day)"}, with_moved_rows),
    "partitions": ({"by": "truncate(2, t)"}, with_other_partitions),
    "marks in partitions": ({"by": "b; bucket(3, t)", **MARKS}, with_marks),
    "partitions with marks": ({"by": "truncate(2, t)", **MARKS}, with_other_partitions),
    "sorted": ({"sort_by": ("day", "t", "d")}, with_sorted_rows),
    "rebuilt": ({"by": "i; truncate(2, t)"}, rebuilt),
    "sorted in partitions": ({"by": "b", "sort_by": ("t", "id"), **MARKS}, with_sorted_rows),
}
# What readers skip files and row groups by, and what of our rows meets it.
CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "id >= 50 and id < 130": lambda row: 50 <= row["id"] < 130,
    "d < -20.5": lambda row: row["d"] is not None and row["d"] < -20.5,
    "i < -15": lambda row: row["i"] is not None and row["i"] < -15,
    "t = 'ü 𝄞4'": lambda row: "ü 𝄞4" in (row.get("t"), row.get("text")),
}


@pytest.mark.skipif(not PYTHON, reason="left to make readers")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("history", HISTORIES)
def test_others_read_what_we_have_written(tmp_path: Path, history: str, reader: str) -> None:
    """All rows and columns, and those that a condition leaves; see docs/readers.md."""
    definition, act = HISTORIES[history]
    shown = Shown(tmp_path, **definition)
    act(shown)

    is_reserved = reader == "spark" and not definition.get("spark_names")
    compare(shown, reader, missing={"_partition"} if is_reserved else set())


def compare(shown: Shown, reader: str, *, missing: Collection[str] = ()) -> None:
    """Let a reader read a table, whole and by each condition, and compare that with its rows."""
    expected = shown.expected()
    conditions = [
        each if "t" in expected.column_names else each.replace("t =", "text =")
        for each in CONDITIONS
    ]

    found, *filtered = shown.read_by(reader, *conditions)

    assert found.column_names == [each for each in expected.column_names if each not in missing]
    rows = expected.select(found.column_names).to_pylist()
    assert found.to_pylist() == rows
    for some, is_met in zip(filtered, CONDITIONS.values(), strict=True):
        assert some.to_pylist() == [row for row in rows if is_met(row)] != []


@pytest.mark.skipif(not PYTHON, reason="left to make readers")
def test_spark_sees_which_files_are_sorted(tmp_path: Path) -> None:
    """By the order that each names, or none."""
    shown = Shown(tmp_path, sort_by=("t",))
    shown.merge(new=range(1, 50))
    shown.reshape(sort_by=("day", "id"))
    shown.merge(new=range(50, 99))

    [found] = shown.read_raw("spark", part="#files")

    assert sorted(found["sort_order_id"].to_pylist()) == [1, 2]


def test_the_page_has_a_cell_for_each_test() -> None:
    """Of each table that is read, and each reader, by their names."""
    part, _ = PAGE.read_text().split("## Delta tables")

    compare_page(part, READERS, HISTORIES)


def compare_page(part: str, readers: Sequence[str], histories: Collection[str]) -> None:
    """Compare the table of a part of the page with the tests."""
    lines = [line.strip("| ").split(" | ") for line in part.splitlines()]
    [at] = [nth for nth, cells in enumerate(lines) if cells[0] == "table"]
    named = [name.lower() for name in lines[at][2:]]
    rows = {cells[0]: cells[2:] for cells in lines[at + 2 :][: len(histories)]}

    assert (*named,) == (*readers,)
    assert rows == {history: ["yes"] * len(readers) for history in histories}
