"""One run of one stream: the page that explains the system.

    lock → where does the table stand? → heal, or refuse → nothing new? report
         → start Spark, lock again → read what Kafka holds now, each batch into one commit → report

The commit of the data table is the truth about offsets; the Spark checkpoint is a cache and the
ledger a projection. A crash between any two lines here is healed by the next run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import RefusedError
from ingestion.kafka.admin import Kafka
from ingestion.kafka.transactions import find_stalls
from ingestion.lake.archive import finish_swap
from ingestion.lake.failpoints import Failpoint, hit
from ingestion.lake.ledger import LedgerRow
from ingestion.lake.lock import Holder, held_by_jvm, held_by_python
from ingestion.lake.paths import StreamPaths
from ingestion.lake.storage import probe_filesystem, translate_disk_errors
from ingestion.lake.table_log import TableLog
from ingestion.operations.delivery import apply_delivery_policy
from ingestion.pipeline.batch import BatchWriter
from ingestion.pipeline.checkpoint import Checkpoint, open_generation
from ingestion.pipeline.create_table import create_table
from ingestion.pipeline.evolve_schema import evolve_schema
from ingestion.pipeline.query import drain
from ingestion.pipeline.report import RunReport
from ingestion.pipeline.schema import refuse_bad_condition
from ingestion.pipeline.source import read_stream
from ingestion.pipeline.spark_errors import (
    recheck_kafka_on_failure,
    translate_spark_errors,
    translate_spark_read_errors,
)
from ingestion.pipeline.transform import refuse_bad_transformation
from ingestion.recovery.position import Position
from ingestion.recovery.start import Start, plan_start, recheck_start
from ingestion.recovery.topics import resolve_topics
from ingestion.settings import Settings

OnBatch = Callable[[LedgerRow, int], None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one stream, until the lag that Kafka had when it began is gone.

    Attributes:
        spec: The declared stream.
        settings: Where Kafka, lake and state are.
        spark: Returns a session of ``ingestion.pipeline.session``; not asked when nothing is new.
        run_id: Names the run in commits, in the ledger, and to whoever finds the stream locked.
        on_batch: Called after each batch with its ledger row and the lag that is left.
        stop: Set it to end the run within seconds; an open batch is as if never begun.
    """

    spec: StreamSpec
    settings: Settings
    spark: Callable[[], SparkSession]
    run_id: str
    on_batch: OnBatch = lambda row, lag: None
    stop: threading.Event = field(default_factory=threading.Event)

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
        paths = StreamPaths.of(self.spec.name, self.settings)
        kafka = Kafka(self.settings)
        with (
            translate_spark_errors(self.spec.name, kafka=kafka.address),
            translate_spark_read_errors(paths),
            translate_disk_errors(self.spec.name, *paths.written, self.settings.state),
        ):
            spec = resolve_topics(self.spec, kafka, paths)
            return replace(self, spec=spec)._decided(paths, kafka)

    def _decided(self, paths: StreamPaths, kafka: Kafka) -> RunReport:
        """Run, and once more when the declared level decides what the run was refused for."""
        try:
            return self._execute(paths, kafka)
        except RefusedError as refusal:
            said = apply_delivery_policy(self.spec, self.settings, refusal, run_id=self.run_id)
            if said is None:
                raise
        report = self._execute(paths, kafka)
        return replace(report, notices=(said, *report.notices))

    def _execute(self, paths: StreamPaths, kafka: Kafka) -> RunReport:
        me = Holder.me(self.run_id)
        hit(Failpoint.BEFORE_LOCK)
        with held_by_python(self.spec.name, paths, me):
            hit(Failpoint.LOOKING)
            probe_filesystem(self.spec.name, paths)
            finish_swap(paths)
            look = plan_start(self.spec, paths, kafka)
            if look and not look.lag and look.position.columns == self.spec.ddl:
                return self._report(
                    look.position, kafka, recovered=look.recovered, notices=look.notices
                )
        spark = self.spark()
        with held_by_jvm(spark, self.spec.name, paths, me):
            hit(Failpoint.LOCK_HELD)
            start = self.start(spark, paths, kafka)
            hit(Failpoint.TABLE_READ)
            recovered = (*(look.recovered if look else ()), *start.recovered)
            checkpoint, notices = _open(paths, start)
            hit(Failpoint.GENERATION_OPENED)
            notices = (*(look.notices if look else ()), *start.notices, *notices)
            writer = BatchWriter(
                self.spec,
                self.settings,
                kafka,
                position=start.position,
                run_id=self.run_id,
            )
            with recheck_kafka_on_failure(
                lambda: recheck_start(self.spec, writer.position, self.settings)
            ):
                batches = self._read(spark, writer, start, checkpoint)
            return self._report(
                writer.position, kafka, batches=batches, recovered=recovered, notices=notices
            )

    def start(self, spark: SparkSession, paths: StreamPaths, kafka: Kafka) -> Start:
        """Find the start under the JVM's lock; on the first run, make the table first."""
        refuse_bad_condition(spark, self.spec)
        refuse_bad_transformation(spark, self.spec)
        start = plan_start(self.spec, paths, kafka)
        if start is None:
            create_table(spark, self.spec, paths, kafka=kafka, run_id=self.run_id)
            start = plan_start(self.spec, paths, kafka)
            assert start is not None, "the table that was just opened is not there"
        position, told = evolve_schema(spark, self.spec, paths, start.position, run_id=self.run_id)
        return replace(start, position=position, notices=(*start.notices, *told))

    def _read(
        self, spark: SparkSession, writer: BatchWriter, start: Start, checkpoint: Checkpoint
    ) -> tuple[LedgerRow, ...]:
        """Read up to the ends, and return the batches that were committed."""
        batches: list[LedgerRow] = []

        def write(frame: DataFrame, batch_id: int) -> None:
            row = writer.write(frame, checkpoint.planned(batch_id))
            if row is not None:
                batches.append(row)
                self.on_batch(row, writer.position.next.lag_to(start.ends))
                hit(Failpoint.BATCH_DONE)
                if row.is_red:
                    raise _RedBatchError

        if start.lag:
            with suppress(_RedBatchError):
                drain(
                    read_stream(spark, self.spec, self.settings, starting=start.starting),
                    write,
                    name=f"{self.spec.name} {self.run_id}",
                    checkpoint=checkpoint.path,
                    stop=self.stop,
                )
        return tuple(batches)

    def _report(
        self,
        at: Position,
        kafka: Kafka,
        *,
        batches: tuple[LedgerRow, ...] = (),
        recovered: tuple[LedgerRow, ...] = (),
        notices: tuple[str, ...] = (),
    ) -> RunReport:
        log = TableLog(StreamPaths.of(self.spec.name, self.settings).data)
        partitions = kafka.topics(self.spec.name, self.spec.subscribed).partitions
        stalls = find_stalls(partitions, kafka, self.settings)
        hit(Failpoint.REPORTED)
        return RunReport(
            stream=self.spec.name,
            run_id=self.run_id,
            batches=batches,
            recovered=recovered,
            notices=(*notices, *map(str, stalls)),
            seq=at.seq,
            epoch=at.epoch,
            next=at.next,
            lag=at.next.lag_to(kafka.stable_end(partitions)),
            delta_version=log.versions()[0],
            row_count=log.row_count(),
            table=str(log.path),
            stalls=stalls,
        )


class _RedBatchError(Exception):
    """Ends the query after a red batch; the batch itself is in the ledger."""


def _open(paths: StreamPaths, start: Start) -> tuple[Checkpoint, tuple[str, ...]]:
    """Begin the checkpoint's generation, and say what a person may want to know."""
    checkpoint, found = open_generation(
        paths.checkpoints, start.starting, had_one=start.position.seq > 0
    )
    notices = []
    told_by = start.position.source
    if told_by != "commit":
        notices.append(
            f"our commits have aged out of the table's log; the {told_by} told the offsets"
        )
    if found is not None:
        notices.append(
            f"the last Spark checkpoint was not as the table says ({found}); generation "
            f"{checkpoint.path.name} began at the table's offsets"
        )
    return checkpoint, tuple(notices)
