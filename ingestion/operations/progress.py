"""The progress of a run: the same lines on a terminal and on Dagster's run page.

The rate is that of reading and writing: its clock starts with the first batch, when Spark is there.
"""

from __future__ import annotations

import time

from oncelake.ingestion.errors import counted
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.tables.table import Tell

# Steps inside quick batches are left out; what was committed is always told.
_LEAST_SECONDS = 1.0


class Progress:
    """Puts the steps of one run into words."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._began, self._last = time.monotonic(), 0.0
        self._total = self._left = self._records = 0

    def look(self) -> None:
        """Table and Kafka are asked for what is new."""
        self._tell("looking for new records…")

    def read(self, offsets: int) -> None:
        """The query starts, with so many offsets before it."""
        self._total = self._left = offsets
        self._began = time.monotonic()
        self._step(f"reading {counted(offsets, 'offset')}…")

    def merge(self, records: int) -> None:
        """A batch is read and counted, and so many of its records are written."""
        self._step(f"merging {counted(records, 'record')}… ({self._done})")

    def commit(self, row: LedgerRow, lag: int) -> None:
        """A batch is in the table."""
        self._records += row.counts.get("read", 0)
        self._left, self._last = lag, time.monotonic()
        rate = self._records / max(self._last - self._began, 0.001)
        speed = f"{rate:,.0f} records/s · " if rate >= 1 else ""
        verdict = f" · RED: {row.says()}" if row.is_red else ""
        self._tell(
            f"batch {row.seq} committed as version {row.delta_version} · {self._done} · "
            f"{speed}lag {lag:,}{verdict}"
        )

    @property
    def _done(self) -> str:
        if not self._total:
            return counted(self._records, "record")
        return f"{self._total - self._left:,} of {counted(self._total, 'offset')}"

    def _step(self, text: str) -> None:
        if time.monotonic() - self._last >= _LEAST_SECONDS:
            self._last = time.monotonic()
            self._tell(text)
