"""One run of one stream: the page that explains the system.

    lock → where does the table stand? → heal, or refuse → read what Kafka holds now, batch by
    batch, each into one commit → report

The commit of the data table is the truth about offsets; the Spark checkpoint is a cache and the
ledger a projection. A crash between any two lines here is healed by the next run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from ingestion.batch import BatchWriter
from ingestion.checkpoint import Checkpoint, open_generation
from ingestion.commits import TableLog
from ingestion.healing import heal
from ingestion.kafka import Kafka
from ingestion.lake import StreamPaths
from ingestion.ledger import Ledger, LedgerRow
from ingestion.lock import Holder, held_by_jvm
from ingestion.offsets import Offsets
from ingestion.query import drain
from ingestion.recovery import refuse_red
from ingestion.report import RunReport
from ingestion.settings import Settings
from ingestion.source import read_stream
from ingestion.spec import StreamSpec
from ingestion.start import starting_offsets, take_position

OnBatch = Callable[[LedgerRow, int], None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one stream, until the lag that Kafka had when it began is gone.

    Attributes:
        spec: The declared stream.
        settings: Where Kafka, lake and state are.
        spark: A session of ``ingestion.session``.
        run_id: Names the run in commits, in the ledger, and to whoever finds the stream locked.
        on_batch: Called after each batch with its ledger row and the lag that is left.
        stop: Set it to end the run within seconds; an open batch is as if never begun.
    """

    spec: StreamSpec
    settings: Settings
    spark: SparkSession
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
            DependencyError: Kafka does not answer.
        """
        spec, spark, paths = self.spec, self.spark, StreamPaths.of(self.spec.name, self.settings)
        kafka = Kafka(self.settings)
        with held_by_jvm(spark, spec.name, paths, Holder.me(self.run_id)):
            position, topics = take_position(spark, spec, paths, kafka=kafka, run_id=self.run_id)
            recovered = heal(spec, paths, position)
            refuse_red(spec.name, Ledger(paths.ledger).rows_of(position.table_id))
            starting = starting_offsets(spec, position, kafka, topics)
            checkpoint, notices = _open(paths, starting, position.learned_from)
            position = replace(position, next=position.next.with_new(starting))
            writer = BatchWriter(spec, paths, kafka, position=position, run_id=self.run_id)
            batches = self._read(writer, starting, checkpoint, kafka.stable_end(topics.partitions))
            return self._report(writer, batches, recovered=recovered, notices=notices)

    def _read(
        self, writer: BatchWriter, starting: Offsets, checkpoint: Checkpoint, ends: Offsets
    ) -> tuple[LedgerRow, ...]:
        """Read up to ``ends``, and return the batches that were committed."""
        batches: list[LedgerRow] = []

        def write(frame: DataFrame, batch_id: int) -> None:
            row = writer.write(frame, checkpoint.planned(batch_id))
            if row is not None:
                batches.append(row)
                self.on_batch(row, writer.position.next.lag_to(ends))
                if row.is_red:
                    raise _RedBatchError

        if starting.lag_to(ends):
            with suppress(_RedBatchError):
                drain(
                    read_stream(self.spark, self.spec, self.settings, starting=starting),
                    write,
                    name=f"{self.spec.name} {self.run_id}",
                    checkpoint=checkpoint.path,
                    stop=self.stop,
                )
        return tuple(batches)

    def _report(
        self,
        writer: BatchWriter,
        batches: tuple[LedgerRow, ...],
        *,
        recovered: tuple[LedgerRow, ...],
        notices: tuple[str, ...],
    ) -> RunReport:
        paths, at = StreamPaths.of(self.spec.name, self.settings), writer.position
        log = TableLog(paths.data)
        return RunReport(
            stream=self.spec.name,
            run_id=self.run_id,
            batches=batches,
            recovered=recovered,
            notices=notices,
            seq=at.seq,
            epoch=at.epoch,
            next=at.next,
            lag=at.next.lag_to(Kafka(self.settings).stable_end(at.next)),
            delta_version=log.versions()[0],
            row_count=log.row_count(),
            table=str(paths.data),
        )


class _RedBatchError(Exception):
    """Ends the query after a red batch; the batch itself is in the ledger."""


def _open(
    paths: StreamPaths, starting: Offsets, learned_from: str
) -> tuple[Checkpoint, tuple[str, ...]]:
    """Choose the checkpoint's generation, and say what a person may want to know about it."""
    checkpoint, discarded = open_generation(paths.checkpoints, starting)
    notices = []
    if learned_from != "commit":
        notices.append(
            f"our commits have aged out of the table's log; the {learned_from} told the offsets"
        )
    if discarded is not None:
        notices.append(
            f"the last Spark checkpoint was not as the table says ({discarded}); generation "
            f"{checkpoint.path.name} began at the table's offsets"
        )
    return checkpoint, tuple(notices)
