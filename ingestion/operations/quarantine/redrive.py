"""``oncelake redrive``: what waits in quarantine is validated once more, as declared today.

    lock → where does the table stand? → heal, or refuse → nothing waits? report
         → start Spark, lock again → the records of each epoch into one commit → report

It begins as a run does, and what it commits is a batch like any other: the note says which records
were sent in, and marks, books, audit and ledger follow. Killed anywhere, it either happened or did
not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow.compute as pc

from oncelake.ingestion.delta.files import is_delta, open_rows
from oncelake.ingestion.delta.integrity import translate_read_errors
from oncelake.ingestion.errors import InvalidSpecError, RefusedError, counted, no_table_yet
from oncelake.ingestion.lake.ledger import Ledger, LedgerRow
from oncelake.ingestion.lake.lock import Holder, held_by_committer
from oncelake.ingestion.lake.paths import StreamPaths, refuse_unable
from oncelake.ingestion.lake.quarantine import WAITS_IN_ARROW
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.operations.erase.key import refuse_other_keys
from oncelake.ingestion.operations.run import StreamTask, on_fitting_engine
from oncelake.ingestion.pipeline.batch import Committer
from oncelake.ingestion.pipeline.redrive_batch import RedriveWriter, epochs_of
from oncelake.ingestion.pipeline.report import BatchReport
from oncelake.ingestion.pipeline.spark.errors import translate_engine_errors
from oncelake.ingestion.recovery.start import plan_start
from oncelake.ingestion.recovery.topics import resolve_topics


@dataclass(frozen=True, kw_only=True, slots=True)
class RedriveReport(BatchReport):
    """The result of a redrive: a batch for each epoch that the records are of.

    Attributes:
        waiting: Records that waited in quarantine, of the reason that was asked for.
        still_bad: Those of them that stay, by the reason that they have today.
    """

    waiting: int = 0
    still_bad: Mapping[str, int] = field(default_factory=dict)

    @property
    def redriven(self) -> int:
        """Records that were sent in again."""
        return sum(row.counts["read"] for row in self.batches)


@dataclass(frozen=True, kw_only=True)
class Redrive(StreamTask):
    """One redrive of one stream; Spark is started when something waits for it.

    Attributes:
        reason: Send in only records of this reason; those of them that are another stream's of the
            same file by now are let go, which else stay.
    """

    reason: str | None = None

    def execute(self) -> RedriveReport:
        """Send in again what waits in quarantine.

        Raises:
            InvalidSpecError: there is no table, or nothing waits for that reason.
            RefusedError: a person must decide first.
            StreamLockedError: a run holds the stream.
            DependencyError: Kafka does not answer, or a volume is full or read-only.
        """
        stream = Stream(spec=self.spec, settings=self.settings)
        refuse_unable(stream.paths, "redrive")
        with translate_engine_errors(stream):
            rows: list[LedgerRow] = []
            return on_fitting_engine(resolve_topics(stream), partial(self._execute, rows))[0]

    def _execute(self, rows: list[LedgerRow], stream: Stream) -> RedriveReport:
        paths, me = stream.paths, Holder.me(self.run_id)
        with held_by_committer(paths, me) as lock:
            planned = plan_start(stream)
            if planned is None:
                raise no_table_yet(self.spec.name)
            waiting = self._waiting(paths)
            report = RedriveReport(
                stream=stream.name, run_id=self.run_id, recovered=planned.recovered
            )
            if not waiting:
                return report
            self._refuse_partial_updates(waiting)
            for row in Ledger(paths.ledger).rows_of(planned.position.table_id):
                if row.erased is not None and min(waiting) < row.seq:
                    refuse_other_keys(self.spec, row)
            committer = self.start_committer(stream, planned, lock, backlog=waiting.total())
            report = replace(report, recovered=committer.start.recovered)
            return self._send(committer, report, rows)

    def _refuse_partial_updates(self, waiting: Counter[int]) -> None:
        if self.spec.ignore_null_updates:
            raise RefusedError(
                self.spec.name,
                f"{counted(waiting.total(), 'record waits', 'records wait')}, and with "
                "`ignore_null_updates` each column holds the last value that arrived, so that a "
                "record which is older than its row cannot be applied.",
                remedy=f"oncelake rebuild {self.spec.name}, which folds all in their order",
            )

    def _send(
        self, committer: Committer, report: RedriveReport, rows: list[LedgerRow]
    ) -> RedriveReport:
        """Send in what waits, an epoch after the other; add the rows of what is committed."""
        paths, start = committer.stream.paths, committer.start
        waiting, still_bad = self._waiting(paths), Counter[str]()
        sent = sum(row.counts["read"] for row in rows)
        for epoch in epochs_of(Ledger(paths.ledger).rows_of(start.position.table_id)):
            if not any(map(epoch.has, waiting)):
                continue
            at = replace(committer, start=start)
            writer = RedriveWriter(
                at, run_id=self.run_id, epoch=epoch, releases_others=self.reason is not None
            )
            row = writer.redrive(committer.read_waiting(self.reason))
            start = replace(start, position=writer.position)
            still_bad.update(writer.still_bad)
            rows += [row] if row else []
            if row and row.is_red:
                break
        return replace(
            report, waiting=waiting.total() + sent, still_bad=dict(still_bad), batches=tuple(rows)
        )

    def _waiting(self, paths: StreamPaths) -> Counter[int]:
        """Count what waits, by the batch that it came from; needs no Spark.

        Raises:
            InvalidSpecError: records wait, and none for the reason that was asked for.
        """
        if not is_delta(paths.quarantine):
            return Counter()
        with translate_read_errors(paths.quarantine):
            dataset = open_rows(paths.quarantine)
            rows = dataset.to_table(columns=["_seq", "reason"], filter=WAITS_IN_ARROW)
        chosen = rows if self.reason is None else rows.filter(pc.field("reason") == self.reason)
        if rows.num_rows and not chosen.num_rows:
            there = ", ".join(sorted(filter(None, rows["reason"].unique().to_pylist())))
            raise InvalidSpecError(
                f"{self.spec.name}: nothing waits for the reason {self.reason!r}; there are: "
                f"{there}. Next: oncelake quarantine {self.spec.name} lists them"
            )
        return Counter(chosen["_seq"].to_pylist())
