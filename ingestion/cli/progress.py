"""Progress on stderr: one line that changes in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from ingestion.cli.output import err, note

if TYPE_CHECKING:
    from ingestion.lake.ledger import LedgerRow

Tell = Callable[[str], None]


@contextmanager
def progress() -> Iterator[Tell]:
    """Yield the function that shows where things stand."""
    console = err()
    if not console.is_terminal:
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
