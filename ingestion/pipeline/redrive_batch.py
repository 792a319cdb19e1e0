"""One redrive: the quarantined records of one epoch, validated as declared today, into one commit.

A record keeps its place in Kafka, its time and its epoch, so that the sink's own guard puts it
where it belongs: it never overwrites what came after it. No offset moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ingestion.errors import RecordsForgottenError
from ingestion.kafka.offsets import Offsets
from ingestion.lake.commit_metadata import CommitMetadata
from ingestion.lake.ledger import LedgerRow
from ingestion.lake.quarantine import mark_redriven
from ingestion.pipeline.batch import BatchWriter
from ingestion.pipeline.counts import BatchCounts, count_records, extra_counts
from ingestion.pipeline.materialize import materializing
from ingestion.pipeline.schema import row_type
from ingestion.pipeline.validate import validate
from ingestion.sinks.sink import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """The batches of one life of the stream's identity.

    Attributes:
        first: Its first batch, as far as the ledger remembers.
        end: The first batch of the next; ``None`` of the last epoch.
    """

    number: int
    first: int
    end: int | None

    def holds(self, seq: Column) -> Column:
        """Tell whether a batch is of this epoch."""
        begun = seq >= self.first
        return begun if self.end is None else begun & (seq < self.end)

    def has(self, seq: int) -> bool:
        """Tell whether a batch is of this epoch."""
        return self.first <= seq and (self.end is None or seq < self.end)


def epochs_of(rows: Sequence[LedgerRow]) -> tuple[Epoch, ...]:
    """Return a table's epochs, oldest first, from its ledger.

    What lies before the oldest row that is remembered counts as of the first epoch, which loses
    against every other.
    """
    first: dict[int, int] = {1: 0}
    for row in rows:
        first.setdefault(row.epoch, row.seq)
    begun = sorted(first.items())
    ends = [*(seq for _, seq in begun[1:]), None]
    return tuple(
        Epoch(number=number, first=seq, end=end)
        for (number, seq), end in zip(begun, ends, strict=True)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Redriven:
    """What became of the records of one epoch.

    Attributes:
        row: The ledger row of the commit; ``None`` when no record is good now.
        still_bad: Records that stay in quarantine, by the reason that they have today.
    """

    row: LedgerRow | None
    still_bad: Mapping[str, int]


class RedriveWriter(BatchWriter):
    """Writes the quarantined records of one epoch as one batch, in the way of every batch."""

    def __init__(self, *given: Any, epoch: Epoch, **named: Any) -> None:
        super().__init__(*given, **named)
        self._of = epoch

    def redrive(self, records: DataFrame) -> Redriven:
        """Judge records of this epoch again, and commit those that are good now.

        Args:
            records: As ``ingestion.lake.quarantine.waiting_records`` returns them.

        Raises:
            RefusedError: the records cannot be ordered, or the quarantine does not take the
                marks; nothing was committed.
        """
        with materializing() as materialize:
            validated = validate(
                records.where(self._of.holds(F.col("_seq"))),
                self._spec,
                row_type(self._spec.ddl),
                Offsets(),
                settings=self._stream.settings,
                materialize=materialize,
            )
            copy = materialize(validated)
            tally = count_records(copy)
            still_bad = _reasons(copy) if tally.dispositions.get("quarantined") else {}
            sent = {
                disposition: n
                for disposition, n in tally.dispositions.items()
                if disposition != "quarantined"
            }
            if not sent:
                return Redriven(row=None, still_bad=still_bad)
            good = copy.where("_disposition != 'quarantined'")
            row = self._commit(
                good, replace(tally, dispositions=sent), self._metadata_of(good, tally, sent)
            )
            return Redriven(row=row, still_bad=still_bad)

    def _metadata_of(
        self, good: DataFrame, tally: BatchCounts, sent: Mapping[str, int]
    ) -> CommitMetadata:
        left_out = {
            disposition: n
            for disposition, n in sent.items()
            if disposition not in {"row", "delete"}
        }
        read = sum(sent.values()) - tally.exploded
        counts = {"offsets": 0, "read": read, "gaps": 0, **left_out}
        counts |= extra_counts(good, tally)
        if self._spec.explode:
            counts["exploded"] = tally.exploded
        return self.position.next_metadata(self._run_id, kind="redrive", counts=counts)

    def _set_aside(self, copy: DataFrame, tally: BatchCounts, metadata: CommitMetadata) -> int:
        """Mark the records in the quarantine; none is added to it."""
        quarantine = self._paths.quarantine
        records = copy.where("_index = 0")
        marked = mark_redriven(
            records, quarantine, metadata.seq, within=self._of.holds(F.col("t._seq"))
        )
        if marked != tally.read:
            raise RecordsForgottenError(
                self._spec.name,
                f"{quarantine} holds {marked} rows of the {tally.read} records that would be sent "
                "in again: some are gone, or there more than once.",
                remedy=f"oncelake verify {self._spec.name} names them",
            )
        return 0

    def _target(self, copy: DataFrame, seq: int) -> Target:
        return replace(super()._target(copy, seq), epoch=self._of.number)


def _reasons(copy: DataFrame) -> dict[str, int]:
    bad = copy.where("_disposition = 'quarantined'").groupBy("_reason").count()
    return {row["_reason"]: row["count"] for row in bad.orderBy("_reason").collect()}
