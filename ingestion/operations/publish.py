"""Publishing a batch that waits at the gate, as a person has accepted it.

    lock → where does the table stand? → which batch waits? → read its ranges, and judge them again
         → the same batch? → commit, with the reason in the note

The batch has an id, by what was judged and found. Where the same ranges come to another id now,
nothing is published.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError, no_table_yet
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.lake.lock import Holder, held_by_committer
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.lake.withheld import WithheldBatch
from oncelake.ingestion.operations.decisions import accept
from oncelake.ingestion.operations.run import StreamTask, on_fitting_engine
from oncelake.ingestion.pipeline.batch import BatchWriter
from oncelake.ingestion.pipeline.gate.judge import Accepted
from oncelake.ingestion.pipeline.spark.errors import (
    recheck_kafka_on_failure,
    translate_engine_errors,
)
from oncelake.ingestion.pipeline.spark.session import SessionFor
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.recovery.start import plan_start, recheck_start
from oncelake.ingestion.recovery.topics import resolve_topics
from oncelake.ingestion.recovery.withheld import waiting_at, waiting_batch, withheld_error
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables.table import Tell


def publish_or_accept(
    spec: StreamSpec,
    settings: Settings,
    spark: SessionFor,
    *,
    batch: str | None,
    reason: str,
    run_id: str,
    tell: Tell = lambda text: None,
) -> LedgerRow:
    """Publish the batch that waits, or accept what the stream is refused for; see ``accept``.

    Args:
        spark: Asked only where a batch is published.
        batch: The id of the batch; ``None`` to accept anything else.

    Raises:
        InvalidSpecError: there is nothing to accept, or no reason is given.
        RefusedError: the stream is refused for something that cannot be accepted.
    """
    if batch is not None:
        return Publish(
            spec=spec,
            settings=settings,
            spark=spark,
            run_id=run_id,
            tell=tell,
            accepted=Accepted(id=batch, reason=reason),
        ).execute()
    try:
        return accept(spec, settings, reason=reason, run_id=run_id)
    except InvalidSpecError as error:
        waits = waiting_batch(spec, StreamPaths.of(spec.name, settings, spec.sink))
        if waits is None or not reason.strip():
            raise
        raise InvalidSpecError(
            f"{spec.name}: a batch waits; name it, so that no other is published. Next: oncelake "
            f"batch {spec.name}, then oncelake accept {spec.name} --batch {waits.id} --reason …"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Publish(StreamTask):
    """The publication of the batch that waits at a stream's gate.

    Attributes:
        accepted: Which one, and why; the note of the batch keeps the reason.
    """

    accepted: Accepted

    def execute(self) -> LedgerRow:
        """Publish the batch.

        Returns:
            Its row of the ledger.

        Raises:
            InvalidSpecError: no batch waits.
            BatchWithheldError: what the ranges hold now is another batch than the one that waits.
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
            backlog = sum(map(len, self._waiting(stream, planned.position).ranges))
            committer = self.start_committer(stream, planned, lock, backlog=backlog)
            # While the JVM started, nobody held the stream.
            ranges = self._waiting(committer.stream, committer.start.position).ranges
            writer = BatchWriter(committer, run_id=self.run_id, accepted=self.accepted)
            with recheck_kafka_on_failure(lambda: recheck_start(stream, writer.position)):
                (row,) = writer.write(committer.read(ranges), ranges)
            return row

    def _waiting(self, stream: Stream, position: Position) -> WithheldBatch:
        batch, name = waiting_at(position, stream.paths), stream.name
        if batch is None or not stream.spec.publish.is_checked:
            raise InvalidSpecError(f"{name}: no batch waits at its gate. Next: oncelake status")
        if batch.id != self.accepted.id:
            raise withheld_error(stream.spec, batch, is_other=True)
        return batch
