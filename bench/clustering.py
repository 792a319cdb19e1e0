"""What clustering costs, and what a batch of neighbouring keys costs then: literal rows, no Kafka.

    python -m bench.clustering [MILLIONS] [--vectors]

A Delta table gets so many million rows whose keys come in random order. Upkeep sorts them; then
10,000 keys that follow one another are updated, five times, each with its look-up.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.merge import COLUMNS, LOOKED_UP, MILLION, note_of, rows_of
from oncelake.ingestion.declaration.ddl import parse_columns, system_columns
from oncelake.ingestion.sinks.delta.compaction import compact
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.table import Change, TableDefinition

_TARGET_BYTES = 16 << 20
_KEYS = 10_000


@contextmanager
def timed(what: str) -> Iterator[list[str]]:
    """Print what something took, and what was added to the list."""
    wall, cpu, more = time.monotonic(), sum(os.times()[:2]), list[str]()
    yield more
    wall, cpu = time.monotonic() - wall, sum(os.times()[:2]) - cpu
    print(f"{what}: {wall:.2f} s, {cpu:.2f} CPU-s", *more, sep=", ")


def measure(path: Location, millions: int, *, vectors: bool) -> None:
    """Fill a table, cluster it, and change it five times."""
    table, columns = DeltaSinkTable("bench", path), (*parse_columns(COLUMNS), *system_columns())
    table.create(
        TableDefinition(columns=columns, keys=("id",), deletion_vectors=vectors, sort_by=("id",))
    )
    table.commit_note(note_of(0))
    with closing(table.begin(1)) as begun:
        schema = begun.schema
    dice, nothing = np.random.default_rng(1), schema.empty_table()
    of_nothing = Change(inserted=nothing, updated=nothing, deleted=nothing.select(["id"]))
    for seq, ids in enumerate(np.split(dice.permutation(millions * MILLION), millions), start=1):
        rows = rows_of(ids, seq, schema)
        with closing(table.begin(seq)) as begun:
            begun.commit(replace(of_nothing, inserted=rows), note_of(seq))
    table.seal()
    with timed("clustering"):
        compact(path, target_bytes=_TARGET_BYTES)
    for seq in range(millions + 1, millions + 6):
        ids = int(dice.integers(0, millions * MILLION - _KEYS)) + np.arange(_KEYS)
        rows, keys = rows_of(ids, seq, schema), pa.table({"id": ids})
        with timed("a batch") as more, closing(table.begin(seq)) as begun:
            more.append(f"{len(begun.searched(keys))} of {len(begun.files)} files searched")
            if len(begun.rows_of(keys, LOOKED_UP)) != _KEYS:
                raise SystemExit("not a result: rows are missing")
            begun.commit(replace(of_nothing, updated=rows), note_of(seq))
            table.seal()


def main() -> None:
    """Measure in a scratch folder."""
    parser = argparse.ArgumentParser(prog="python -m bench.clustering", description=__doc__)
    parser.add_argument("millions", type=int, nargs="?", default=1)
    parser.add_argument("--vectors", action="store_true", help="mark rows as gone")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncelake-bench-") as folder:
        measure(Location.of(Path(folder) / "bench"), asked.millions, vectors=asked.vectors)


if __name__ == "__main__":
    main()
