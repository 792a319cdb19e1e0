"""Publishing a batch that waits at the gate, as a person has accepted it.

    lock → where does the table stand? → what waits → read its ranges again → judge again
         → the same batch? → commit, with the reason in the note

Kafka holds the records, so nothing but the evidence was kept of the batch. What is judged now must
be what was shown, or nothing is published.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError, no_table_yet
from oncelake.ingestion.lake.held import HeldBatch
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.lake.lock import Holder, held_by_committer
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.operations.decisions import accept
from oncelake.ingestion.operations.run import StreamTask, on_fitting_engine
from oncelake.ingestion.pipeline.batch import BatchWriter
from oncelake.ingestion.pipeline.gate.judge import Accepted, waiting
from oncelake.ingestion.pipeline.spark.errors import (
    recheck_kafka_on_failure,
    translate_engine_errors,
)
from oncelake.ingestion.pipeline.spark.session import SessionFor
from oncelake.ingestion.recovery.position import Position, read_position
from oncelake.ingestion.recovery.start import plan_start, recheck_start
from oncelake.ingestion.recovery.topics import resolve_topics
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables.table import Tell


def waiting_batch(spec: StreamSpec, paths: StreamPaths) -> HeldBatch | None:
    """Return the batch that waits at a stream's gate, if one does; needs neither Kafka nor Spark.

    Raises:
        RefusedError: the table is not as it was left.
    """
    return waiting(spec, paths, read_position(paths)) if spec.publish == "checked" else None


def publish_or_accept(
    spec: StreamSpec,
    settings: Settings,
    spark: SessionFor,
    *,
    reason: str,
    run_id: str,
    tell: Tell = lambda text: None,
) -> LedgerRow:
    """Publish the batch that waits, or accept what the stream is refused for; see ``accept``.

    Args:
        spark: Asked only where a batch waits.

    Raises:
        InvalidSpecError: there is nothing to accept, or no reason is given.
        RefusedError: the stream is refused for something that cannot be accepted.
    """
    if reason.strip() and waiting_batch(spec, StreamPaths.of(spec.name, settings, spec.sink)):
        publish = Publish(
            spec=spec, settings=settings, spark=spark, run_id=run_id, tell=tell, reason=reason
        )
        return publish.execute()
    return accept(spec, settings, reason=reason, run_id=run_id)


@dataclass(frozen=True, kw_only=True)
class Publish(StreamTask):
    """The publication of the batch that waits at a stream's gate.

    Attributes:
        reason: Why it is all right; the note of the batch keeps it.
    """

    reason: str

    def execute(self) -> LedgerRow:
        """Publish the batch.

        Returns:
            Its row of the ledger.

        Raises:
            InvalidSpecError: no batch waits.
            BatchHeldError: what the ranges hold now is another batch than the one that waits.
            RefusedError: a person must decide something else first.
            StreamLockedError: a run holds the stream.
            DependencyError: Kafka does not answer, or a volume is full or read-only.
        """
        stream = Stream(spec=self.spec, settings=self.settings)
        with translate_engine_errors(stream):
            return on_fitting_engine(resolve_topics(stream), self._execute)[0]

    def _execute(self, stream: Stream) -> LedgerRow:
        with held_by_committer(stream.paths, Holder.me(self.run_id)) as lock:
            planned = plan_start(stream)
            if planned is None:
                raise no_table_yet(stream.name)
            held = self._waiting(stream, planned.position)
            backlog = sum(map(len, held.ranges))
            committer = self.start_committer(stream, planned, lock, backlog=backlog)
            # While the JVM started, nobody held the stream.
            held = self._waiting(committer.stream, committer.start.position)
            accepted = Accepted(held=held, reason=self.reason)
            writer = BatchWriter(committer, run_id=self.run_id, accepted=accepted)
            with recheck_kafka_on_failure(lambda: recheck_start(stream, writer.position)):
                (row,) = writer.write(committer.read(held.ranges), held.ranges)
            return row

    def _waiting(self, stream: Stream, position: Position) -> HeldBatch:
        if held := waiting(stream.spec, stream.paths, position):
            return held
        raise InvalidSpecError(f"{stream.name}: no batch waits at its gate. Next: oncelake status")
