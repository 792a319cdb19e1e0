"""Reading a table's rows: what delta-rs would read, by a process that ends as soon as it has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder, WriterProperties, write_deltalake

from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.storage.location import Location
from tests.support.long import IS_LONG, only_long

ROWS, FILES, COLUMNS = 1_000_000, 4, 8
# By delta-rs' file system, two of five such ends abort on a busy machine, and more on an idle one.
ENDS = 12 if IS_LONG else 4
# Every second column: what lies between keeps Arrow from reading them in one stretch, so that it
# has thousands of buffers to release when the last row was handed out.
READ = f"""
from deltalake import DeltaTable
from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.storage.location import Location
import sys
columns = ["c0", "c2", "c4", "c6"]
table = open_rows(Location.of(sys.argv[1])).to_table(columns=columns)
assert table.num_rows == {ROWS}
"""


# Nothing of this scan is read before the process ends, as a command does.
ABANDON = """
from deltalake import DeltaTable
from oncelake.ingestion.cli.end_process import run_to_the_end
from oncelake.ingestion.delta.files import open_rows
from oncelake.ingestion.storage.location import Location
import sys
kept = []
def scan():
    kept.append(open_rows(Location.of(sys.argv[1])).to_batches(batch_size=1_000))
    sys.exit(4)
run_to_the_end(scan)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table of a million rows, in several files of many row groups."""
    path = tmp_path_factory.mktemp("large") / "a table"
    rows = ROWS // FILES
    small = WriterProperties(max_row_group_size=5_000)
    for _ in range(FILES):
        columns = {
            f"c{i}": pa.Array.from_buffers(
                pa.int32(), rows, [None, pa.py_buffer(os.urandom(4 * rows))]
            )
            for i in range(COLUMNS)
        }
        write_deltalake(path, pa.table(columns), mode="append", writer_properties=small)
    return path


def test_a_process_that_has_read_ends_with_0(large: Path) -> None:
    """Arrow's threads still clean up while the process ends; none may abort it."""
    codes = [
        subprocess.run([sys.executable, "-c", READ, str(large)], check=False).returncode
        for _ in range(ENDS)
    ]
    assert codes == [0] * ENDS


@only_long
def test_a_process_that_has_abandoned_a_scan_ends(large: Path) -> None:
    """What Arrow reads ahead is dropped: nobody waits for it for ever, and it takes nobody down."""
    codes = [
        subprocess.run(
            [sys.executable, "-c", ABANDON, str(large)], check=False, timeout=60
        ).returncode
        for _ in range(ENDS)
    ]
    assert codes == [4] * ENDS


VALUES = ("a b", "x:y", "ü", "50%", "a/b", "?#", "%41", "a+b&c=d", "[x]*", "\\n", "", None)


def test_it_reads_what_delta_rs_reads(tmp_path: Path) -> None:
    """Folders and partitions keep odd names, nulls and versions."""
    path = tmp_path / "stränge tab le"
    rows = pa.table({"part": VALUES * 2, "number": [None, *range(1, 2 * len(VALUES))]})
    write_deltalake(path, rows, partition_by=["part"])
    write_deltalake(path, rows.slice(0, 5), mode="append")
    table, here = DeltaTable(path), Location.of(path)
    order = [("part", "ascending"), ("number", "ascending")]

    assert open_rows(here, snapshot=table).to_table().sort_by(
        order
    ) == table.to_pyarrow_table().sort_by(order)
    assert open_rows(here, 0).count_rows() == len(rows)
    for value in filter(None, VALUES):
        condition = pc.field("part") == value
        expected = table.to_pyarrow_dataset().count_rows(filter=condition)
        assert open_rows(here, snapshot=table).count_rows(filter=condition) == expected > 0


def test_no_python_object_lies_below_a_scan(large: Path) -> None:
    """Arrow reads the files itself; the cause of the abort cannot come back unseen."""
    assert open_rows(Location.of(large)).filesystem.base_fs.type_name == "local"


def test_rows_that_delta_rs_has_rewritten_are_found_by_their_text(tmp_path: Path) -> None:
    """The readers that the tutorial names compare text in a merged and compacted table."""
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "a"]})
    write_deltalake(tmp_path, rows)
    merger = DeltaTable(tmp_path).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().execute()
    write_deltalake(tmp_path, rows, mode="append")
    DeltaTable(tmp_path).optimize.compact()

    table = DeltaTable(tmp_path)
    counted = "SELECT count(*) FROM read WHERE name = 'a'"
    by_duckdb = duckdb.read_parquet(table.file_uris()).query("read", counted)
    by_delta_rs = QueryBuilder().register("read", table).execute(counted).read_all()

    assert by_duckdb.fetchall() == [(4,)]
    assert pa.table(by_delta_rs).to_pydict() == {"count(*)": [4]}
