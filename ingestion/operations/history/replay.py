"""``oncelake replay``: what the table has read is read again, and what is missing is added.

    lock → where does the table stand? → heal, or refuse → which offsets? → start Spark, lock again
         → each range into one commit → report

Rows, deletes and quarantined records that are there stay as they are, so a replay may be killed and
run again: it adds what is still missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from oncelake.ingestion.errors import (
    InvalidSpecError,
    NotReplayableError,
    OffsetsExpiredError,
    no_table_yet,
)
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition, cut
from oncelake.ingestion.lake.erasure import erasures
from oncelake.ingestion.lake.ledger import LedgerRow, first_offsets, load_ledger
from oncelake.ingestion.lake.lock import Holder, held_by_committer
from oncelake.ingestion.lake.paths import refuse_unable
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.operations.erase.key import refuse_other_keys
from oncelake.ingestion.operations.history.rewind import moment_of
from oncelake.ingestion.operations.run import StreamTask, on_fitting_engine
from oncelake.ingestion.pipeline.batch import Committer
from oncelake.ingestion.pipeline.replay_batch import ReplayWriter
from oncelake.ingestion.pipeline.report import BatchReport
from oncelake.ingestion.pipeline.spark.errors import (
    recheck_kafka_on_failure,
    translate_engine_errors,
)
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.recovery.start import plan_start, recheck_start
from oncelake.ingestion.recovery.topics import resolve_topics


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayReport(BatchReport):
    """The result of a replay.

    Attributes:
        ranges: What it read again, one range a partition.
    """

    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Replay(StreamTask):
    """One replay of one stream.

    Attributes:
        begin: ``earliest``, a moment with its zone, or offsets as JSON.
        end: A moment, or offsets; ``None`` for all that the table has read.
        on_batch: Called after each batch with its ledger row and the offsets that are left.
    """

    begin: str
    end: str | None = None
    on_batch: Callable[[LedgerRow, int], None] = field(default=lambda row, left: None)

    def execute(self) -> ReplayReport:
        """Read the offsets again.

        Raises:
            InvalidSpecError: there is no table, or the offsets are none that it has read.
            NotReplayableError: the mode would take a record twice.
            OffsetsExpiredError: Kafka no longer holds the offsets.
            RefusedError: a person must decide something else first.
            StreamLockedError: a run holds the stream.
            DependencyError: Kafka does not answer, or a volume is full or read-only.
        """
        stream = Stream(spec=self.spec, settings=self.settings)
        refuse_unable(stream.paths, "replay")
        _refuse_modes_that_fold(stream)
        with translate_engine_errors(stream):
            rows: list[LedgerRow] = []
            return on_fitting_engine(resolve_topics(stream), partial(self._execute, rows))[0]

    def _execute(self, rows: list[LedgerRow], stream: Stream) -> ReplayReport:
        me = Holder.me(self.run_id)
        with held_by_committer(stream.paths, me) as lock:
            planned = plan_start(stream)
            if planned is None:
                raise no_table_yet(stream.name)
            ranges = self._ranges(stream, planned.position)
            report = ReplayReport(
                stream=stream.name, run_id=self.run_id, ranges=ranges, recovered=planned.recovered
            )
            if not ranges:
                return report
            backlog = sum(map(len, ranges))
            committer = self.start_committer(stream, planned, lock, backlog=backlog)
            start = committer.start
            if committer.engine == "spark":
                # While the JVM started, nobody held the stream.
                ranges = self._ranges(stream, start.position)
            self._read(committer, ranges, rows)
            return replace(report, ranges=ranges, batches=tuple(rows), recovered=start.recovered)

    def _read(self, committer: Committer, ranges: Sequence[Range], rows: list[LedgerRow]) -> None:
        """Read ranges batch by batch, but for those that have rows; add the others' rows."""
        stream, start = committer.stream, committer.start
        writer = ReplayWriter(committer, run_id=self.run_id)
        ranges = _behind(ranges, rows)
        parts = cut(ranges, stream.spec.max_offsets_per_trigger)
        left = sum(map(len, ranges))
        with recheck_kafka_on_failure(lambda: recheck_start(stream, start.position)):
            for part in parts:
                records = committer.read(part)
                for row in writer.replay(records, part):
                    rows.append(row)
                    left -= sum(len(counted.range) for counted in row.ranges)
                    self.on_batch(row, left)
                    if row.is_red:
                        return

    def _ranges(self, stream: Stream, position: Position) -> tuple[Range, ...]:
        """Return the offsets to read again: those asked for, as far as the table has read them."""
        rows = load_ledger(stream.paths).rows_of(position.table_id)
        begun, reached = first_offsets(rows), position.next
        # What a topic that is no longer declared holds now, nobody has compared.
        declared = stream.spec.subscribed
        read = {
            at: end
            for at, end in reached.items()
            if at.topic in declared and at in begun and begun[at] < end
        }
        asked = _Asked(stream, Offsets({at: begun[at] for at in read}), Offsets(read))
        starts = asked.offsets("--from", self.begin)
        ends = asked.reached
        if self.end is not None:
            ends = asked.offsets("--to", self.end)
            self._refuse_backwards(starts, ends)
        ranges = starts.ranges_below(ends)
        earliest = stream.kafka.earliest(each.topic_partition for each in ranges)
        lost = Offsets({r.topic_partition: r.start for r in ranges}).ranges_below(earliest)
        if lost:
            raise OffsetsExpiredError(
                stream.name,
                f"Kafka no longer holds {', '.join(map(str, lost))}, which is to be read again.",
                remedy=f"oncelake replay {stream.name} --from earliest reads what is left",
            )
        for erase in (row for row in rows if row.erased is not None):
            (erasure,) = erasures([erase])
            if ranges and erasure.may_leave_out(position.epoch, ranges):
                refuse_other_keys(stream.spec, erase)
        return ranges

    def _refuse_backwards(self, starts: Offsets, ends: Offsets) -> None:
        """Make sure that no partition ends before it starts, and that some has both."""
        both = starts.keys() & ends.keys()
        wrong = [at for at in both if ends[at] < starts[at]] if both else starts
        if wrong:
            raise InvalidSpecError(
                f"{self.spec.name}: --to {self.end!r} ends before --from {self.begin!r} begins, in "
                f"{', '.join(map(str, sorted(wrong)))}. Next: name a later --to; without it, all "
                "is read again that the table has read since --from"
            )


@dataclass(frozen=True, slots=True)
class _Asked:
    """The requested ranges, measured against what the table has read of each partition."""

    stream: Stream
    begun: Offsets
    reached: Offsets

    def offsets(self, option: str, text: str) -> Offsets:
        """Return the offset of each partition that an option means."""
        if text == "earliest" and option == "--from":
            earliest = self.stream.kafka.earliest(self.begun)
            return Offsets({at: max(begun, earliest[at]) for at, begun in self.begun.items()})
        if (moment := moment_of(text)) is not None:
            since = self.stream.kafka.first_since(self.begun, moment)
            return Offsets({at: self._within(at, offset) for at, offset in since.items()})
        return self._named(option, text)

    def _within(self, at: TopicPartition, offset: int) -> int:
        return min(max(offset, self.begun[at]), self.reached[at])

    def _named(self, option: str, text: str) -> Offsets:
        name = self.stream.name
        try:
            named = Offsets.from_json(text)
        except ValueError:
            named = Offsets()
        if not named:
            raise InvalidSpecError(
                f"{name}: {option} {text!r} is none of {'earliest, ' * (option == '--from')}a "
                "moment with its zone such as 2026-11-22T10:00Z, or offsets such as "
                '{"orders": {"0": 100}}'
            )
        for at, offset in named.items():
            if at not in self.begun or not self.begun[at] <= offset <= self.reached[at]:
                read = f"[{self.begun[at]}, {self.reached[at]})" if at in self.begun else "nothing"
                raise InvalidSpecError(
                    f"{name}: {option}: {at} {offset}: of that partition the table has read "
                    f"{read}. Next: oncelake ledger {name}; a table of other offsets is made by "
                    f"`starting` and oncelake reset {name} --yes"
                )
        return named


def _behind(ranges: Sequence[Range], rows: Iterable[LedgerRow]) -> tuple[Range, ...]:
    """Return what is left of ranges behind the batches that have rows."""
    done = Offsets().advanced_by(counted.range for row in rows for counted in row.ranges)
    left = (part.from_offset(done.get(part.topic_partition, part.start)) for part in ranges)
    return tuple(part for part in left if len(part))


def _refuse_modes_that_fold(stream: Stream) -> None:
    """Refuse where a record's effect depends on the rows that were there before it."""
    spec = stream.spec
    why = "folds each record into its row, so one that is read again would count twice"
    if spec.mode == "aggregate":
        what = "`mode: aggregate`"
    elif spec.ignore_null_updates:
        what = "`ignore_null_updates`"
    elif spec.unavailable == "keep":
        what = "`format: debezium`"
        why = "takes columns that an update leaves out from the row before it, which has changed"
    else:
        return
    remedy = f"oncelake rebuild {spec.name}"
    if "rewind" not in spec.sink.kind.cannot:
        remedy += f", or rewind to a batch that oncelake history {spec.name} lists, and run again"
    raise NotReplayableError(spec.name, f"{what} {why}.", remedy=remedy)
