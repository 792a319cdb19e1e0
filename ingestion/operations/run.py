"""One run of one stream: the page that explains the system.

    lock → where does the table stand? → heal, or refuse → nothing new? report
         → start Spark, lock again → read what Kafka holds now, each batch into one commit → report

The commit of the data table is the truth about offsets; the Spark checkpoint is a cache and the
ledger a projection. A crash between any two lines here is healed by the next run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from oncelake.ingestion.declaration.rules.notices import notices_of
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import (
    BatchTooLargeError,
    CommitConflictError,
    OffsetsExpiredError,
    RefusedError,
    TopicRecreatedError,
    TopicTruncatedError,
)
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Ends, Offsets, Range
from oncelake.ingestion.kafka.transactions import find_stalls
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.lake.lock import CommitterLock, Holder, held_by_committer
from oncelake.ingestion.lake.probe import probe_storage
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.choose import choose_engine
from oncelake.ingestion.modes.engines.rows import Records
from oncelake.ingestion.operations.decisions import accept, adopt_topic
from oncelake.ingestion.operations.discover import keep_columns
from oncelake.ingestion.operations.follow.together import Reading, SharedReading, Write
from oncelake.ingestion.operations.progress import Progress
from oncelake.ingestion.operations.telemetry import observed
from oncelake.ingestion.pipeline.batch import BatchWriter, Committer
from oncelake.ingestion.pipeline.checkpoint import Checkpoint, open_generation
from oncelake.ingestion.pipeline.plan import compile_plan
from oncelake.ingestion.pipeline.report import RunReport, Traffic, absent_columns
from oncelake.ingestion.pipeline.schema.create_table import create_table, inherit_erasures
from oncelake.ingestion.pipeline.schema.evolve import evolve_schema
from oncelake.ingestion.pipeline.schema.follow import SchemaMovedError
from oncelake.ingestion.pipeline.schema.types import refuse_bad_condition
from oncelake.ingestion.pipeline.spark.errors import (
    recheck_kafka_on_failure,
    translate_engine_errors,
)
from oncelake.ingestion.pipeline.spark.session import SessionFor
from oncelake.ingestion.pipeline.spark.stores import refuse_missing_jars
from oncelake.ingestion.pipeline.statements.transform import refuse_bad_transformation
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.recovery.start import Start, count_unread, plan_start, recheck_start
from oncelake.ingestion.recovery.topics import as_of_table, resolve_topics
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.catalogs.register import register
from oncelake.ingestion.source import librdkafka
from oncelake.ingestion.source.librdkafka import WithoutSpark, refuse_spark
from oncelake.ingestion.source.spark import read_stream
from oncelake.ingestion.source.spark_query import drain
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.tables.table import Tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OnBatch = Callable[[LedgerRow, int], None]
Report = TypeVar("Report")


@dataclass(frozen=True, kw_only=True)
class StreamTask:
    """A committer to the table of one stream: a run, a redrive, a replay.

    Attributes:
        spark: Returns a session for the records to read; not asked when there are none.
        run_id: Names it in commits, in the ledger, and to whoever finds the stream locked.
        tell: Called with a sentence for each step, for whoever waits.
    """

    spec: StreamSpec
    settings: Settings
    spark: SessionFor
    run_id: str
    tell: Tell = lambda text: None

    def start_committer(
        self, stream: Stream, planned: Start | None, lock: CommitterLock, *, backlog: int
    ) -> Committer:
        """Start Spark, and let whoever commits hold the lock and know where the table stands.

        That is this process, or the JVM, for which the start is planned again.

        Args:
            stream: The stream; its table is made where there is none yet.
            planned: The start as it is planned; ``None`` without a table.
            lock: In the hands of this process.
            backlog: How many records Spark is started for.
        """
        engine, obstacle = choose_engine(stream)
        if engine == "spark":
            refuse_missing_jars(stream.settings, obstacle)
        start = partial(self.spark, backlog)
        if stream.settings.reader == "librdkafka":
            merged_by = obstacle or ("Spark merges" if engine == "spark" else None)
            refuse_spark(stream.spec, by=merged_by)
            spark = cast("SparkSession", WithoutSpark())
        else:
            spark = start() if engine == "local" else lock.pass_to_jvm(start)
        hit(Failpoint.LOCK_HELD)
        refuse_bad_condition(spark, stream.spec)
        refuse_bad_transformation(spark, compile_plan(stream.spec).rows)
        begun = planned if engine == "local" else plan_start(stream)
        if begun is None:
            create_table(stream, run_id=self.run_id)
            begun = plan_start(stream)
            assert begun is not None, "the table that was just opened is not there"
        # Another may have altered the table before the lock was ours.
        stream = replace(stream, spec=as_of_table(stream.spec, begun.position, stream.paths))
        # Told until a first batch is in the table: the run that made it may have failed after that.
        to_decide = () if begun.position.seq else notices_of(stream.spec)
        position, changes = evolve_schema(
            spark, stream, begun.position, run_id=self.run_id, tell=self.tell
        )
        was_asked = stream.settings.merge_engine == "local"
        why = (
            [f"Spark merged, not the engine `local`: {obstacle}"] if obstacle and was_asked else []
        )
        # What the first plan has healed, the second does not find.
        plans = [planned, begun] if planned is not None and planned is not begun else [begun]
        healed = dict.fromkeys(notice for plan in plans for notice in plan.notices)
        begun = replace(
            begun,
            position=position,
            recovered=tuple(row for plan in plans for row in plan.recovered),
            notices=(*healed, *changes, *to_decide, *why),
        )
        return Committer(stream=stream, spark=spark, engine=engine, start=begun)


@dataclass(kw_only=True)
class _Attempts:
    """The state of one run so far, on any engine and by any columns.

    Attributes:
        committed: The ledger's row of each batch.
        have_read: Whether there is a checkpoint of it.
        traffic: The bytes that its batches moved.
    """

    committed: list[LedgerRow] = field(default_factory=list)
    have_read: bool = False
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, kw_only=True)
class Run(StreamTask):
    """One run of one stream, until the lag that Kafka had when it began is gone.

    Attributes:
        inherited: What was erased from the table that this one will replace, as its commits say.
        published: Next offsets of that table, whose batches have passed the gate already.
        on_batch: Called after each batch with its ledger row and the lag that is left.
        stop: Set it to end the run within seconds; an open batch is as if never begun.
        together: Reads for the siblings that run now, too.
        kafka: The client of several runs, by which one begins; see ``SharedKafka``.
    """

    inherited: Sequence[Mapping[str, Any]] = ()
    published: Offsets | None = None
    on_batch: OnBatch = lambda row, lag: None
    stop: threading.Event = field(default_factory=threading.Event)
    together: SharedReading | None = None
    kafka: Kafka | None = None

    def execute(self) -> RunReport:
        """Read what the topic holds now into the table, and balance the books.

        Returns:
            What was done. A red batch ends the run: it is in the report, and the next run refuses
            to go on until somebody accepts it.

        Raises:
            RefusedError: a person must decide first.
            StreamLockedError: another run holds the stream.
            DependencyError: Kafka does not answer, or a volume is full or read-only.
        """
        with observed(self.spec, self.settings, self.stop) as observed_run:
            run = replace(self, on_batch=observed_run.batches(self.on_batch))
            report = run.execute_unobserved()
            if not self.stop.is_set():
                report = report.noticing(*register(self.spec, self.settings))
            observed_run.report = report
            return report

    def execute_unobserved(self) -> RunReport:
        """Execute as a part of something else, of which metrics and lineage tell as a whole.

        Once more where the declared level of delivery decides what the run is refused for.
        """
        began, decision = time.monotonic(), None
        stream = Stream(spec=self.spec, settings=self.settings, shared=self.kafka)
        execute = partial(self._execute, _Attempts())
        with translate_engine_errors(stream):
            stream = resolve_topics(stream)
            is_newer = stream.spec.ddl != self.spec.ddl
            unwritten = keep_columns(stream.spec, self.settings) if is_newer else None
            try:
                report, notice = on_fitting_engine(stream, execute)
            except RefusedError as refusal:
                decision = _apply_delivery_policy(stream, refusal, run_id=self.run_id)
                if decision is None:
                    raise
                report, notice = on_fitting_engine(stream, execute)
        notices = (*filter(None, (unwritten, decision, notice)), *report.notices)
        return replace(report, notices=notices, seconds=time.monotonic() - began)

    def _execute(self, attempts: _Attempts, stream: Stream) -> RunReport:
        """Execute on one engine, and by the columns of one declaration."""
        me, progress = Holder.me(self.run_id), Progress(self.tell)
        progress.look()
        hit(Failpoint.BEFORE_LOCK)
        with held_by_committer(stream.paths, me) as lock:
            hit(Failpoint.LOOKING)
            probe_storage(stream.paths)
            first = plan_start(stream)
            if first and not first.lag and first.position.columns == stream.spec.ddl:
                return self._report(stream, first.position, first, first.ends)
            stream = stream.unshared
            backlog = first.lag if first else count_unread(stream.spec, stream.kafka)
            committer = self.start_committer(stream, first, lock, backlog=backlog)
            start = committer.start
            start = inherit_erasures(stream, start, self.inherited, run_id=self.run_id)
            committer = replace(committer, start=start)
            hit(Failpoint.TABLE_READ)
            checkpoint, notices = _open_checkpoint(stream, start, attempts)
            hit(Failpoint.GENERATION_OPENED)
            writer = BatchWriter(
                committer,
                run_id=self.run_id,
                on_merge=progress.merge,
                published=self.published,
                traffic=attempts.traffic,
            )
            with recheck_kafka_on_failure(lambda: recheck_start(stream, writer.position)):
                self._read(committer, writer, checkpoint, attempts.committed, progress)
            topics = stream.kafka.topics(stream.name, stream.spec.subscribed)
            ends, batches = stream.kafka.stable_end(topics.partitions), tuple(attempts.committed)
            report = self._report(
                stream,
                writer.position,
                start,
                ends,
                batches=batches,
                notices=(*notices, *writer.notices),
            )
            return replace(report, engine=committer.engine, traffic=attempts.traffic)

    def _read(
        self,
        committer: Committer,
        writer: BatchWriter,
        checkpoint: Checkpoint | None,
        committed: list[LedgerRow],
        progress: Progress,
    ) -> None:
        """Read up to the ends, and add the batches that were committed."""
        spark, stream, start = committer.spark, committer.stream, committer.start

        def write(records: Records, planned: Sequence[Range]) -> None:
            for row in writer.write(records, planned):
                committed.append(row)
                lag = writer.position.next.lag_to(start.ends)
                progress.commit(row, lag)
                self.on_batch(row, lag)
                hit(Failpoint.BATCH_DONE)
                if row.is_red or self.stop.is_set():
                    raise _EndOfRunError

        def query(starting: Offsets, lag: int, each: Write) -> None:
            if checkpoint is None:
                limit, ranges = stream.spec.max_offsets_per_trigger, starting.ranges_to(start.ends)
                librdkafka.drain(stream.settings, ranges, each, limit=limit, stop=self.stop)
                return
            drain(
                read_stream(spark, stream.spec, stream.settings, starting=starting, lag=lag),
                lambda frame, batch_id: each(frame, checkpoint.planned(batch_id)),
                name=f"{stream.name} {self.run_id}",
                checkpoint=checkpoint.path,
                stop=self.stop,
            )

        if start.lag:
            progress.read(start.lag)
            at, lag = start.starting, start.lag
            mine = Reading(starting=at, lag=lag, query=query, write=write, stop=self.stop)
            with suppress(_EndOfRunError):
                if self.together:
                    self.together.execute(stream.name, mine)
                else:
                    mine.execute()

    def _report(
        self,
        stream: Stream,
        at: Position,
        start: Start,
        ends: Ends,
        *,
        batches: tuple[LedgerRow, ...] = (),
        notices: tuple[str, ...] = (),
    ) -> RunReport:
        table = stream.paths.table
        log = table.log()
        stalls = find_stalls(ends, stream.kafka, stream.settings)
        hit(Failpoint.REPORTED)
        if not log.exists:
            raise CommitConflictError(stream.name, f"{table.where} was removed meanwhile.")
        return RunReport(
            stream=stream.name,
            run_id=self.run_id,
            batches=batches,
            recovered=start.recovered,
            notices=(*start.notices, *notices, *absent_columns(batches), *map(str, stalls)),
            seq=at.seq,
            epoch=at.epoch,
            next=at.next,
            lag=at.next.lag_to(ends),
            delta_version=log.versions()[0],
            row_count=log.row_count(),
            table=table.where,
            stalls=stalls,
            sink=stream.spec.sink.name,
        )


def on_fitting_engine(
    stream: Stream, execute: Callable[[Stream], Report]
) -> tuple[Report, str | None]:
    """Execute, once more where a batch needs other columns, or Spark; say so then.

    What was committed before that stays, so ``execute`` must go on behind it.
    """
    try:
        return execute(stream), None
    except SchemaMovedError as moved:
        unwritten = keep_columns(moved.spec, stream.settings)
        hit(Failpoint.COLUMNS_KEPT)
        moved_on = replace(stream.unshared, spec=moved.spec)
        report, notice = on_fitting_engine(moved_on, execute)
        return report, "; ".join(filter(None, (unwritten, notice))) or None
    except BatchTooLargeError as too_large:
        if stream.spec.sink.name != "delta":
            raise
        refuse_missing_jars(stream.settings, too_large.problem)
        by_spark = stream.settings.model_copy(update={"merge_engine": "spark"})
        notice = f"Spark merged: {too_large.problem}"
        return execute(replace(stream.unshared, settings=by_spark)), notice


class _EndOfRunError(Exception):
    """Ends the query behind a batch that is in the ledger: it is red, or the run is to stop."""


def _open_checkpoint(
    stream: Stream, start: Start, attempts: _Attempts
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """Begin the checkpoint's generation, and say what a person may want to know.

    What reads without Spark has none.
    """
    if stream.settings.reader == "librdkafka":
        return None, ()
    checkpoint, disagreement = open_generation(
        stream.paths.checkpoints, start.starting, had_one=start.position.seq > 0
    )
    notices, source = [], start.position.source
    if source != "commit":
        notices.append(
            f"our commits have aged out of the table's log; the {source} gave the offsets"
        )
    # This run itself may have left a batch, or the query of a sibling read for this stream.
    is_expected = attempts.have_read or stream.spec.route is not None
    attempts.have_read = True
    if disagreement is not None and not is_expected:
        notices.append(
            f"the last Spark checkpoint was not as the table says ({disagreement}); generation "
            f"{checkpoint.path.name} began at the table's offsets"
        )
    return checkpoint, tuple(notices)


def _apply_delivery_policy(stream: Stream, refusal: RefusedError, *, run_id: str) -> str | None:
    """Decide what a run was refused for, where the declared level of delivery says how.

    Rows and offsets are one commit, so a crash neither loses nor doubles a record at any level,
    and none is cheaper than another. They differ where Kafka itself takes records away:

        exactly_once   (default) the run is refused until a person decides
        at_most_once   what retention deleted before it was read is skipped, and counted as lost
        at_least_once  a topic made again, or cut, is read again from its start, in a new epoch

    Needs the stream to be free: the decision takes its lock.

    Returns:
        What was decided, in a sentence, or ``None`` when a person must.
    """
    spec, settings = stream.spec, stream.settings
    if spec.delivery == "at_most_once" and isinstance(refusal, OffsetsExpiredError):
        row = accept(spec, settings, reason=f"delivery: {spec.delivery}", run_id=run_id)
        lost = ", ".join(str(counted.range) for counted in row.ranges if len(counted.range))
        return f"delivery: at_most_once: {lost} was gone before it was read, and is skipped"
    was_replaced = isinstance(refusal, TopicRecreatedError | TopicTruncatedError)
    if spec.delivery == "at_least_once" and was_replaced:
        row = adopt_topic(spec, settings, run_id=run_id)
        return f"delivery: at_least_once: epoch {row.epoch} began, {row.accepted}"
    return None
