"""The engine of one machine: DuckDB over Arrow counts and decides, the sink commits.

Spark hands the batch over as Arrow files in the run's scratch folder, written where it was decoded:
nothing of it is ever in the JVM's heap, and here it is mapped into memory. This process is the one
that commits, and so the one that holds the stream's lock.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from oncelake.ingestion.declaration.sql import OFFLINE
from oncelake.ingestion.delta.files import as_arrow, open_rows
from oncelake.ingestion.errors import BatchTooLargeError
from oncelake.ingestion.kafka.offsets import Range, cut
from oncelake.ingestion.modes import sql as text
from oncelake.ingestion.modes.engines.engine import translate_failure
from oncelake.ingestion.modes.engines.rows import Rows, UnevaluatedError, map_in_workers
from oncelake.ingestion.storage.location import Location

# A batch of so many bytes in Arrow, all of them winners, takes this process to 2 GB.
LARGEST_BATCH_BYTES = 512 * 1024 * 1024
_ROWS_AT_ONCE: Final = 10_000
# As sqlglot knows no other names that both have; epoch_ms would round.
_BY_SPARKS_NAMES: Final = {
    "unix_millis(moment)": "epoch_us(moment) // 1000",
    "unix_micros(moment)": "epoch_us(moment)",
    "timestamp_micros(micros)": "make_timestamptz(micros)",
}


class LocalEngine:
    """Holds one batch in this process; see ``ingestion.modes.engines.engine.Engine``."""

    def __init__(self, stream: str, scratch: Path) -> None:
        """Take the folder for what does not fit into memory; it must be there."""
        self._stream = stream
        self._folder = Path(tempfile.mkdtemp(prefix="batch-", dir=scratch))
        self._tables = _database(scratch).cursor()
        self._kept: dict[str, pa.Table] = {}
        for function, body in _BY_SPARKS_NAMES.items():
            self._tables.execute(f"CREATE TEMP MACRO {function} AS {body}")

    def materialize(self, validated: Rows) -> bool:
        """Compute a batch once: in the workers that decode it, unless Spark has to do more."""
        rows, decoded = validated, self._spilled(validated)
        if decoded is None:
            assert validated.in_spark is not None, "only statements may be left to Spark"
            rows = validated.in_spark()
            decoded = self._spilled(rows)
            assert decoded is not None, "Spark has evaluated the statements"
        self._tables.register("decoded", decoded)
        self.define("batch", validated.sql)
        self._whole, self._size_bytes = validated.sql, decoded.nbytes
        return rows.in_spark is not None

    def parts(self, planned: Sequence[Range]) -> Iterator[Sequence[Range]]:
        """Cut a batch that is too large: what Kafka gave is here, and is not asked for again."""
        yield from self._cut(planned, self._size_bytes)

    def _cut(self, planned: Sequence[Range], size_bytes: int) -> Iterator[Sequence[Range]]:
        """Cut by the bytes that an offset has on the average, and again where some have more."""
        if size_bytes <= LARGEST_BATCH_BYTES:
            yield planned
            return
        offsets = sum(map(len, planned))
        if offsets < 2:
            raise BatchTooLargeError(
                self._stream,
                "what cannot be cut, a record or a redrive, is more than this process merges at "
                f"once, {LARGEST_BATCH_BYTES:,} bytes. Nothing of it was committed.",
                # Of a Delta table nobody reads this: Spark merges then.
                remedy="let the producer send smaller records, or leave this one out by a "
                f"`where`; a redrive is smaller as oncelake redrive {self._stream} --reason CODE",
            )
        # Beside a part lie its winners, and the one before, until the next is whole.
        largest = min(offsets // 2, offsets * LARGEST_BATCH_BYTES // (4 * size_bytes))
        for part in cut(planned, max(largest, 1)):
            where = " OR ".join(map(_is_within, part))
            rows = self._rows_if_small(f"SELECT * FROM ({self._whole}) WHERE {where}")
            if rows is None:
                yield from self._cut(part, 2 * LARGEST_BATCH_BYTES)
            else:
                self._keep("batch", rows)
                yield part

    def hold(self, rows: pa.Table, *, name: str = "batch") -> None:
        """Take rows that are there already: a batch, or others by their name."""
        self._keep(name, rows)

    def define(self, name: str, sql: str, *, keep: bool = False) -> None:
        """Give the rows of a query a name; ``keep`` those that are asked for more than once."""
        statement = _in_duckdb(sql)
        with translate_failure(duckdb.Error):
            if keep:
                self._keep(name, self._tables.sql(statement).to_arrow_table())
            else:
                self._tables.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {statement}")
                self._kept.pop(name, None)

    def open_table(self, name: str, path: Location, version: int | None = None) -> None:
        """Give a Delta table a name; its files are read by Arrow.

        Arrow cannot compare a text with the statistics of a file that delta-rs has rewritten, whose
        texts are views. So conditions on texts are not left to it.
        """
        self._tables.register(f"{name}_rows", as_arrow(open_rows(path, version)))
        rows = self._tables.table(f"{name}_rows")
        columns = {column: text.name(column) for column in rows.columns}
        columns |= {
            column: f"substr({columns[column]}, 1)"
            for column, type_ in zip(rows.columns, rows.types, strict=True)
            if type_ == "VARCHAR"
        }
        self.define(name, f"SELECT {text.selected(columns)} FROM {name}_rows")

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        found: list[dict[str, Any]] = self.arrow(sql).to_pylist()
        return found

    def columns(self, name: str) -> list[str]:
        """Return a named table's columns."""
        return list(self._tables.table(name).columns)

    def write_parquet(self, sql: str, file: Location) -> None:
        """Write what Arrow has, whose moments have microseconds."""
        content = io.BytesIO()
        pq.write_table(self.arrow(sql), content, store_decimal_as_integer=True)
        file.put(content.getvalue())

    def close(self) -> None:
        """Let go of the batch, and of its files."""
        self._kept.clear()
        self._tables.close()
        # An error that is kept would keep it alive, too, and DuckDB complains of that at the end.
        del self._tables
        shutil.rmtree(self._folder, ignore_errors=True)

    def _spilled(self, rows: Rows) -> pa.Table | None:
        """Return what workers make of a frame, by way of Arrow files that are mapped into memory.

        A task that is tried again leaves a file that nobody reads. ``None`` where a worker cannot
        evaluate what is declared. Of a table, this process is the worker.
        """
        if isinstance(rows.records, pa.Table):
            return rows.here()
        folder, work = str(self._folder), rows.work

        def spill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            path: str | None = f"{folder}/{uuid.uuid4().hex}.arrow"
            writer = None
            try:
                for batch in work(batches):
                    writer = writer or pa.ipc.new_file(path, batch.schema)
                    writer.write_batch(batch)
            except UnevaluatedError:
                path = None
            if writer is not None:
                writer.close()
            if writer is not None or path is None:
                yield pa.RecordBatch.from_pydict({"path": pa.array([path], pa.string())})

        files = map_in_workers(rows.records, spill, "path STRING").collect()
        if not files:
            return rows.without_any()
        if any(file["path"] is None for file in files):
            return None
        parts = (pa.ipc.open_file(pa.memory_map(file["path"])).read_all() for file in files)
        return pa.concat_tables(parts)

    def _rows_if_small(self, sql: str) -> pa.Table | None:
        """Return the rows of a query, but for more than fit."""
        reader, batches, size = self._tables.sql(sql).to_arrow_reader(_ROWS_AT_ONCE), [], 0
        for batch in reader:
            batches.append(batch)
            size += batch.nbytes
            if size > LARGEST_BATCH_BYTES:
                return None
        return pa.Table.from_batches(batches, reader.schema)

    def table(self, name: str) -> pa.Table:
        """Return the rows of a name: as they lie in memory, if they were kept."""
        return self._kept[name] if name in self._kept else self.arrow(f"FROM {name}")

    def _keep(self, name: str, rows: pa.Table) -> None:
        self._tables.execute(f"DROP VIEW IF EXISTS {name}")
        self._tables.register(name, rows)
        self._kept[name] = rows

    def arrow(self, sql: str) -> pa.Table:
        """Return the rows of a query, as they lie in memory."""
        with translate_failure(duckdb.Error):
            return self._tables.sql(_in_duckdb(sql)).to_arrow_table()


@lru_cache(maxsize=1)
def _database(scratch: Path) -> duckdb.DuckDBPyConnection:
    """Open a database of this process, once; what does not fit into memory goes into a folder."""
    folder = str(scratch / "duckdb")
    database = duckdb.connect(config={**OFFLINE, "memory_limit": "2GB", "temp_directory": folder})
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    return database


def _is_within(part: Range) -> str:
    return (
        f"(_topic = {text.text(part.topic)} AND _partition = {part.partition} "
        f"AND _offset >= {part.start} AND _offset < {part.end})"
    )


def _in_duckdb(sql: str) -> str:
    """Write the common dialect as DuckDB's."""
    return sql.replace(text.FAIL, f"error('{text.FAILED}')")
