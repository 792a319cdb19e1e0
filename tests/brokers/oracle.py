"""Compares what tables hold with what producers were promised, read as others do."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Message
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from oncelake.ingestion.settings import Settings
from tests.brokers.writers import BROKEN, Writer, name_of
from tests.support.committed import committed_records
from tests.support.world import ROOT, environment_of
from tests.trials.judge import differences
from tests.trials.oracle import Row

_COLUMNS = ("id", "name", "at")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A stream that reads some topics into a sink.

    Attributes:
        is_append: Each record is a row; otherwise each ``id`` is one, of a single topic.
    """

    sink: str
    topics: tuple[str, ...]
    is_append: bool

    @property
    def name(self) -> str:
        """The stream's."""
        return f"{self.sink}_{'append' if self.is_append else 'upsert'}"

    def declare(self, settings: Settings) -> None:
        """Write the stream's file."""
        kept = {
            "delta": "delta",
            "iceberg": {"iceberg": {"table": f"lake.{self.name}"}},
            "postgres": {"postgres": {"table": f"public.{self.name}"}},
            "kafka": {"kafka": {"topic": f"out.{self.name}"}},
        }
        declared = {
            "topics": self.topics,
            "schema": "id INT NOT NULL, name STRING, at INT",
            **({"mode": "append"} if self.is_append else {"mode": "upsert", "keys": ["id"]}),
            "sink": kept[self.sink],
            # So many broken records end a run with 1.
            "quarantine_rate": {"fail_above": 1},
        }
        settings.streams.mkdir(parents=True, exist_ok=True)
        (settings.streams / f"{self.name}.yaml").write_text(json.dumps(declared))

    def rows(self, settings: Settings) -> Iterable[Row]:
        """Read the table as others do."""
        if self.sink == "postgres":
            with psycopg.connect(settings.postgres.get_secret_value()) as database:  # type: ignore[union-attr]
                return database.execute(f"SELECT id, name, at FROM public.{self.name}").fetchall()
        if self.sink == "kafka":
            return self._rows(committed_records(settings, f"out.{self.name}"))
        if self.sink == "delta":
            rows = DeltaTable(str(Path(settings.lake) / self.name)).to_pyarrow_table()
        else:
            with closing(sqlite3.connect(next(Path(settings.lake).glob(".iceberg/*.db")))) as it:
                query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
                (at,) = it.execute(query, (self.name,)).fetchone()
            rows = StaticTable.from_metadata(at).scan().to_arrow()
        return [tuple(row[name] for name in _COLUMNS) for row in rows.to_pylist()]

    def due(self, records: Mapping[str, list[Message]]) -> Iterable[Row]:
        """Return the rows that the records of its topics are."""
        return self._rows(each for topic in self.topics for each in records[topic])

    def _rows(self, records: Iterable[Message]) -> Iterable[Row]:
        rows = [row for row in map(_row, records) if row]
        return rows if self.is_append else {row[0]: row for row in rows}.values()


def evidence_of(
    readings: Iterable[Reading], writers: Iterable[Writer], settings: Settings
) -> tuple[dict[str, int], list[str]]:
    """Return counts, and what is wrong; nothing when each record was applied exactly once."""
    records, evidence = dict[str, list[Message]](), list[str]()
    counts = {"records": 0, "acknowledged": 0, "aborted": 0, "unknown": 0, "rows": 0}
    for writer in writers:
        records[writer.topic] = committed_records(settings, writer.topic)
        counts["records"] += len(records[writer.topic])
        for promise in ("acknowledged", "aborted", "unknown"):
            counts[promise] += len(getattr(writer, promise))
        evidence += _broken_promises(writer, records[writer.topic])
    for reading in readings:
        rows = list(reading.rows(settings))
        counts["rows"] += len(rows)
        evidence += [] if rows else [f"{reading.name}: no row"]
        evidence += [f"{reading.name}: {it}" for it in differences(rows, reading.due(records))]
        evidence += _verify(reading, settings)
    return counts, evidence


def _broken_promises(writer: Writer, records: Iterable[Message]) -> Iterator[str]:
    """Yield what the cluster did not keep: that would be its fault, and the trial's end."""
    names = Counter(map(name_of, records))
    for what, wrong in (
        ("lost by the cluster", writer.acknowledged - set(names)),
        ("aborted, and there", writer.aborted & set(names)),
        ("never sent", set(names) - writer.acknowledged - writer.unknown),
        ("doubled by the cluster", {name for name, count in names.items() if count > 1}),
    ):
        if wrong:
            yield f"{writer.topic}: {len(wrong)} records {what}, as {sorted(wrong)[:5]}"


def _verify(reading: Reading, settings: Settings) -> Iterator[str]:
    command = [sys.executable, "-m", "ingestion", "verify", reading.name, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment_of(settings), capture_output=True, text=True, check=False
    )
    if done.returncode:
        yield f"verify {reading.name}: {done.returncode} {done.stdout[-1500:]} {done.stderr[-500:]}"


def _row(message: Message) -> Row | None:
    value = message.value()
    if value in (None, BROKEN):
        return None
    read: dict[str, Any] = json.loads(value or b"")
    return tuple(read[name] for name in _COLUMNS)
