"""End many processes that have worked on a stream, and count those that did not end with 0.

python -m tests.ends [--reads 200] [--ledger 200] [--verify 200] [--runs 200] [--records 200000]

Threads that outlive the work can abort a process while it ends, once in a while: only many ends
show that they do not. An end costs a second, one of a run with a batch half a minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import track

from ingestion.local import broker
from ingestion.settings import Settings
from tests.support.world import ROOT, environment_of, settings_in

STREAM: Final = "ends"
_PARTITIONS: Final = 3
_DECLARATION: Final = {
    "topic": STREAM,
    "schema": "id INT NOT NULL, name STRING, at INT",
    "keys": ["id"],
}
_PREAMBLE: Final = f"""
from deltalake import DeltaTable
from ingestion.lake.paths import StreamPaths
from ingestion.settings import load_settings
paths = StreamPaths.of("{STREAM}", load_settings())
"""
# One for each function that reads rows by Arrow.
_READS: Final[Mapping[str, str]] = {
    "open_rows": """
from ingestion.sinks.delta.files import open_rows
from ingestion.storage.location import Location
table = open_rows(paths.data).to_table()
""",
    "count_rows": """
import pyarrow.compute as pc
from ingestion.sinks.delta.integrity import count_rows
count = count_rows(paths.data, pc.field("_seq") == 1)
""",
    "highest_epoch": """
from ingestion.sinks.delta.log import (DeltaLog)
epoch = DeltaLog(paths.data).highest_epoch()
""",
    "Ledger.rows": """
from ingestion.lake.ledger import Ledger
rows = Ledger(paths.ledger).rows()
""",
    "inspect quarantine": f"""
from ingestion.operations.inspect_quarantine import inspect
inspection = inspect("{STREAM}", paths)
""",
    "the proof's ledger": """
from ingestion.verify.read.snapshot import read_ledger
batches = read_ledger(paths.ledger)
""",
    "the proof's rows": """
from ingestion.sinks.delta.files import scan_rows
from ingestion.verify.read.snapshot import rows_in
rows = list(rows_in(scan_rows(paths.data, ["id", "name"])))
""",
    "the proof's rows, abandoned": """
from ingestion.sinks.delta.files import scan_rows
from ingestion.verify.read.snapshot import rows_in
rows = rows_in(scan_rows(paths.data, ["id", "name"]))
first = next(rows)
""",
    "head": """
from ingestion.sinks.delta.files import open_rows
from ingestion.storage.location import Location
rows = open_rows(paths.data).head(10)
""",
}


def main() -> int:
    """End processes of every kind, and return 1 when one of them did not end with 0."""
    counts = _arguments()
    console = Console(stderr=True)
    with _stream(counts.records) as (settings, send):
        wrong = 0
        for name, code in _READS.items():
            command = ["-c", _PREAMBLE + code]
            wrong += _end(name, command, counts.reads, settings, console)
        for name, count in (("ledger", counts.ledger), ("verify", counts.verify)):
            command = ["-m", "ingestion", name, STREAM]
            wrong += _end(f"oncelake {name}", command, count, settings, console)
        command = ["-m", "ingestion", "run", STREAM]
        wrong += _end("oncelake run", command, counts.runs, settings, console, before=send)
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.ends", description=__doc__)
    for name in ("reads", "ledger", "verify", "runs"):
        parser.add_argument(f"--{name}", type=int, default=200)
    parser.add_argument("--records", type=int, default=200_000)
    return parser.parse_args()


@contextmanager
def _stream(records: int) -> Iterator[tuple[Settings, Callable[[], None]]]:
    """Ingest ``records`` once; yield the settings, and what sends the records of another batch."""
    with tempfile.TemporaryDirectory(prefix="ends-") as name:
        folder = Path(name)
        address = broker.up(folder / "kafka", jars=ROOT / ".jars", tied_to_caller=True).address
        try:
            settings = settings_in(folder, address, kafka_timeout_seconds=60)
            settings.streams.mkdir()
            (settings.streams / f"{STREAM}.yaml").write_text(json.dumps(_DECLARATION))
            client = {"bootstrap.servers": address, "log_level": 0}
            topic = NewTopic(STREAM, _PARTITIONS, 1)
            admin = AdminClient(client)
            admin.create_topics([topic])[STREAM].result(30)
            producer = Producer({**client, "queue.buffering.max.messages": 1_000_000})
            _send(producer, range(records))
            subprocess.run(
                [sys.executable, "-m", "ingestion", "run", STREAM],
                **_elsewhere(settings),
                check=True,
            )
            yield settings, lambda: _send(producer, range(1_000))
        finally:
            broker.down(folder / "kafka")


def _send(producer: Producer, ids: Sequence[int]) -> None:
    """Send a record for each id; every hundredth is no JSON, and goes into quarantine."""
    for id_ in ids:
        record = {"id": id_, "name": f"name {id_}", "at": id_}
        value = json.dumps(record) if id_ % 100 else "{"
        producer.produce(STREAM, value=value, partition=id_ % _PARTITIONS)
    assert producer.flush(60) == 0


def _end(
    name: str,
    command: Sequence[str],
    count: int,
    settings: Settings,
    console: Console,
    *,
    before: Callable[[], None] = lambda: None,
) -> int:
    """End ``command`` so many times, and return how many ends were not with 0."""
    codes: Counter[int] = Counter()
    for _ in track(range(count), description=name, console=console, transient=True):
        before()
        ended = subprocess.run(
            [sys.executable, *command], **_elsewhere(settings), capture_output=True, check=False
        )
        codes[ended.returncode] += 1
        if ended.returncode:
            console.print(ended.stderr.decode()[-2000:], markup=False)
    wrong = count - codes[0]
    console.print(f"{name}: {count} ends, {wrong} not with 0 {dict(codes)}", markup=False)
    return wrong


def _elsewhere(settings: Settings) -> dict[str, object]:
    return {"cwd": ROOT, "env": environment_of(settings), "stdin": subprocess.DEVNULL}


if __name__ == "__main__":
    sys.exit(main())
