"""What a proof would cost with values in its relations, beside one with hashes at places.

python -m bench.digests [ROWS]

Each is a process with DuckDB on one thread and 600 MB: it folds events to the newest of each key,
and compares them with the rows of a table, all equal.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import duckdb

from bench.cpu import run_metered

_ROWS: Final = """
CREATE TEMP TABLE rows AS SELECT
    (i % 4)::INTEGER AS tp, i AS off, i AS id, 'customer ' || (i % 10007) AS customer,
    (i * 37 % 100000)::DECIMAL(12, 2) AS total, 'status ' || (i % 5) AS status,
    TIMESTAMPTZ '2024-01-01' + to_seconds(i) AS updated_at, md5(i::VARCHAR) AS note,
    i % 2 = 0 AS paid, (i % 997)::INTEGER AS quantity
FROM range({rows}) t(i)
"""
_COLUMNS: Final = ("customer", "total", "status", "updated_at", "note", "paid", "quantity")
_BY: Final = {
    "hashes": (
        "CREATE TEMP TABLE events AS SELECT tp, off, hash(id) AS k, epoch_us(updated_at) AS o0, "
        f"hash(tp, off, id, {', '.join(_COLUMNS)}) AS digest FROM rows",
        "CREATE TEMP TABLE due AS SELECT arg_max({'tp': tp, 'off': off, 'digest': digest}, "
        "(o0, tp, off)) AS newest FROM events GROUP BY k",
        "CREATE TEMP TABLE found AS SELECT tp, off, digest FROM events",
        "SELECT count(*) FROM "
        "(SELECT newest.tp, newest.off, newest.digest FROM due EXCEPT ALL FROM found)",
    ),
    "values": (
        "CREATE TEMP TABLE events AS FROM rows",
        "CREATE TEMP TABLE due AS SELECT id, arg_max(events, (updated_at, tp, off)) AS newest "
        "FROM events GROUP BY id",
        "CREATE TEMP TABLE found AS FROM events",
        "SELECT count(*) FROM due d FULL JOIN found f ON d.id = f.id WHERE d.id IS NULL OR "
        + " OR ".join(f"d.newest.{name} IS DISTINCT FROM f.{name}" for name in _COLUMNS),
    ),
}


def main() -> None:
    """Measure both, each in a process of its own, or one in this process."""
    parser = argparse.ArgumentParser(prog="bench.digests")
    parser.add_argument("rows", nargs="?", type=int, default=3_000_000)
    parser.add_argument("--by", choices=_BY)
    given = parser.parse_args()
    if given.by:
        _fold_and_compare(given.by, given.rows)
        return
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for by in _BY:
            command = [sys.executable, "-m", "bench.digests", str(given.rows), "--by", by]
            cost = run_metered(command, os.environ, log)
            print(f"{by}: {log.read_text().splitlines()[-1]}; at most {cost.python_mb:,.0f} MB")


def _fold_and_compare(by: str, rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = duckdb.connect(
            config={
                "memory_limit": "600MB",
                "temp_directory": folder,
                "threads": 1,
                "preserve_insertion_order": "false",
            }
        )
        database.execute(_ROWS.format(rows=rows))
        taken, fold, read, compare = _BY[by]
        database.execute(taken)
        database.execute("DROP TABLE rows")
        begun = time.process_time()
        database.execute(fold)
        database.execute(read)
        [(different,)] = database.execute(compare).fetchall()
        spilled = database.execute("SELECT sum(size) FROM duckdb_temporary_files()").fetchall()
        seconds, bytes_ = time.process_time() - begun, spilled[0][0] or 0
        print(f"{seconds:.1f} CPU-s, {bytes_ / 1e6:,.0f} MB spilled, {different} rows differ")


if __name__ == "__main__":
    main()
