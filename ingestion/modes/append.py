"""Append: every good record is a row, and its place in Kafka is its identity.

A batch reads nothing of the table. Any other kind of commit may bring records that are there
already, so it adds what is missing and leaves the rest.

Rows to records: a row is one record; inserted rows carry the batch's seq.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import Decision
from oncelake.ingestion.modes.mode import WriteMode
from oncelake.ingestion.tables.commit_metadata import Kind


class AppendMode(WriteMode):
    """Writes one batch to a table of records."""

    updates, deletes = (), ()

    def decide(self, kind: Kind) -> Mapping[str, int]:
        """Insert every record; where some may be in the table, those that are missing."""
        ours = sql.stamp(self._target.epoch, self._target.seq)
        self._engine.define("winners", f"SELECT *, {ours} FROM good")
        columns = sql.names(self._table.columns, "s")
        if kind == "ingest":
            self._engine.define("decided", f"SELECT {columns}, 'inserted' AS _what FROM winners s")
            self._decision = Decision(counts={"inserted": self._good.count})
            return self._counts("inserted")
        place = sql.names(self._identity)
        self._table.open_before(
            f"SELECT {place} FROM winners",
            columns=self._identity,
            size_bytes=self._good.size_bytes,
        )
        self._decide(f"""
            SELECT {columns},
                CASE WHEN t._offset IS NULL THEN 'inserted' ELSE 'unchanged' END AS _what
            FROM winners s LEFT JOIN "before" t ON {sql.equal(self._identity, "t", "s")}
        """)
        return self._counts("inserted", "unchanged")


MODE = AppendMode
