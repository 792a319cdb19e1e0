"""What a table must hold: the topic, read and folded by code of the benchmark's own.

A figure counts only if the table has exactly these rows. Confluent's client reads, DuckDB decodes,
keeps the newest record of each key, and reads the table's Parquet files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from bench.topic import DELETED, PARTITIONS, Topic
from oncelake.ingestion.kafka.client import client_options

_CHUNK = 100_000
_NEWEST = "row_number() OVER (PARTITION BY id ORDER BY updated_at DESC, _offset DESC) = 1"
Digest = tuple[int, int]


class Fold:
    """The rows that a topic makes, as of the last ``read``."""

    def __init__(self, topic: Topic, ddl: str, scratch: Path) -> None:
        """Read nothing yet."""
        self.topic = topic
        self._shape = dict(column.split()[:2] for column in ddl.split(", "))
        self._duckdb = duckdb.connect(str(scratch / f"{topic.name}.duckdb"))
        self._duckdb.execute("SET threads = 2; SET memory_limit = '2GB'; SET TimeZone = 'UTC'")
        columns = ", ".join(f"{name} {word}" for name, word in self._shape.items())
        self._duckdb.execute(f"CREATE TABLE newest ({columns}, _offset BIGINT)")
        self._next = [0] * PARTITIONS
        self._digest: Digest = (0, 0)

    def read(self) -> None:
        """Fold what was sent since the last time."""
        shape = ", ".join(f'"{name}": "{word}"' for name, word in self._shape.items())
        for records in self._records():
            self._duckdb.register("records", records)
            self._duckdb.execute(f"""
                INSERT INTO newest
                SELECT unnest(json_transform(value, '{{{shape}}}')), _offset
                FROM records WHERE json_valid(value)""")
        self._duckdb.execute(f"CREATE OR REPLACE TABLE newest AS FROM newest QUALIFY {_NEWEST}")
        gone = f"WHERE status <> '{DELETED}'" if "status" in self._shape else ""
        self._digest = self._digest_of(f"newest {gone}")

    def check(self, table: Path, name: str) -> int:
        """Return how many rows a table has.

        Raises:
            SystemExit: they are not those of the topic.
        """
        delta = DeltaTable(str(table))
        files = ", ".join(f"'{uri}'" for uri in delta.file_uris())
        self._duckdb.register("gone", _marked(delta))
        found = self._digest_of(f"""(
            SELECT r.* FROM read_parquet(
                [{files}], union_by_name = true, filename = 'file', file_row_number = true
            ) r ANTI JOIN gone g ON r.file = g.file AND r.file_row_number = g.number
        )""")
        if found != self._digest:
            raise SystemExit(f"{name}: {table} is wrong: {found}, and not {self._digest}")
        return found[0]

    def _digest_of(self, rows: str) -> Digest:
        columns = ", ".join(
            f"epoch_us({name})" if word == "TIMESTAMP" else name
            for name, word in self._shape.items()
        )
        hashes = f"coalesce(sum(hash(({columns}))::HUGEINT), 0)"
        found = self._duckdb.execute(f"SELECT count(*), {hashes} FROM {rows}").fetchall()
        return int(found[0][0]), int(found[0][1])

    def _records(self) -> Iterator[pa.Table]:
        """Yield what is new, in chunks."""
        options = {**client_options(self.topic.settings), "group.id": "fold"}
        consumer = Consumer({**options, "enable.auto.commit": False})
        at = [TopicPartition(self.topic.name, n, offset) for n, offset in enumerate(self._next)]
        ends = [consumer.get_watermark_offsets(each, timeout=30)[1] for each in at]
        consumer.assign(at)
        while self._next != ends:
            messages = [m for m in consumer.consume(_CHUNK, timeout=1) if m.error() is None]
            for message in messages:
                self._next[message.partition() or 0] = (message.offset() or 0) + 1
            if messages:
                values = pa.array([m.value() for m in messages], pa.string())
                offsets = pa.array([m.offset() for m in messages], pa.int64())
                yield pa.table({"value": values, "_offset": offsets})
        consumer.close()


def _marked(table: DeltaTable) -> pa.Table:
    """Return the rows that deletion vectors mark, as delta-rs tells them: file and number."""
    found: dict[str, list[Any]] = {"file": [], "number": []}
    for each in pa.table(table.deletion_vectors()).to_pylist():
        gone = [n for n, is_there in enumerate(each["selection_vector"]) if not is_there]
        found["file"] += [unquote(urlsplit(each["filepath"]).path)] * len(gone)
        found["number"] += gone
    return pa.table(found, pa.schema([("file", pa.string()), ("number", pa.int64())]))
