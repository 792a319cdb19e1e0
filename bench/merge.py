"""What a commit of 10,000 changed rows costs by itself: no Kafka, no Spark, literal rows.

    python -m bench.merge [MILLIONS] [--vectors] [--feed] [--index] [--iceberg]

A table of so many million rows gets 9,000 updates from all over it and 1,000 inserts, five times:
the look-up of the keys, the decision being given, and the commit, each with its audit. Then one of
its columns gets a wider type, unless its keys have an index.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from oncelake.ingestion.declaration.ddl import parse_columns, system_columns
from oncelake.ingestion.declaration.sinks import IcebergSink
from oncelake.ingestion.delta.features import FEED
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.sinks.files import FilesTransaction
from oncelake.ingestion.sinks.iceberg.table import open_table
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Identity
from oncelake.ingestion.tables.table import Change, Layout, SealedTable, SinkTable, TableDefinition

MILLION = 1_000_000
_MANY = 50
COLUMNS = "id BIGINT NOT NULL, name STRING, status STRING, total FLOAT, at TIMESTAMP"
LOOKED_UP = ("id", "at", "_topic", "_partition", "_offset", "_epoch")


def rows_of(ids: np.ndarray, seq: int, schema: pa.Schema) -> pa.Table:
    """Return rows of some ids."""
    n = np.arange(len(ids))
    names = pa.array([f"customer {each}" for each in range(1000)])
    values = {
        "id": ids,
        "name": names.take(pa.array(ids % 1000)),
        "status": pa.repeat("open", len(ids)),
        "total": n / 7,
        "at": pa.array(n, pa.timestamp("us", "UTC")),
        "_topic": pa.repeat("t", len(ids)),
        "_partition": n * 0,
        "_offset": n,
        "_timestamp": pa.array(n, pa.timestamp("us", "UTC")),
        "_epoch": n * 0 + 1,
        "_seq": n * 0 + seq,
    }
    return pa.table(values).cast(schema)


def note_of(seq: int) -> CommitMetadata:
    """Return what a commit says of itself."""
    identity = Identity(cluster_id="c", topic_ids={}, keys=("id",), order=("at",))
    return CommitMetadata(
        kind="ingest", seq=seq, run_id="bench", epoch=1, identity=identity, columns=COLUMNS,
        next=Offsets(),
    )  # fmt: skip


def seal(table: SinkTable) -> None:
    """Sync the files of a table that does not do so by itself."""
    if isinstance(table, SealedTable):
        table.seal()


def measure(
    folder: Path,
    millions: int,
    *,
    vectors: bool,
    has_feed: bool,
    has_index: bool,
    is_iceberg: bool,
) -> None:
    """Fill a table, change it five times, and print what each time took."""
    index, feed = folder / "keys" if has_index else None, {FEED: "true"} if has_feed else {}
    place = Location.of(folder / "bench")
    table: SinkTable = DeltaSinkTable("bench", place, feed, index=index)
    if is_iceberg:
        table = open_table("bench", IcebergSink(), Settings(), Location.of(folder))
    columns = (*parse_columns(COLUMNS), *system_columns())
    table.create(TableDefinition(columns=columns, keys=("id",), deletion_vectors=vectors))
    table.commit_note(note_of(0))
    with closing(table.begin(1)) as transaction:
        schema = cast("FilesTransaction[object]", transaction).schema
    nothing, dice = schema.empty_table(), np.random.default_rng(1)
    # Files of about their full size, where there are many.
    at_once = MILLION * (5 if millions >= _MANY else 1)
    batches = millions * MILLION // at_once
    for seq in range(1, batches + 1):
        ids = np.arange((seq - 1) * at_once, seq * at_once)
        new = Change(
            inserted=rows_of(ids, seq, schema), updated=nothing, deleted=nothing.select(["id"])
        )
        with closing(table.begin(seq)) as transaction:
            transaction.commit(new, note_of(seq))
    seal(table)
    if index is not None:
        wall, cpu = time.monotonic(), sum(os.times()[:2])
        with closing(table.begin(batches + 1)) as transaction:
            transaction.rows_of(pa.table({"id": [0]}), LOOKED_UP)
        wall, cpu = time.monotonic() - wall, sum(os.times()[:2]) - cpu
        size = sum(file.stat().st_size for file in index.iterdir()) / (millions * MILLION)
        print(f"an index of {size:.2f} bytes a row, made in {wall:.2f} s, {cpu:.2f} CPU-s")
    for seq in range(batches + 1, batches + 6):
        there = np.sort(dice.choice(millions * MILLION, 9_000, replace=False))
        added = np.arange(1_000) + (millions + seq) * MILLION
        updated, inserted = rows_of(there, seq, schema), rows_of(added, seq, schema)
        wall, cpu = time.monotonic(), sum(os.times()[:2])
        with closing(table.begin(seq)) as transaction:
            found = transaction.rows_of(pa.table({"id": np.concatenate([there, added])}), LOOKED_UP)
            looked = time.monotonic() - wall
            change = Change(inserted=inserted, updated=updated, deleted=nothing.select(["id"]))
            transaction.commit(change, note_of(seq))
        seal(table)
        commit = table.log().find("bench", seq)
        assert commit is not None, "what was just committed"
        if (len(found), table.rows_of_seq(seq, commit=commit)) != (9_000, 10_000):
            raise SystemExit("not a result: rows are missing")
        wall, cpu = time.monotonic() - wall, sum(os.times()[:2]) - cpu
        print(f"{wall:.2f} s, of which {looked:.2f} s look rows up; {cpu:.2f} CPU-s")
    if index is not None:
        return
    wall, cpu = time.monotonic(), sum(os.times()[:2])
    wider = {column.name: column for column in parse_columns("total DOUBLE")}
    found = table.columns()
    wanted = [wider.get(column.name, column) for column in found]
    table.reshape(Layout(columns=wanted, found=found), note_of(seq + 1))
    wall, cpu = time.monotonic() - wall, sum(os.times()[:2]) - cpu
    print(f"a wider type: {wall:.2f} s, {cpu:.2f} CPU-s")


def main() -> None:
    """Measure in a scratch folder."""
    parser = argparse.ArgumentParser(prog="python -m bench.merge", description=__doc__)
    parser.add_argument("millions", type=int, nargs="?", default=1)
    parser.add_argument("--vectors", action="store_true", help="mark rows as gone")
    parser.add_argument("--feed", action="store_true", help="with a change data feed")
    parser.add_argument("--index", action="store_true", help="with an index of the keys")
    parser.add_argument("--iceberg", action="store_true", help="into Iceberg instead of Delta")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncelake-bench-") as folder:
        measure(
            Path(folder),
            asked.millions,
            vectors=asked.vectors,
            has_feed=asked.feed,
            has_index=asked.index,
            is_iceberg=asked.iceberg,
        )


if __name__ == "__main__":
    main()
