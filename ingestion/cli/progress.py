"""What is seen while the engine works: progress on stderr, and nothing of Spark's on stdout."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from ingestion.cli.output import err, note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ingestion.lake.ledger import LedgerRow
    from ingestion.settings import Settings

Tell = Callable[[str], None]

# Whoever reports beside a thread that may be starting Spark takes it: stdout is elsewhere then.
STDOUT = threading.RLock()


@contextmanager
def progress(*, of_many: bool = False) -> Iterator[Tell]:
    """Yield the function that shows where things stand.

    On a terminal one line changes in place; elsewhere, and of many streams that run side by side,
    each is a line of its own.
    """
    console = err()
    if of_many or not console.is_terminal:
        yield note
        return
    with console.status("") as shown:
        yield lambda text: shown.update(Text(text))


def print_batches(stream: str, tell: Tell) -> Callable[[LedgerRow, int], None]:
    """Return what tells of each batch: records so far, their rate, and the lag that is left."""
    began, records = time.monotonic(), 0

    def on_batch(row: LedgerRow, lag: int) -> None:
        nonlocal records
        records += row.counts.get("read", 0)
        rate = records / max(time.monotonic() - began, 0.001)
        tell(
            f"{stream}: batch {row.seq} committed · {records:,} records · {rate:,.0f} records/s · "
            f"lag {lag:,}"
        )

    return on_batch


def session(settings: Settings, tell: Tell, backlog: int | None) -> SparkSession:
    """Start Spark for a backlog of so many records; its JVM must take stderr for its stdout."""
    tell("starting Spark…")
    with STDOUT:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            from ingestion.pipeline.session import start_session

            return start_session(settings, backlog=backlog)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
