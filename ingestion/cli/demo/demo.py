"""The demo: a quarter of New York's flights, from Kafka into a table, and the proof of it.

It is a proof and not a show: each step states what must hold, and the first that does not hold
ends the demo with a sentence and exit code 1.

    python -m oncelake.ingestion.cli.demo.demo
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from oncelake.ingestion.cli.demo import flights
from oncelake.ingestion.cli.demo.flights import Message
from oncelake.ingestion.cli.end_process import run_to_the_end
from oncelake.ingestion.cli.output import out, say, table
from oncelake.ingestion.declaration.files.loader import find_stream
from oncelake.ingestion.delta.files import read_delta, scan_rows
from oncelake.ingestion.errors import IngestionError, counted
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.local import broker
from oncelake.ingestion.local.produce import create, offset_count, produce
from oncelake.ingestion.settings import Settings, load_settings, project_root
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.verify.verify import verify

_SEED = 2013
_STREAM = flights.TOPIC
_TIMEOUT_SECONDS = 600
_SHOWN = ("carrier", "flight", "origin", "dest", "status", "arr_delay", "updated_at")
_COORDINATES = ("_partition", "_offset", "_seq")


class ProofFailedError(IngestionError):
    """Something that the demo promised does not hold."""


class MaterializeError(IngestionError):
    """The Dagster run failed, or did not end."""


class Demo:
    """The steps of the demo, in the order in which ``run`` takes them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._paths = StreamPaths.of(_STREAM, settings)

    def run(self) -> None:
        """Take every step, up to the first that does not hold."""
        began = time.monotonic()
        self._bring_kafka_up()
        self._fill_the_topic()
        self._ingest("Ingest: one Dagster run, one bounded Spark stream")
        self._show()
        self._prove()
        self._ingest_again("Ingest again: nothing may be ingested twice")
        with self._step("Throw Spark's checkpoint away: it is a cache"):
            shutil.rmtree(self._paths.checkpoints, ignore_errors=True)
        say(f"  deleted {self._paths.checkpoints}")
        self._ingest_again("Ingest without it: nothing may change")
        say(f"\nDone in {time.monotonic() - began:.0f} s; all of it held.", "bold")
        say("make ui              opens Dagster: the runs, the books, the checks")
        if self._settings.kafka.address is None:
            say("oncelake kafka down  stops the embedded Kafka, which is still up")

    def _bring_kafka_up(self) -> None:
        if self._settings.kafka.address is not None:
            say(f"  Kafka: {self._settings.kafka.address}, as ONCELAKE_KAFKA says")
            return
        with self._step("Start the embedded Kafka"):
            up = broker.up(self._settings.state / "kafka", jars=self._settings.jars)
        say(f"  {up.address}, process {up.pid}")

    def _fill_the_topic(self) -> None:
        """Send the quarter, unless the topic has it; after an interrupted demo, send it again."""
        with self._step("Send the flights of January to March 2013, as an airline would"):
            create(self._settings, _STREAM, partitions=3)
            messages = list(flights.messages_of(flights.load(quarter=1), seed=_SEED))
            there = offset_count(self._settings, _STREAM)
            if there < len(messages):
                produce(self._settings, _STREAM, messages)
        if there >= len(messages):
            say(f"  topic {_STREAM} holds {counted(there, 'record')} already: nothing sent")
        else:
            _print_sent(messages)

    def _ingest(self, title: str) -> None:
        with self._step(title):
            _materialize(_STREAM, log=self._settings.state / "demo.log")
        red = [row.seq for row in self._batches() if row.is_red]
        if red:
            raise ProofFailedError(f"the books of {_STREAM} do not balance: seq {red}")

    def _ingest_again(self, title: str) -> None:
        before = self._version()
        self._ingest(title)
        if self._version() != before:
            raise ProofFailedError(
                f"nothing new was in the topic, yet the table went from Delta version {before} "
                f"to {self._version()}"
            )
        say(f"  Delta version {before} before, {before} after: nothing was written")

    def _show(self) -> None:
        batches = self._batches()
        _print_books(batches)
        _print_ranges(batches)
        _print_rows(self._paths.data)

    def _prove(self) -> None:
        """Fold the topic by another client and other code, and hold every table against it."""
        spec = find_stream(self._settings.streams, _STREAM)
        with self._step("Prove: read the topic a second time, without Spark (oncelake verify)"):
            verdict = verify(spec, self._settings)
        if not verdict.holds:
            raise ProofFailedError("\n  ".join([verdict.headline, *map(str, verdict.differences)]))
        say(f"  {verdict.headline}")
        say("  equal in every column of every row; every batch counted again")

    def _batches(self) -> tuple[LedgerRow, ...]:
        return Ledger(self._paths.ledger).rows_of(str(read_delta(self._paths.data).metadata().id))

    def _version(self) -> int:
        return read_delta(self._paths.data).version()

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        say(f"\n{title}", "bold")
        began = time.monotonic()
        with out().status("…"):
            yield
        say(f"  {time.monotonic() - began:.1f} s")


def _materialize(stream: str, *, log: Path) -> None:
    """Run ``dagster asset materialize`` as a user would: the engine knows nothing of Dagster."""
    root = project_root()
    command = [sys.executable, "-m", "dagster", "asset", "materialize"]
    command += ["--select", stream, "-m", "assets.definitions"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        began = output.tell()
        try:
            code = subprocess.run(
                command,
                cwd=root,
                env={**os.environ, "DAGSTER_HOME": str(root)},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise MaterializeError(f"no end after {_TIMEOUT_SECONDS} s; see {log}") from None
    if code != 0:
        tail = "\n".join(log.read_bytes()[began:].decode(errors="replace").splitlines()[-40:])
        shown = " ".join(["dagster", *command[3:]])
        raise MaterializeError(f"`{shown}` exited with {code}; the end of {log}:\n{tail}")


def main() -> None:
    """Run the demo, and exit with its code."""
    try:
        Demo(load_settings()).run()
    except IngestionError as error:
        say(f"\nStopped: {type(error).__name__}", "bold red")
        say(str(error))
        raise SystemExit(error.exit_code) from None


def _print_sent(messages: Iterable[Message]) -> None:
    """Show how many messages were sent of each event, and how many of them were odd."""
    events = Counter(m.event for m in messages if m.trait != "malformed")
    traits = Counter(m.trait for m in messages)
    odd = {
        "of them sent twice": traits["repeated"],
        "of them late, and out of order": traits["late"],
        "malformed, in twelve ways": traits["malformed"],
    }
    say("\nSent", "italic")
    table(["messages", "number"], [*events.most_common(), *odd.items()], right=["number"])


def _print_books(batches: Sequence[LedgerRow]) -> None:
    """Show the books of every batch: a row a count that is not zero, a column a batch."""
    names = dict.fromkeys(name for row in batches for name, count in row.counts.items() if count)
    rows: list[tuple[object, ...]] = [
        (name, *(row.counts.get(name, 0) for row in batches)) for name in names
    ]
    rows.append(("balanced", *("yes" if row.balanced else "NO" for row in batches)))
    columns = [f"seq {row.seq}" for row in batches]
    say("\nThe books", "italic")
    table(["count", *columns], rows, right=columns)


def _print_ranges(batches: Iterable[LedgerRow]) -> None:
    """Show the offsets that each batch covers."""
    columns = ["seq", "topic", "partition", "start", "end", "records", "gaps"]
    rows = [(row.seq, *it.as_row().values()) for row in batches for it in row.ranges]
    say("\nOffset ranges, end exclusive", "italic")
    table(columns, rows)


def _print_rows(table_of_flights: Location, *, limit: int = 10) -> None:
    """Show some rows of the flights' table, read without Spark."""
    found = (
        row
        for batch in scan_rows(table_of_flights, [*_SHOWN, *_COORDINATES])
        for row in batch.to_pylist()
    )
    rows = [
        (
            f"{row['carrier']} {row['flight']}",
            f"{row['origin']} → {row['dest']}",
            *(row["status"], row["arr_delay"]),
            f"{row['updated_at']:%b %d %H:%M}",
            *(row[name] for name in _COORDINATES),
        )
        for row in islice(found, limit)
    ]
    columns = ["flight", "from → to", "status", "arr_delay", "updated_at", *_COORDINATES]
    say(f"\n{counted(limit, 'row')} of the table", "italic")
    table(columns, rows)


if __name__ == "__main__":
    run_to_the_end(main)
