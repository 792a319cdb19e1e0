"""What the tests of the command line share: a project of their own, and typing into it."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from click.testing import CliRunner, Result
from deltalake import write_deltalake

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import load_settings
from oncelake.ingestion.tables.commit_metadata import CountedRange
from tests.support.quarantine import as_quarantine

ROOT = Path(__file__).parents[2]
ORDERS = "topic: orders\nschema: id INT NOT NULL, total INT\nkeys: [id]\n"
# Made once: that takes longer than most commands.
_COMMAND = typer.main.get_command(app)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, with one sound stream and no Kafka."""
    (tmp_path / "dagster.yaml").touch()
    for name in [name for name in os.environ if name.startswith("ONCELAKE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    declare(tmp_path, "orders", ORDERS)
    return tmp_path


def declare(home: Path, stream: str, text: str) -> None:
    """Write a declaration."""
    folder = home / "assets" / "streams"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stream}.yaml").write_text(text)


def oncelake(*words: str) -> Result:
    """Type a command, on a screen that no table is too wide for."""
    return CliRunner().invoke(_COMMAND, words, env={"COLUMNS": "1000"})


def type_on_terminal(*words: str, answer: str) -> tuple[int, str]:
    """Type a command on a terminal and an answer; return its exit code and what it showed."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "ingestion", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        shown = b""
        # Linux says EIO once nobody holds the other end any more.
        with suppress(OSError):
            while some := os.read(ours, 10_000):
                shown += some
    os.close(ours)
    return process.returncode, shown.decode()


def answer(result: Result) -> Any:
    """Read the one JSON document on stdout."""
    return json.loads(result.stdout)


def quarantine(stream: str, *rows: dict[str, object]) -> None:
    """Write a stream's quarantine, of which only its rows count."""
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema(
        [
            *(("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())),
            *(("_seq", pa.int64()), ("_timestamp", pa.timestamp("us", tz="UTC"))),
            *(("key", pa.binary()), ("value", pa.binary()), ("headers", pa.list_(header))),
            *(("reason", pa.string()), ("detail", pa.string()), ("redriven_seq", pa.int64())),
        ]
    )
    path = StreamPaths.of(stream, load_settings()).quarantine
    write_deltalake(path.path, as_quarantine(pa.Table.from_pylist(list(rows), schema)))


def row(seq: int, **changes: Any) -> LedgerRow:
    """Make a ledger row of ten records, offsets ``[10 * seq - 10, 10 * seq)``."""
    covered = Range(topic="orders", partition=0, start=10 * seq - 10, end=10 * seq)
    fields: dict[str, Any] = {
        "table_id": "t",
        "seq": seq,
        "kind": "ingest",
        "epoch": 1,
        "committed_at": dt.datetime(2026, 1, 1, 12, seq, tzinfo=dt.UTC),
        "run_id": f"run-{seq}",
        "delta_version": seq + 1,
        "ranges": (CountedRange(range=covered, records=10, gaps=0),),
        "counts": {"offsets": 10, "read": 10, "gaps": 0, "inserted": 10},
        "balanced": True,
    }
    return LedgerRow(**{**fields, **changes})
