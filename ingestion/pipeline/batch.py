"""One batch: from a foreachBatch frame to a commit, a ledger row and a verdict.

What must stay true: Kafka is read once; every count comes from that one copy; nothing that a
crash could leave behind is believed without the data commit; and that commit is found again by its
``txn`` and compared with what we meant, since a skipped statement looks like success.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import CommitConflictError, OffsetHoleError
from ingestion.kafka.admin import Kafka
from ingestion.kafka.offsets import Offsets, Range, fit
from ingestion.lake.books import imbalances
from ingestion.lake.commit_metadata import CountedRange, Note
from ingestion.lake.failpoints import At, reached
from ingestion.lake.foreign_commits import altered_before
from ingestion.lake.ledger import Ledger, LedgerRow
from ingestion.lake.paths import StreamPaths
from ingestion.lake.quarantine import quarantine
from ingestion.lake.side_tables import rows_of_seq
from ingestion.lake.table_log import Commit, TableLog
from ingestion.pipeline.circuit_breaker import refuse_too_many_bad
from ingestion.pipeline.counts import Tally, count_records, extra_counts, holding
from ingestion.pipeline.gaps import Gaps, find_gaps
from ingestion.pipeline.materialize import looked_at
from ingestion.pipeline.schema import row_type
from ingestion.pipeline.validate import GOOD, judge
from ingestion.recovery.position import Position, refuse_another_topic
from ingestion.settings import Settings
from ingestion.sinks.sink import Good, Target, sink_class


class BatchWriter:
    """Writes a run's batches, one after the other, and knows where the table stands."""

    def __init__(
        self,
        spec: StreamSpec,
        settings: Settings,
        kafka: Kafka,
        *,
        position: Position,
        run_id: str,
    ) -> None:
        """Take the stream and the table's position, which each batch moves on."""
        self._spec = spec
        self._settings = settings
        self._paths = paths = StreamPaths.of(spec.name, settings)
        self._kafka = kafka
        self._run_id = run_id
        self._log = TableLog(paths.data)
        self._ledger = Ledger(paths.ledger)
        self.position = position

    def write(self, records: DataFrame, planned: Sequence[Range]) -> LedgerRow | None:
        """Write one batch, and return its ledger row.

        Args:
            records: The batch's frame, undecoded.
            planned: The ranges that the query's offset log planned, one a partition.

        Returns:
            The row, red when the books do not balance; ``None`` when the table holds the whole
            batch already, so that nothing was committed.

        Raises:
            RefusedError: the ranges leave a hole, the topic is another one, or the records
                cannot be ordered; nothing was committed.
            RecordsMissedError: Kafka holds a record that Spark did not deliver.
        """
        reached(At.BATCH_PLANNED)
        plan = fit(planned, self.position.next)
        if plan.holes:
            raise self._hole(plan.holes)
        if plan.is_stale:
            return None
        schema = row_type(self._spec.ddl)
        overlap = self.position.next if plan.overlap else Offsets()
        with looked_at(records, self._spec) as raw, holding() as hold:
            judged = judge(raw, self._spec, schema, overlap, settings=self._settings, hold=hold)
            copy = hold(judged)
            tally = count_records(copy)
            reached(At.BATCH_MATERIALISED)
            refuse_another_topic(self._spec, self._kafka, self.position.identity)
            refuse_too_many_bad(copy, tally, self._spec)
            gaps = find_gaps(copy, planned, tally, kafka=self._kafka, policy=self._spec.gaps)
            if gaps.holes:
                # The proof is worth nothing if it was another topic that gave it.
                refuse_another_topic(self._spec, self._kafka, self.position.identity)
            reached(At.GAPS_PROVEN)
            note = self._note(copy, planned, plan.fresh, tally, gaps)
            return self._commit(copy, tally, note)

    def _note(
        self,
        copy: DataFrame,
        planned: Sequence[Range],
        fresh: Sequence[Range],
        tally: Tally,
        gaps: Gaps,
    ) -> Note:
        """Write down what is known before the sink has its say."""
        empty = sum(len(hole) for hole in gaps.holes)
        counts = {"offsets": sum(map(len, planned)), "read": tally.read, "gaps": empty}
        counts |= {fate: tally.fates.get(fate, 0) for fate in ("overlap", "ignored", "filtered")}
        counts |= extra_counts(copy, tally)
        if self._spec.explode:
            counts["exploded"] = tally.exploded
        if not gaps.proven:
            counts["gaps_unproven"] = empty
        at = tally.partitions
        ranges = tuple(
            CountedRange(
                range=part,
                records=at[part.topic_partition].records - at[part.topic_partition].overlap
                if part.topic_partition in at
                else 0,
                gaps=gaps.within(part),
            )
            for part in fresh
        )
        return self.position.next_note(self._run_id, ranges=ranges, counts=counts)

    def _commit(self, copy: DataFrame, tally: Tally, note: Note) -> LedgerRow:
        """Quarantine, commit, read back, audit, and project into the ledger: in this order."""
        target = self._target(copy, note.seq)
        quarantined = self._set_aside(copy, tally, note)
        reached(At.QUARANTINED)
        sink = sink_class(self._spec)(target, _good(copy, tally, self._spec))
        note = replace(note, counts={**note.counts, "quarantined": quarantined, **sink.prepare()})
        reached(At.PREPARED)
        sink.commit(note)
        reached(At.COMMITTED)
        commit = self._find(note, after=target.version)
        reached(At.READ_BACK)
        written = sink.account(commit)
        counts = {**note.counts, **written.counts}
        problems = [
            *written.problems,
            *imbalances(
                counts,
                rows_of_seq=rows_of_seq(self._paths.data, note.seq, version=commit.version),
                rows_expected=written.rows_expected,
                kind=note.kind,
            ),
            *altered_before(self._spec.name, self._log, commit),
        ]
        row = LedgerRow.of(note, commit, self.position.table_id, counts=counts, problems=problems)
        reached(At.AUDITED)
        self._ledger.put(row)
        reached(At.LEDGER_WRITTEN)
        self.position = self.position.after(note)
        return row

    def _target(self, copy: DataFrame, seq: int) -> Target:
        return Target(
            spark=copy.sparkSession,
            spec=self._spec,
            paths=self._paths,
            epoch=self.position.epoch,
            seq=seq,
            version=self._log.versions()[0],
        )

    def _set_aside(self, copy: DataFrame, tally: Tally, note: Note) -> int:
        if not tally.fates.get("quarantined"):
            return 0
        return quarantine(copy.where("_fate = 'quarantined'"), self._paths, note, self._spec)

    def _find(self, note: Note, *, after: int) -> Commit:
        """Find our commit by its txn, and make sure that it is the one we meant."""
        commit = self._log.find(self._spec.name, note.seq, after=after)
        if commit is not None and commit.note == note:
            return commit
        other = commit or self._log.find(self._spec.name, note.seq)
        found = other.note if other else None
        raise CommitConflictError(
            self._spec.name,
            f"seq {note.seq} should hold {_said(note)} of run {note.run_id}; the table's log has "
            + (f"{_said(found)} of run {found.run_id}." if found else "no such commit."),
            remedy=f"oncelake status {self._spec.name}, then run again from the table's offsets",
        )

    def _hole(self, holes: Sequence[Range]) -> OffsetHoleError:
        return OffsetHoleError(
            self._spec.name,
            f"the batch would skip {', '.join(map(str, holes))}, which the table does not hold.",
            remedy=f"oncelake run {self._spec.name}, which begins again at the table's offsets",
        )


def _good(copy: DataFrame, tally: Tally, spec: StreamSpec) -> Good:
    index = () if spec.explode else ("_index",)
    return Good(
        records=copy.where(F.col("_fate").isin(*GOOD)).drop(
            "_reason", "_detail", "_extra", "_key", "_value", "_headers", *index
        ),
        count=tally.good,
        deletes=tally.fates.get("delete", 0),
        size_bytes=tally.good_bytes,
    )


def _said(note: Note) -> str:
    return ", ".join(str(counted.range) for counted in note.ranges) or "no ranges"
