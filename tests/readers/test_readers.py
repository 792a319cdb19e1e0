"""What others read of our Iceberg tables, in an environment of their own: ``make readers``."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelake.ingestion.declaration.ddl import parse_columns, system_columns
from oncelake.ingestion.tables.arrow_types import cast_rows
from oncelake.ingestion.tables.table import Change, Layout, TableDefinition
from tests.lake.test_iceberg_table import LONG, no_configuration, opened, others
from tests.support.orders import NOTE

__all__ = ["no_configuration"]

PYTHON = os.environ.get("ONCELAKE_READERS", "")
READERS = ("duckdb", "polars", "pyiceberg", "spark")
pytestmark = pytest.mark.skipif(not PYTHON, reason="left to make readers")

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

    def __init__(self, lake: Path, **definition: Any) -> None:
        self.lake, self.table, self.seq = lake, opened(lake), 0
        columns = (*parse_columns(DDL), *system_columns())
        self.table.create(TableDefinition(columns=columns, keys=("id",), **definition))
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

    def expected(self) -> pa.Table:
        """Read by ourselves."""
        names = [each.name for each in self.table.columns()]
        batches = [*self.table.scan(names)]
        return pa.Table.from_batches(batches).sort_by("id")

    def read_by(self, reader: str, condition: str = "") -> pa.Table:
        """Read by another."""
        output = self.lake / f"{reader}.parquet"
        script = Path(__file__).with_name("read.py")
        metadata = others(self.lake).metadata_location
        ended = subprocess.run(
            [PYTHON, str(script), reader, metadata, str(output), *[condition] * bool(condition)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        schema, found = self.expected().schema, pq.read_table(output)
        schema = pa.schema([each for each in schema if each.name in found.column_names])
        return cast_rows(found.select(schema.names), schema).sort_by("id")


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
    shown.table.maintain(LONG, target_bytes=1)
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
    shown.seq += 1
    layout = Layout(columns=columns, found=found, renamed={"text": "t"})
    shown.table.reshape(layout, replace(NOTE, seq=shown.seq))


HISTORIES: dict[str, tuple[dict[str, Any], Callable[[Shown], None]]] = {
    "types": ({}, of_all_types),
    "marks": ({"deletion_vectors": True}, with_marks),
    "rewound": ({"deletion_vectors": True}, rewound),
    "columns": ({}, with_other_columns),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("history", HISTORIES)
def test_others_read_what_we_have_written(tmp_path: Path, history: str, reader: str) -> None:
    """All rows and columns; see docs/sinks.md."""
    definition, act = HISTORIES[history]
    shown = Shown(tmp_path, **definition)
    act(shown)

    found, expected = shown.read_by(reader), shown.expected()

    missing = {*expected.column_names} - {*found.column_names}
    assert missing == ({"_partition"} if reader == "spark" else set())
    assert found.to_pylist() == expected.select(found.column_names).to_pylist()
