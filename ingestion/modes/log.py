"""Upsert into a log: each batch adds the newest record of each of its keys behind what is there.

A log is not looked up, so nothing is compared with what it holds: of two batches the later one
wins, and within one the newest record. A consumer that keeps the last record of each key has the
table; a record without a value says that its key is gone.

Rows to records: a record written is one record, a delete's included.
"""

from __future__ import annotations

from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.upsert import UpsertMode


class LogMode(UpsertMode):
    """Writes one batch to a log that others read key by key."""

    def _define_winners(self, *, is_chosen: bool) -> None:
        """Define the winners; nothing is looked up in a log."""
        self._engine.define("winners", self._stamped(is_chosen=is_chosen))

    def _decided(self) -> str:
        """Select every winner."""
        what = "CASE WHEN s._delete THEN 'deleted' ELSE 'inserted' END"
        return f"SELECT {sql.names(self._table.columns, 's')}, {what} AS _what FROM winners s"

    def _remember_deletes(self) -> None:
        """Remember none; no query reads them."""


MODE = LogMode
