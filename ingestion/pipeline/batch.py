"""One batch: from a foreachBatch frame to a commit, a ledger row and a verdict.

What must stay true: Kafka is read once; every count comes from that one copy; nothing is in a table
that the data commit does not name; and that commit is found again by its ``txn`` and compared with
what we meant, since a skipped statement looks like success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.spec import EVALUATED_BY
from oncelake.ingestion.delta.files import read_delta
from oncelake.ingestion.errors import CommitConflictError, OffsetHoleError, counted
from oncelake.ingestion.kafka.last_record import LastRecord, LastRecords
from oncelake.ingestion.kafka.offsets import Fit, Offsets, Range, fit
from oncelake.ingestion.lake.books import ROUTED
from oncelake.ingestion.lake.erasure import erasures
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.lake.lock import refuse_lost_lease
from oncelake.ingestion.lake.quarantine import quarantine_rows, waiting_records
from oncelake.ingestion.lake.side_tables import project
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.choose import EngineName, open_engine, open_writer
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.modes.engines.frame_cache import FrameCache
from oncelake.ingestion.modes.engines.rows import Records
from oncelake.ingestion.modes.keep_columns import keep_columns
from oncelake.ingestion.modes.mode import LEFT_ABSENT, Good, Target, WriteMode, audit, mode_class
from oncelake.ingestion.pipeline.columns import NOT_APPLIED
from oncelake.ingestion.pipeline.contested_keys import settle_contested_keys
from oncelake.ingestion.pipeline.counts import (
    IS_GOOD,
    BatchCounts,
    count_records,
    count_unknown_schemas,
    extra_counts,
)
from oncelake.ingestion.pipeline.decode import decode
from oncelake.ingestion.pipeline.erased import came_before, leave_out, was_read_by
from oncelake.ingestion.pipeline.gaps import Gaps, find_gaps
from oncelake.ingestion.pipeline.gate.circuit_breaker import refuse_too_many_bad
from oncelake.ingestion.pipeline.gate.judge import Accepted, Gate
from oncelake.ingestion.pipeline.plan import compile_plan
from oncelake.ingestion.pipeline.report import Traffic
from oncelake.ingestion.pipeline.schema.record_types import learn_record_types
from oncelake.ingestion.pipeline.spark.errors import translate_expression_errors
from oncelake.ingestion.pipeline.spark.stores import read_table
from oncelake.ingestion.pipeline.statements.transform import plan_transformation, transform
from oncelake.ingestion.pipeline.truncates import take_truncates, truncate
from oncelake.ingestion.pipeline.validate import plan_conditions, validate
from oncelake.ingestion.recovery.continuity import refuse_cut_meanwhile
from oncelake.ingestion.recovery.foreign_commits import foreign_commits_before
from oncelake.ingestion.recovery.start import Start
from oncelake.ingestion.recovery.topics import refuse_another_topic
from oncelake.ingestion.source import librdkafka
from oncelake.ingestion.source.spark import read_ranges
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.tables.commit_log import Commit
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, CountedRange
from oncelake.ingestion.tables.table import SealedTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Committer:
    """The committer of a stream's batches, which holds its lock.

    Attributes:
        spark: Reads the records.
        engine: Counts and merges them.
        start: Where the table stands.
    """

    stream: Stream
    spark: SparkSession
    engine: EngineName
    start: Start

    def read(self, ranges: Sequence[Range]) -> Records:
        """Read the records of ranges, of partitions that differ."""
        settings = self.stream.settings
        if settings.reader == "librdkafka":
            return librdkafka.read_ranges(settings, ranges)
        return read_ranges(self.spark, settings, ranges)

    def read_waiting(self, reason: str | None) -> Records:
        """Read what waits in quarantine: all, or the records of a reason."""
        quarantine, settings = self.stream.paths.quarantine, self.stream.settings
        version = read_delta(quarantine).version()
        if settings.reader == "librdkafka":
            return librdkafka.read_waiting(quarantine, version, reason)
        return waiting_records(
            read_table(self.spark, quarantine, settings, version=version), reason
        )


class CountedBatch(NamedTuple):
    """A batch whose records have been counted, before the write mode has its say.

    Attributes:
        planned: What was read.
        fresh: What of it no batch had read before.
    """

    planned: Sequence[Range]
    fresh: Sequence[Range]
    counts: BatchCounts
    gaps: Gaps


class BatchWriter:
    """Writes a run's batches, one after the other, and knows where the table stands.

    A redrive and a replay are batches, too. They differ in the public steps, which they override:
    what fits the table's offsets, what is left out, refused and counted, which gaps need a proof,
    what the note says, and what is written beside the table.
    """

    def __init__(
        self,
        committer: Committer,
        *,
        run_id: str,
        on_merge: Callable[[int], None] = lambda records: None,
        accepted: Accepted | None = None,
        published: Offsets | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self._stream = committer.stream
        self._spec = committer.stream.spec
        self._paths = committer.stream.paths
        self._run_id = run_id
        self._engine = committer.engine
        self._on_merge = on_merge
        self._table = committer.stream.paths.table
        self._log = self._table.log()
        self._ledger = Ledger(committer.stream.paths.ledger)
        self._erasures = committer.start.erasures
        self._unproven = {*committer.start.unproven}
        self._leader_epochs = committer.start.ends.leader_epochs
        self._plan, is_here = compile_plan(self._spec), committer.engine == "local"
        self.position = committer.start.position
        rows, asked = self._plan.rows, self.position.constraints
        self._transformation = plan_transformation(committer.spark, rows) if is_here else None
        self._conditions = plan_conditions(committer.spark, rows.row, asked) if is_here else None
        self._gate = Gate(
            committer.stream,
            committer.spark,
            is_local=is_here,
            accepted=accepted,
            published=published,
        )
        self._evaluated_by: str | None = None
        self._traffic = traffic or Traffic()
        self.notices: list[str] = []

    @property
    def epoch_of_records(self) -> int:
        """The epoch in which the records were read for the first time."""
        return self.position.epoch

    def write(self, records: Records, planned: Sequence[Range]) -> Iterator[LedgerRow]:
        """Write one batch, or the parts of one that is too large; yield the row of each commit.

        Args:
            records: The batch's, undecoded.
            planned: The ranges that the query's offset log planned, one a partition.

        Yields:
            The ledger row, red when the books do not balance; none when the table holds the whole
            batch already, so that nothing was committed.

        Raises:
            BatchTooLargeError: not even a part of one offset fits the engine.
            RefusedError: the ranges leave a hole, the topic is another one, or the records
                cannot be ordered; nothing was committed.
            RecordsMissedError: Kafka holds a record that Spark did not deliver.
            StreamLockedError: this run has slept past its lease.
        """
        hit(Failpoint.BATCH_PLANNED)
        refuse_lost_lease(self._paths)
        if not self.fit_ranges(planned).is_stale:
            yield from self.apply(records, planned)

    def fit_ranges(self, planned: Sequence[Range]) -> Fit:
        """Compare planned ranges with where the table stands."""
        plan = fit(planned, self.position.next)
        if plan.holes:
            raise self._hole(plan.holes)
        return plan

    def apply(self, records: Records, planned: Sequence[Range]) -> Iterator[LedgerRow]:
        """Take records from Kafka's bytes to their ledger rows; see ``pipeline.columns``."""
        spec = self._spec
        overlap = self.position.next if self.fit_ranges(planned).overlap else Offsets()
        opened = open_engine(self._engine, records, self._stream)
        with closing(opened) as engine, closing(FrameCache()) as frames:
            decoded = decode(records, self._plan.decode, self._stream, frames)
            asked = self.position.constraints
            with translate_expression_errors(spec, planned, asked):
                made = transform(decoded, self._plan.rows, frames, self._transformation)
                judged = validate(made, self._plan.judge, overlap, asked, self._conditions)
                is_in_workers = engine.materialize(judged)
            is_here = is_in_workers and self._transformation is not None
            self._evaluated_by = "local" if is_here and (spec.where or spec.select) else None
            for part in engine.parts(planned):
                plan = self.fit_ranges(part)
                if not plan.is_stale and (row := self._apply_part(engine, part, plan)):
                    yield row

    def _apply_truncates(self, engine: Engine) -> None:
        """Take out of the table what was before a truncate among the records."""
        epoch = self.position.epoch
        if self.epoch_of_records < epoch or not (at := take_truncates(engine, self._spec)):
            return
        if any(each.is_behind(at, epoch) for each in self._erasures):
            return
        self.refuse_bad(engine, count_records(engine))
        refuse_lost_lease(self._paths)
        metadata, row = truncate(self._stream, self.position, at, run_id=self._run_id)
        self._erasures = (*self._erasures, *erasures([row]))
        self.position = self.position.after(metadata)
        rows = counted(row.counts["truncated"], "row was", "rows were")
        self.notices.append(f"{metadata.reason}; {rows} deleted")

    def _apply_part(self, engine: Engine, planned: Sequence[Range], plan: Fit) -> LedgerRow | None:
        """Commit what the engine holds of a batch, if there is anything to be said of it."""
        self.leave_out(engine, planned)
        before = max(self._log.versions(), default=-1)
        target = self.target(engine, before)
        with closing(target.table):
            return self._write(engine, planned, plan, target, after=before)

    def _write(
        self, engine: Engine, planned: Sequence[Range], plan: Fit, target: Target, *, after: int
    ) -> LedgerRow | None:
        target = settle_contested_keys(target)
        keep_columns(target)
        counts = self.count(engine, planned)
        declaration = learn_record_types(counts, self._spec, self._declaration())
        if not counts.read and not planned:
            return None
        gaps = self.prove_gaps(engine, planned, counts)
        self._on_merge(counts.good)
        batch = CountedBatch(planned, plan.fresh, counts, gaps)
        metadata = replace(self.describe(engine, batch), declaration=declaration)
        quarantined = self.write_side_rows(target, metadata, batch)
        mode = mode_class(self._spec)(target, _define_good(engine, counts))
        metadata = replace(_decide(mode, metadata, quarantined), side=target.side)
        metadata = self._gate.judge(engine, mode, metadata, self.position)
        hit(Failpoint.PREPARED)
        commit = self._commit(mode, metadata, after=after)
        self._traffic.read += counts.value_bytes
        if commit.added_bytes is not None:
            self._traffic.written = (self._traffic.written or 0) + commit.added_bytes
        return self._record(type(mode), commit, metadata)

    def _declaration(self) -> Mapping[str, Any] | None:
        """Return what a commit keeps of the declaration, with what has evaluated this batch."""
        declaration = self.position.declaration
        if declaration is None:
            return None
        kept = {name: what for name, what in declaration.items() if name != EVALUATED_BY}
        return {**kept, EVALUATED_BY: self._evaluated_by} if self._evaluated_by else kept

    def count(self, engine: Engine, planned: Sequence[Range]) -> BatchCounts:
        """Count the one copy, and refuse a batch that nobody should apply."""
        counts = count_records(engine)
        hit(Failpoint.BATCH_MATERIALISED)
        self.refuse_bad(engine, counts)
        return counts

    def refuse_bad(self, engine: Engine, counts: BatchCounts) -> None:
        """Refuse records of another topic, and too many that are bad."""
        refuse_another_topic(self._spec, self._stream.kafka, self.position.identity)
        refuse_too_many_bad(engine, counts, self._spec)

    def leave_out(self, engine: Engine, planned: Sequence[Range]) -> list[dict[str, Any]]:
        """Call the records ``filtered`` whose key has been erased since they were first read.

        Those, too, that were before a truncate, which is applied first. A row that is gone has no
        column to keep, so this comes before ``keep_columns``.

        Returns:
            The coordinates of the erased.
        """
        self._apply_truncates(engine)
        epoch = self.epoch_of_records
        return [
            place
            for erasure in self._erasures
            if erasure.may_leave_out(epoch, planned)
            for place in leave_out(engine, erasure, epoch=epoch)
        ]

    def prove_gaps(self, engine: Engine, planned: Sequence[Range], counts: BatchCounts) -> Gaps:
        """Read every planned offset that was not read once more, as far as `gaps` asks for it."""
        kafka = self._stream.kafka
        gaps = find_gaps(engine, planned, counts, kafka=kafka, policy=self._spec.gaps)
        if gaps.holes:
            # The proof is worth nothing if it was another topic that gave it.
            refuse_another_topic(self._spec, kafka, self.position.identity)
        hit(Failpoint.GAPS_PROVEN)
        return gaps

    def describe(self, engine: Engine, batch: CountedBatch) -> CommitMetadata:
        """Write down what is known before the write mode has its say."""
        spec, counted = self._spec, batch.counts
        empty = sum(len(hole) for hole in batch.gaps.holes)
        counts = {"offsets": sum(map(len, batch.planned)), "read": counted.read, "gaps": empty}
        counts |= {
            disposition: counted.dispositions.get(disposition, 0)
            for disposition in ("overlap", "ignored", "filtered", *(ROUTED if spec.route else ()))
        }
        counts |= self.count_extras(engine, counted)
        if not batch.gaps.proven:
            counts["gaps_unproven"] = empty
        fresh = {part.topic_partition for part in batch.fresh}
        if unproven := self._unproven & fresh:
            counts["log_unproven"] = len(unproven)
        at = counted.partitions
        ranges = tuple(
            CountedRange(
                range=part,
                records=at[part.topic_partition].records - at[part.topic_partition].overlap
                if part.topic_partition in at
                else 0,
                gaps=batch.gaps.within(part),
            )
            for part in batch.fresh
        )
        metadata = self.position.next_metadata(self._run_id, ranges=ranges, counts=counts)
        return replace(metadata, last=self._last_records(batch.planned, counted))

    def _last_records(self, planned: Sequence[Range], counted: BatchCounts) -> LastRecords:
        """Return the last record read of each partition, with the epoch of its leader of now.

        Asked for behind the reading, that is not before the one under which a record was written.

        Raises:
            DependencyError: a log has been cut meanwhile.
        """
        ends = self._stream.kafka.stable_end(part.topic_partition for part in planned)
        refuse_cut_meanwhile(self._stream, planned, self._leader_epochs, ends)
        self._leader_epochs = {**self._leader_epochs, **ends.leader_epochs}
        known = self.position.last
        read = {
            at: LastRecord(
                offset=of.last,
                timestamp_ms=of.last_ms,
                leader_epoch=ends.leader_epochs[at],
                digest=of.last_digest,
            )
            for at, of in counted.partitions.items()
            if at not in known or of.last > known[at].offset
        }
        return {**known, **read}

    def count_extras(self, engine: Engine, counted: BatchCounts) -> dict[str, int]:
        """Return what a stream counts beside the dispositions."""
        declared = [column.name for column in self._spec.value_columns]
        counts = extra_counts(engine, counted, declared)
        if self._spec.explode or counted.exploded:
            counts["exploded"] = counted.exploded
        if counted.shared:
            counts["tombstones_shared"] = counted.shared
        if counted.dispositions.get("quarantined") and (route := self._spec.route):
            counts |= {} if route.header else count_unknown_schemas(engine)
        if counted.coerced:
            counts["values_coerced"] = counted.coerced
        if counted.unavailable:
            is_kept = self._spec.unavailable == "keep"
            counts["columns_kept" if is_kept else "columns_unavailable"] = counted.unavailable
        return counts

    def target(self, engine: Engine, version: int) -> Target:
        """Open the table as of a version for the next batch."""
        seq = self.position.seq + 1
        return Target(
            engine=engine,
            spec=self._spec,
            paths=self._paths,
            epoch=self.position.epoch,
            seq=seq,
            table=open_writer(self._engine, engine, self._stream, seq=seq, version=version),
            forgotten=" OR ".join(
                map(came_before, (each for each in self._erasures if each.is_truncate))
            ),
        )

    def write_side_rows(self, target: Target, metadata: CommitMetadata, batch: CountedBatch) -> int:
        """Write the bad records beside the table.

        Those that were read before a key was erased may be of that key: they keep no bytes.

        Returns:
            How many were written, read back.
        """
        if not batch.counts.dispositions.get("quarantined"):
            return 0
        refuse_lost_lease(self._paths)
        epoch = self.position.epoch
        of_keys = (each for each in self._erasures if not each.is_truncate)
        erased = (each for each in of_keys if each.may_leave_out(epoch, batch.planned))
        bare = " OR ".join(was_read_by(each, epoch) for each in erased)
        rows = quarantine_rows(metadata, self._spec, bare=bare or "FALSE")
        return target.write_side("quarantine", self._paths.quarantine, rows)

    def _commit(self, mode: WriteMode, metadata: CommitMetadata, *, after: int) -> Commit:
        """Commit, read back what was committed, and project it into the side tables."""
        refuse_lost_lease(self._paths)
        try:
            mode.commit(metadata)
        except CommitConflictError:
            # Of a commit whose answer was lost, the next look says that the seq is there: by whom?
            if self._log.find(self._spec.name, metadata.seq) is None:
                raise
        hit(Failpoint.COMMITTED)
        commit = self._find(metadata, after=after)
        if isinstance(self._table, SealedTable):
            self._table.seal()
        hit(Failpoint.READ_BACK)
        project(self._paths, metadata, self.position.table_id)
        hit(Failpoint.PROJECTED)
        return commit

    def _find(self, metadata: CommitMetadata, *, after: int) -> Commit:
        """Find our commit by its txn, and make sure that it is the one we meant."""
        commit = self._log.find(self._spec.name, metadata.seq, after=after)
        if commit is not None and commit.metadata == metadata:
            return commit
        other = commit or self._log.find(self._spec.name, metadata.seq)
        found = other.metadata if other else None
        raise CommitConflictError(
            self._spec.name,
            f"seq {metadata.seq} should hold {_ranges(metadata)} of run {metadata.run_id}; the "
            "table's log has "
            + (f"{_ranges(found)} of run {found.run_id}." if found else "no such commit."),
        )

    def _record(self, mode: type[WriteMode], commit: Commit, metadata: CommitMetadata) -> LedgerRow:
        """Audit the batch, and project it into the ledger; the next one begins behind it."""
        # Behind a later commit this run has lost its lease; the next one heals the row.
        rows_of_seq = self._table.rows_of_seq(metadata.seq, commit=commit)
        problems = [
            *audit(mode, commit, rows_of_seq),
            *(self._table.altered_sources(commit) if isinstance(self._table, SealedTable) else ()),
            *foreign_commits_before(self._spec.name, self._log, commit),
        ]
        row = LedgerRow.of(commit, self.position.table_id, problems=problems)
        hit(Failpoint.AUDITED)
        refuse_lost_lease(self._paths)
        self._ledger.put(row)
        hit(Failpoint.LEDGER_WRITTEN)
        self._gate.published()
        self.position = self.position.after(metadata)
        self._unproven -= {counted.range.topic_partition for counted in metadata.ranges}
        return row

    def _hole(self, holes: Sequence[Range]) -> OffsetHoleError:
        return OffsetHoleError(
            self._spec.name,
            f"the batch would skip {', '.join(map(str, holes))}, which the table does not hold.",
            remedy=f"oncelake run {self._spec.name}, which begins again at the table's offsets",
        )


def _define_good(engine: Engine, counted: BatchCounts) -> Good:
    """Call the rows that can be applied ``good``, and say how much that is."""
    columns = sql.names(name for name in engine.columns("batch") if name not in NOT_APPLIED)
    engine.define("good", f"SELECT {columns} FROM batch WHERE {IS_GOOD}")
    return Good(
        count=counted.good,
        deletes=counted.dispositions.get("delete", 0),
        size_bytes=counted.good_bytes,
    )


def _decide(mode: WriteMode, metadata: CommitMetadata, quarantined: int) -> CommitMetadata:
    """Let the write mode decide, and write down all counts before the commit."""
    hit(Failpoint.QUARANTINED)
    counts = {**metadata.counts, "quarantined": quarantined, **mode.decide(metadata.kind)}
    # What was not there has not become a row of its own.
    if absent := counts.pop(LEFT_ABSENT, 0):
        counts |= {LEFT_ABSENT: absent, "exploded": counts["exploded"] - absent}
    return replace(metadata, counts=counts)


def _ranges(metadata: CommitMetadata) -> str:
    return ", ".join(str(counted.range) for counted in metadata.ranges) or "no ranges"
