"""The proof that any user can run: the topic read a second time, and held against the tables.

    a snapshot of table, log and ledger → ledger and log agree → the topic is the one
         → fold the topic batch by batch, count each batch again → the quarantine → the rows

Another Kafka client, another reader of Delta, another engine for predicates, other code for all
that decides: what both sides got wrong in the same way is all that could slip through. What can no
longer be seen, or is not understood, is said, and never taken for right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from json import JSONDecodeError

from deltalake.exceptions import DeltaError
from pyarrow import ArrowException

from ingestion.declaration.fingerprint import fingerprint
from ingestion.declaration.modes import EXTRA_COLUMN
from ingestion.declaration.spec import StreamSpec
from ingestion.errors import TerminalError
from ingestion.lake.commit_metadata import UNKNOWN
from ingestion.lake.paths import StreamPaths
from ingestion.lake.scratch import scratch_of_this_process, sweep_scratch
from ingestion.settings import Settings
from ingestion.verify.compare import ledger, quarantine
from ingestion.verify.compare.rows import RowsProof
from ingestion.verify.compare.tombstones import deletes_that_explain, remembered_deletes
from ingestion.verify.coverage import Coverage, determine_coverage, identity_in
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.difference import Difference, DifferenceLog, Part
from ingestion.verify.fold.classify import Classifier
from ingestion.verify.fold.earlier_schemas import EarlierSchemas
from ingestion.verify.fold.fold import Fold
from ingestion.verify.fold.recount import miscounts
from ingestion.verify.fold.redrives import Redrives
from ingestion.verify.fold.transform import NOT_INDEPENDENT
from ingestion.verify.read.delta_log import Batch
from ingestion.verify.read.record import Record, RowChange
from ingestion.verify.read.snapshot import Snapshot, row_count, rows_of, take_snapshot
from ingestion.verify.read.spill import SpillStore
from ingestion.verify.read.topic import TopicReader, is_compacted
from ingestion.verify.verdict import Verdict

Tell = Callable[[str, int, int], None]

_UNREADABLE = (DeltaError, ArrowException, OSError, JSONDecodeError)


def verify(
    spec: StreamSpec,
    settings: Settings,
    *,
    limit: int = 20,
    tell: Tell = lambda step, done, total: None,
) -> Verdict:
    """Prove a stream's tables from its topic; changes nothing and needs no Spark.

    Args:
        spec: The declared stream.
        settings: Where Kafka, lake and state are.
        limit: How many differences to keep; all are counted.
        tell: Called with the step, and how much of how much of it is done.

    Raises:
        InvalidSpecError: there is no table yet.
        RefusedError: topic, cluster, table or declaration is not the one the table was filled from.
        DependencyError: Kafka does not answer.
        TerminalError: the table, its log or its ledger cannot be read.
    """
    return _Proof(spec, settings, limit=limit, tell=tell).verdict()


class _Proof:
    """One proof, from the snapshot to the verdict."""

    def __init__(self, spec: StreamSpec, settings: Settings, *, limit: int, tell: Tell) -> None:
        self._spec, self._settings, self._tell = spec, settings, tell
        self._paths = StreamPaths.of(spec.name, settings)
        self._evidence = DifferenceLog(limit)
        self._limits: list[str] = []
        self._records = self._recounted = self._quarantined = self._rows = 0

    def verdict(self) -> Verdict:
        snapshot = self._snapshot()
        self._prove_the_ledger(snapshot)
        batches, identity = snapshot.batches, identity_in(snapshot.commits)
        if identity == UNKNOWN:
            self._limits.append("our commits have aged out of the log, so topic ids are not known")
        horizon = determine_coverage(self._spec, self._settings, identity, batches)
        obstacles: tuple[str, ...] = ()
        try:
            self._prove_the_contents(snapshot, batches, horizon)
        except UnprovableError as error:
            obstacles = (str(error),)
        return Verdict(
            stream=self._spec.name,
            table=str(self._paths.data),
            delta_version=snapshot.version,
            seq=batches[-1].seq if batches else 0,
            epoch=horizon.epoch,
            proven=horizon.reached,
            records=self._records,
            batches=self._recounted,
            commits=sum(commit.is_ours for commit in snapshot.commits),
            rows=self._rows,
            quarantined=self._quarantined,
            differences=tuple(self._evidence.kept),
            difference_count=dict(self._evidence.counts),
            limits=(*horizon.limits(), *self._limits),
            obstacles=obstacles,
        )

    def _snapshot(self) -> Snapshot:
        try:
            return take_snapshot(self._spec, self._paths)
        except _UNREADABLE as error:
            raise TerminalError(
                f"{self._spec.name}: table, log or ledger cannot be read: {_first_line(error)}. "
                f"Next: restore it, or oncelake reset {self._spec.name}"
            ) from error

    def _prove_the_ledger(self, snapshot: Snapshot) -> None:
        mine, add = snapshot.ledger_of_table, self._evidence.add
        add(ledger.broken_numbers(snapshot.ledger, table_id=snapshot.table_id))
        add(ledger.broken_ranges(mine, ledger.begins_in(snapshot.commits)))
        add(ledger.broken_books(mine))
        add(ledger.broken_agreement(mine, snapshot.finished))
        if snapshot.holder is None:
            add(ledger.torn(snapshot.unfinished, self._spec.name))
        else:
            by = f"run {snapshot.holder.run_id}"
            self._limits.append(f"{by} is committing right now: proven through the batch before")

    def _prove_the_contents(
        self, snapshot: Snapshot, batches: Sequence[Batch], horizon: Coverage
    ) -> None:
        ledger.refuse_unknown_kinds(batches)
        judge = Classifier(self._spec, epoch=horizon.epoch, settings=self._settings)
        asked = cache(partial(is_compacted, self._settings))
        if judge.transformation and not judge.transformation.is_independent:
            self._limits.append(NOT_INDEPENDENT)
        sweep_scratch(self._settings.state)
        with SpillStore.in_folder(scratch_of_this_process(self._settings.state)) as memory:
            last = batches[-1].seq if batches else 0
            redrives = self._redrives(memory, horizon, last=last)
            judges = EarlierSchemas(self._spec, judge, epoch=horizon.epoch, settings=self._settings)
            fold = Fold(
                self._spec,
                judge,
                memory,
                horizon,
                is_compacted=asked,
                redrives=redrives,
                judges=judges,
            )
            in_ledger = {batch.seq for batch in snapshot.ledger_of_table}
            self._prove_the_dispositions(batches, fold, redrives, in_ledger)
            self._prove_the_quarantine(fold, horizon, last=last)
            self._limits.extend((*redrives.limits(), *fold.rule.limits()))
            rows = fold.rule.rows()
            self._prove_the_rows(snapshot, RowsProof(self._spec, fold.rule, rows, horizon))

    def _redrives(self, memory: SpillStore, horizon: Coverage, *, last: int) -> Redrives:
        redrives = Redrives(memory, horizon, declaration=fingerprint(self._spec))
        with self._told_unreadable("quarantine"):
            self._evidence.add(redrives.learn(self._paths.quarantine, last_seq=last))
        return redrives

    def _prove_the_dispositions(
        self, batches: Sequence[Batch], fold: Fold, redrives: Redrives, in_ledger: set[int]
    ) -> None:
        horizon = redrives.horizon
        total = sum(part.span for batch in batches for part in horizon.seen_of(batch))
        with TopicReader.opened(self._settings, partitions=len(horizon.begin)) as topic:
            for batch in (batch for batch in batches if batch.kind in ledger.FOLDED):
                if batch.kind == "ingest":
                    records = self._counted(topic.read(horizon.seen_of(batch)), total)
                else:
                    records = redrives.of(batch)
                recount = fold.batch(batch, records)
                self._evidence.add(recount.clashes)
                is_whole = horizon.can_recount(batch) and redrives.can_recount(batch)
                if batch.seq in in_ledger and is_whole:
                    self._evidence.add(miscounts(batch, recount))
                    self._recounted += 1

    def _counted(self, chunks: Iterable[list[Record]], total: int) -> Iterator[list[Record]]:
        for records in chunks:
            yield records
            self._records += len(records)
            self._tell("reading the topic", self._records, total)

    def _prove_the_quarantine(self, fold: Fold, horizon: Coverage, *, last: int) -> None:
        self._quarantined = len(fold.bad)
        with self._told_unreadable("quarantine"):
            rows = rows_of(self._paths.quarantine, None, quarantine.COLUMNS)
            found = quarantine.misplaced(rows, fold.bad, horizon, last_seq=last)
            self._evidence.add(found)

    def _prove_the_rows(self, snapshot: Snapshot, proof: RowsProof) -> None:
        done, total = 0, row_count(self._paths.data, snapshot.version)
        with self._told_unreadable("rows"):
            for rows in rows_of(self._paths.data, snapshot.version, proof.names):
                self._evidence.add(proof.differences(rows))
                done += len(rows)
                self._tell("comparing the table", done, total)
            self._evidence.add(proof.missing(partial(self._explained, proof.horizon)))
        self._rows = proof.tally.compared
        if self._spec.extra_fields == "keep":
            self._limits.append(f"column {EXTRA_COLUMN} was not compared")
        self._limits.extend(proof.tally.sentences())

    def _explained(self, horizon: Coverage, living: dict[str, RowChange]) -> set[str]:
        remembered = remembered_deletes(self._paths.tombstones, self._spec)
        return deletes_that_explain(remembered, horizon, living)

    @contextmanager
    def _told_unreadable(self, part: Part) -> Iterator[None]:
        """Tell a table that cannot be read as what it is: not as it should be."""
        try:
            yield
        except _UNREADABLE as error:
            what = f"delta-rs cannot read it: {_first_line(error)}"
            self._evidence.add([Difference(part=part, what=what)])


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
