"""One batch of a replay: ranges that the table has read before, sent through the same gate again.

A record keeps its place in Kafka, so that the sink finds it in the table, or something newer of its
key, and leaves both as they are: only what is missing is added. No offset moves. What the
quarantine holds already is ``overlap``: a redrive is its way into the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from oncelake.ingestion.declaration.modes import COORDINATES
from oncelake.ingestion.delta.files import is_delta
from oncelake.ingestion.kafka.offsets import Fit, Range
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.modes.engines.rows import Records
from oncelake.ingestion.pipeline.batch import BatchWriter, CountedBatch
from oncelake.ingestion.pipeline.counts import is_first_row
from oncelake.ingestion.pipeline.redrive_batch import epochs_of
from oncelake.ingestion.tables.commit_metadata import CommitMetadata


class ReplayWriter(BatchWriter):
    """Writes ranges that were read before as batches, in the way of every batch."""

    def replay(self, records: Records, ranges: Sequence[Range]) -> Iterator[LedgerRow]:
        """Send the records of some ranges in again, and yield the ledger rows of that.

        Args:
            records: Of these ranges, undecoded.
            ranges: One a partition, none beyond the table's next offset.

        Raises:
            RefusedError: the topic is another one, or the records cannot be ordered; nothing was
                committed.
            RecordsMissedError: Kafka holds a record that Spark did not deliver.
        """
        yield from self.apply(records, ranges)

    def fit_ranges(self, planned: Sequence[Range]) -> Fit:
        """Take what is read again for what it is."""
        return Fit(fresh=tuple(planned), holes=(), overlap=())

    def leave_out(self, engine: Engine, planned: Sequence[Range]) -> list[dict[str, Any]]:
        """Leave out what the quarantine holds: what waits there, and what is bad again."""
        quarantine = self._paths.quarantine
        if is_delta(quarantine):
            engine.open_table("quarantine", quarantine)
            columns = engine.columns("batch")
            engine.define("batch", self._without_quarantined(columns), keep=True)
        return super().leave_out(engine, planned)

    def _without_quarantined(self, columns: Sequence[str]) -> str:
        (*_, epoch) = epochs_of(self._ledger.rows_of(self.position.table_id))
        held = (
            f"SELECT {sql.names(COORDINATES)}, "
            "max(CASE WHEN redriven_seq IS NULL THEN 1 ELSE 0 END) AS _waits "
            f"FROM quarantine WHERE {epoch.holds('_seq')} "
            f"GROUP BY {sql.names(COORDINATES)}"
        )
        is_held = "h._waits = 1 OR (h._waits = 0 AND b._disposition = 'quarantined')"
        made = {"_disposition": f"CASE WHEN {is_held} THEN 'overlap' ELSE b._disposition END"}
        selected = ", ".join(
            f"{made.get(name, sql.name(name, 'b'))} AS {sql.name(name)}" for name in columns
        )
        return (
            f"SELECT {selected} FROM batch b LEFT JOIN ({held}) h "
            f"ON {sql.equal(COORDINATES, 'b', 'h')} "
            # One row stands for a record that is left out, however many its array has made.
            f"WHERE {is_first_row('b')} OR h._waits IS NULL OR h._waits = 0"
        )

    def describe(self, engine: Engine, batch: CountedBatch) -> CommitMetadata:
        """No offset moves, though ranges are read; their records include what is left out."""
        metadata, at = super().describe(engine, batch), batch.counts.partitions
        ranges = tuple(
            replace(part, records=at[part.range.topic_partition].records)
            if part.range.topic_partition in at
            else part
            for part in metadata.ranges
        )
        now = self.position
        return replace(metadata, kind="replay", ranges=ranges, next=now.next, last=now.last)
