"""The proof that any user can run: the topic read a second time, and compared with the tables.

    a snapshot of table, log and ledger → ledger and log agree → the topic is the one
         → fold the topic batch by batch, count each batch again → the quarantine → the rows

Another Kafka client, another engine for predicates, other code for all decisions: only an error
that both sides make alike goes unseen, and one by which a sink's own reader undoes what its writer
did. What is no longer covered, or not understood, is named, and never counts as proven.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cache, partial

from oncelake.ingestion.declaration.spec import (
    ALTERED,
    StreamSpec,
    meaning,
    meaning_changes,
)
from oncelake.ingestion.delta.integrity import damages_of, translate_read_errors
from oncelake.ingestion.delta.log import DeltaLog
from oncelake.ingestion.errors import (
    DamagedTableError,
    DependencyError,
    TableBusyError,
    counted,
)
from oncelake.ingestion.lake.ledger import Ledger, written_seqs
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.side_tables import read_side_tables
from oncelake.ingestion.recovery.topics import as_of_its_table
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.processes import scratch_of_this_process, sweep_scratch
from oncelake.ingestion.tables.commit_metadata import CONSTRAINTS, UNKNOWN
from oncelake.ingestion.verify.adopted import AdoptedRows
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.events import database_in
from oncelake.ingestion.verify.columns.memory import (
    ProofMemory,
    ProofMemoryError,
    forget,
    ledger_digest,
    load_memory,
    refuse_unfit,
    rule_of,
)
from oncelake.ingestion.verify.columns.proof import ColumnProof
from oncelake.ingestion.verify.compare import ledger, quarantine
from oncelake.ingestion.verify.compare.continuity import refuse_another_log
from oncelake.ingestion.verify.compare.ledger import miscounts
from oncelake.ingestion.verify.compare.promises import PLACE, Rows, shared_keys
from oncelake.ingestion.verify.compare.routes import broken_equation, counts_across, terms_of
from oncelake.ingestion.verify.compare.rows import (
    RowsProof,
    compared_columns,
    tombstones_of,
)
from oncelake.ingestion.verify.coverage import Coverage, determine_coverage
from oncelake.ingestion.verify.decode.coerce import UnprovableError
from oncelake.ingestion.verify.fold.classify import Alteration, Classifier, Classifiers
from oncelake.ingestion.verify.fold.fold import Fold
from oncelake.ingestion.verify.fold.redrives import Redrives
from oncelake.ingestion.verify.fold.rule import FoldContext
from oncelake.ingestion.verify.fold.transform import NOT_INDEPENDENT, ApplyTransformation
from oncelake.ingestion.verify.read.record import Record
from oncelake.ingestion.verify.read.snapshot import (
    FOLDED,
    Batch,
    Snapshot,
    read_ledger,
    rows_in,
    rows_through,
    take_snapshot,
    without_undone,
)
from oncelake.ingestion.verify.read.spill import SpillStore
from oncelake.ingestion.verify.read.topic import TopicReader, is_compacted
from oncelake.ingestion.verify.verdict import Difference, DifferenceLog, Part, Verdict

Progress = Callable[[str, int, int], None]


def verify(
    spec: StreamSpec,
    settings: Settings,
    *,
    limit: int = 20,
    tell: Progress = lambda step, done, total: None,
    apply_transformation: ApplyTransformation | None = None,
    whole: bool = False,
) -> Verdict:
    """Prove a stream's tables from its topic; changes none of them.

    Args:
        limit: How many differences to keep; all are counted.
        tell: Called with the step, and how much of how much of it is done.
        apply_transformation: Applies what is declared between value and row and only Spark can
            evaluate; without it such a stream is not provable.
        whole: Begin anew, whatever an earlier proof has left.

    Raises:
        InvalidSpecError: there is no table yet.
        RefusedError: topic, cluster, table or declaration is not the one the table was filled from.
        DependencyError: Kafka does not answer.
        DamagedTableError: the table's log, or its ledger, is not as it was written.
        TableBusyError: what was to be proven has gone meanwhile.
    """
    make = partial(Classifier, settings=settings, apply=apply_transformation)
    spec = as_of_its_table(spec, StreamPaths.of(spec.name, settings, spec.sink))
    proof = _Proof(spec, settings, DifferenceLog(limit), tell, whole=whole)
    try:
        verdict = proof.verdict(make)
    except TableBusyError:
        raise
    except Exception:
        proof.refuse_overtaken()
        raise
    if verdict.total:
        proof.refuse_overtaken(verdict.difference_count)
    return verdict


class _Proof:
    """One proof, from the snapshot to the verdict."""

    def __init__(
        self,
        spec: StreamSpec,
        settings: Settings,
        differences: DifferenceLog,
        tell: Progress,
        *,
        whole: bool,
    ) -> None:
        self._spec, self._settings, self._tell, self._whole = spec, settings, tell, whole
        self._memory: str | None = None
        self._record_by_record: str | None = None
        self._differences = differences
        self._began = time.monotonic()
        self._damages = set[str]()
        self._paths = StreamPaths.of(spec.name, settings, spec.sink)
        with self._paths.table.translate_read_errors(), translate_read_errors(self._paths.ledger):
            self._snapshot = take_snapshot(spec, self._paths)
        self._batches = self._snapshot.batches
        self._last_seq = self._batches[-1].seq if self._batches else 0
        self._limits: list[str] = []
        self._counts = dict.fromkeys(("records", "batches", "rows", "quarantined"), 0)
        self._routes: Mapping[str, int] | None = None
        self._adopted: AdoptedRows | None = None

    def verdict(self, make_classifier: Callable[..., Classifier]) -> Verdict:
        snapshot = self._snapshot
        self._prove_the_ledger(snapshot)
        self._prove_the_side_tables()
        self._prove_the_routes()
        if snapshot.identity == UNKNOWN:
            self._limits.append("our commits have aged out of the log, so topic ids are not known")
        coverage = determine_coverage(self._spec, self._settings, snapshot)
        obstacles: tuple[str, ...] = ()
        try:
            ledger.refuse_unknown_kinds(self._batches)
            make = partial(make_classifier, epoch=coverage.epoch)
            alterations, columns = _alterations(self._batches), self._paths.table.columns()
            classifiers = Classifiers(self._spec, make, [*alterations], columns)
            self._prove_the_contents(coverage, classifiers)
        except UnprovableError as error:
            obstacles = (str(error),)
        if self._differences.counts:
            self._limits.extend(_other_meanings(self._spec, self._batches))
        return Verdict(
            sink=self._spec.sink.name,
            stream=self._spec.name,
            table=self._paths.table.where,
            delta_version=snapshot.version,
            seq=self._last_seq,
            epoch=coverage.epoch,
            proven=coverage.proven_ranges,
            **self._counts,
            commits=sum(commit.is_ours for commit in snapshot.commits),
            differences=tuple(self._differences.kept),
            difference_count=dict(self._differences.counts),
            limits=(*coverage.limits(), *self._limits),
            obstacles=obstacles,
            routes=self._routes,
            adopted=str(self._adopted) if self._adopted else None,
            memory=self._memory,
            record_by_record=self._record_by_record,
            seconds=round(time.monotonic() - self._began, 3),
        )

    def refuse_overtaken(self, parts: Collection[str] = ("rows",)) -> None:
        """Make sure that what was to be proven, and differs in some parts, is still there.

        Raises:
            TableBusyError: another table is in its place; a rewind, an erase or a person's decision
                has removed some of it since; or, of the rows of a topic, a newer batch, as it keeps
                the newest record of a key alone.
        """
        snapshot, table, stream = self._snapshot, self._paths.table, self._spec.name
        busy = "Next: run the same command again; if it happens again, pause the stream"
        # The verdict reports a damaged log.
        with suppress(DamagedTableError):
            if not (log := table.log()).exists or log.table_id() != snapshot.table_id:
                raise TableBusyError(f"{stream}: {table.where} has been replaced meanwhile. {busy}")
        since = snapshot.version if snapshot.holder else snapshot.commits[-1].version
        mine = (b for b in read_ledger(self._paths.ledger) if b.table_id == snapshot.table_id)
        kinds = [batch.kind for batch in mine if batch.delta_version > since]
        # One that still goes on is in the log alone.
        with suppress(DamagedTableError):
            newest, _ = table.log().since_our_newest(stream)
            if newest and newest.metadata and newest.version > since:
                kinds.append(newest.metadata.kind)
        goes = {"rewind", "erase", "truncate", "accept", "schema"}
        cannot = self._spec.sink.kind.cannot
        if "time travel" in cannot and self._spec.keys and {*parts} <= {"rows"}:
            goes |= {*kinds}
        if kind := next((kind for kind in kinds if kind in goes), None):
            raise TableBusyError(
                f"{stream}: {table.where} has a newer batch ({kind}), which removed what was to be "
                f"proven. {busy}"
            )

    def _prove_the_ledger(self, snapshot: Snapshot) -> None:
        mine, add = snapshot.ledger_of_table, self._differences.add
        altered = (each.altered for each in snapshot.commits if each.altered)
        add(Difference("ledger", f"{each}: restore it from a backup") for each in altered)
        standing = without_undone(mine)
        unknown = snapshot.unknown
        add(ledger.broken_numbers(snapshot.ledger, table_id=snapshot.table_id, unknown=unknown))
        add(ledger.broken_ranges(standing, ledger.begins_in(snapshot.commits)))
        add(ledger.unread_replays(standing))
        add(ledger.broken_books(standing))
        stream, dropped = self._spec.name, snapshot.dropped
        add(ledger.broken_agreement(mine, snapshot.finished, stream, dropped=dropped))
        if dropped:
            self._limits.append(
                f"the log has dropped the commits of seq {written_seqs(b.seq for b in dropped)}, "
                "which no reader needs behind a checkpoint: the ledger stands for them"
            )
        if snapshot.holder is None:
            add(ledger.torn(snapshot.unfinished, stream))
        else:
            by = f"run {snapshot.holder.run_id}"
            self._limits.append(f"{by} is committing right now: proven through the batch before")

    def _prove_the_side_tables(self) -> None:
        """Name what a run would be refused for: the rows do not tell of a delete that is lost."""
        rows = Ledger(self._paths.ledger).rows_of(self._snapshot.table_id)
        known = [row for row in rows if row.seq <= self._last_seq]
        self._sides = read_side_tables(self._paths, known)
        for part, side in self._sides.items():
            # A rewind or an erase that died has perhaps taken rows out.
            problem = side.damage if self._snapshot.unfinished else side.problem
            found = [problem] if problem else damages_of(DeltaLog(side.path))
            problems = [str(each) for each in found]
            self._damages.update(problems)
            self._differences.add(Difference(part, each) for each in problems)

    def _prove_the_routes(self) -> None:
        """Compare what the streams of one file have counted of the same records."""
        if (route := self._spec.route) is None:
            return
        ledgers, topics = {}, self._spec.subscribed
        for stream, _ in route.tables:
            path = StreamPaths.of(stream, self._settings).ledger
            with self._damage_is_different("ledger", translate_read_errors(path)):
                rows = read_ledger(path)
                ledgers[stream] = [row for row in rows if row.table_id == rows[-1].table_id]
        is_whole = len(ledgers) == len(route.tables)
        counts = counts_across(route, ledgers) if is_whole else {}
        self._routes = terms_of(counts) if counts else {}
        may_be_thinned = partial(any, (is_compacted(self._settings, each) for each in topics))
        self._differences.add(broken_equation(counts, may_be_thinned=may_be_thinned))
        if self._spec.leaves_by_route and not self._spec.is_log:
            for stream in ledgers.keys() & {*route.deleting}:
                self._differences.add(self._in_two_tables(stream, ledgers[stream]))

    def _in_two_tables(self, stream: str, batches: Sequence[Batch]) -> Iterator[Difference]:
        """Name the rows that this table has, and a sibling's, too."""
        spec, sink = self._spec, self._spec.sink
        is_own = stream == spec.name or sink.table_of(stream) == sink.table_of(spec.name)
        other = StreamPaths.of(stream, self._settings, sink).table
        if is_own or not other.log().exists:
            return
        theirs = Rows.of(other, batches)
        if not {*spec.keys} <= theirs.names:
            return
        own = Rows.of(self._paths.table, self._batches, version=self._snapshot.version)
        for row in shared_keys(spec.keys, own, theirs):
            key = {name: str(row[name]) for name in spec.keys}
            what = f"is in the table, and in that of {stream}, which has its key, too"
            yield Difference("rows", what, *(row[name] for name in PLACE), key=key)

    def _prove_the_contents(self, coverage: Coverage, classifiers: Classifiers) -> None:
        sweep_scratch(self._settings.state)
        with SpillStore.in_folder(scratch_of_this_process(self._settings.state)) as store:
            context = FoldContext(self._spec, classifiers, store, coverage)
            redrives, path = Redrives(context), self._paths.quarantine
            with self._damage_is_different("quarantine", translate_read_errors(path)):
                self._differences.add(redrives.learn(path))
            try:
                self._prove_at_once(context, redrives)
            except (NotInColumnsError, DamagedTableError) as error:
                # Whatever differs is found again, and explained.
                self._record_by_record = str(error)
                redrives.begin_again()
                self._prove_one_by_one(context, redrives)
                if isinstance(error, NotInColumnsError):
                    self._differences.add(error.differences)
        if not classifiers.is_independent:
            self._limits.append(NOT_INDEPENDENT)

    def _prove_at_once(self, context: FoldContext, redrives: Redrives) -> None:
        """Prove in columns, from where an earlier proof stopped if what it has left is whole."""
        try:
            known = None if self._whole else load_memory(self._paths.proof)
            if known is not None:
                refuse_unfit(known, self._spec, self._snapshot, context.coverage)
            self._prove_in_columns(context, redrives, known)
        except ProofMemoryError as error:
            self._memory = f"begun anew: the earlier proof {error}"
            self._prove_in_columns(context, redrives, None)

    def _prove_in_columns(
        self, context: FoldContext, redrives: Redrives, before: ProofMemory | None
    ) -> None:
        """Prove dispositions, quarantine and rows where all of them are as they should be.

        Raises:
            NotInColumnsError: something differs, or is proven record by record alone.
            DamagedTableError: a table's file is not as it was written.
            ProofMemoryError: what an earlier proof has left is not whole.
        """
        coverage, batches = context.coverage, self._batches
        last = before.seq if before else 0
        total = sum(part.span for each in batches if each.seq > last for part in each.ranges)
        with database_in(scratch_of_this_process(self._settings.state)) as database:
            place = self._paths.proof
            proof = ColumnProof(context, redrives, database, self._settings, place, before)
            with closing(TopicReader(self._settings, partitions=len(coverage.begin))) as topic:
                proof.read(topic, lambda done: self._tell("reading the topic", done, total))
            in_ledger = {batch.seq for batch in self._snapshot.ledger_of_table}
            counts = [pair for pair in proof.count() if pair[0].seq in in_ledger]
            wrong = [each for batch, recount in counts for each in miscounts(batch, recount)]
            names = (*quarantine.COLUMNS, quarantine.MARK)
            marked = rows_through(coverage.last_seq, self._paths.quarantine, names)
            quarantined, bare = quarantine.Seen(marked, through=last), Counter[int]()
            with translate_read_errors(self._paths.quarantine):
                wrong += quarantine.misplaced(quarantined.later(), proof.bad, coverage, bare=bare)
            if wrong or bare or (before and before.quarantine != quarantined.earlier):
                raise NotInColumnsError("counts or quarantine differ")
            rows = self._compare_in_columns(proof)
            redrives.good_today += before.good_today if before else 0
            redrives.unread_today += before.unread if before else 0
            self._limits.extend(redrives.limits(after=last))
            new = {"records": proof.records, "batches": len(counts), "quarantined": len(proof.bad)}
            known = {name: getattr(before, name, 0) for name in new}
            self._counts = {"rows": rows, **{n: new[n] + known[n] for n in new}}
            if before is not None:
                self._memory = f"goes on from {before.about}"
                coverage.is_remembered = True
            if not self._differences.counts and (before is None or self._last_seq > before.seq):
                self._remember(proof, quarantined.all, redrives, coverage)

    def _compare_in_columns(self, proof: ColumnProof) -> int:
        table, told = self._paths.table, partial(self._tell, "comparing the table")
        with table.translate_read_errors():
            size = table.log().row_count() or 0
            rows = table.scan(proof.names, self._snapshot.version)
            return proof.compare(rows, lambda done: told(done, size))

    def _remember(
        self, proof: ColumnProof, quarantined: int, redrives: Redrives, coverage: Coverage
    ) -> None:
        """Leave what the next proof goes on from, where that may be written."""
        ends = {each.topic_partition: each.end for each in coverage.proven_ranges}
        memory = ProofMemory(
            proven_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            table_id=self._snapshot.table_id,
            epoch=coverage.epoch,
            seq=self._last_seq,
            rule=rule_of(self._spec),
            ledger=ledger_digest(self._batches),
            next=tuple((*at, ends.get(at, begin)) for at, begin in sorted(coverage.begin.items())),
            **self._counts,
            quarantine=quarantined,
            good_today=redrives.good_today,
            unread=redrives.unread_today,
            record_types=proof.record_types,
            erased=(),
            files=(),
        )
        try:
            proof.remember(memory)
            later = (each for each in read_ledger(self._paths.ledger) if each.seq > self._last_seq)
            if any(each.kind == "erase" for each in later):
                # Its key may be among what is remembered.
                forget(self._paths.proof)
        except (OSError, DependencyError) as error:
            self._limits.append(f"the next proof begins anew: this one is not kept: {error}")

    def _prove_one_by_one(self, context: FoldContext, redrives: Redrives) -> None:
        coverage = context.coverage
        may_be_thinned = cache(partial(is_compacted, self._settings))
        fold = Fold(context, is_compacted=may_be_thinned, redrives=redrives)
        if coverage.adopted is not None:
            scratch = scratch_of_this_process(self._settings.state)
            table = self._paths.table
            self._adopted = AdoptedRows(self._spec, table, coverage, scratch=scratch)
            with self._damage_is_different("rows", table.translate_read_errors()):
                names = compared_columns(self._spec, fold.rule)
                self._differences.add(self._adopted.seed(fold.rule, names))
        self._prove_the_dispositions(fold, redrives)
        self._differences.add(fold.unfounded_truncates())
        self._counts["quarantined"] = len(fold.bad)
        with self._damage_is_different("quarantine", translate_read_errors(self._paths.quarantine)):
            self._prove_the_quarantine(fold, coverage)
        self._limits.extend((*redrives.limits(), *fold.rule.limits()))
        rows, truncates = fold.rule.rows(), fold.last_truncates
        self._prove_the_rows(RowsProof(self._spec, fold.rule, rows, coverage, truncates=truncates))

    def _prove_the_quarantine(self, fold: Fold, coverage: Coverage) -> None:
        path, bare = self._paths.quarantine, Counter[int]()
        rows = rows_through(coverage.last_seq, path, quarantine.COLUMNS)
        self._differences.add(quarantine.misplaced(rows, fold.bad, coverage, bare=bare))
        if bare:
            self._limits.append(
                f"{counted(bare.total(), 'record in quarantine is', 'records in quarantine are')} "
                "without key and value, which were removed on purpose"
            )

    def _prove_the_dispositions(self, fold: Fold, redrives: Redrives) -> None:
        coverage, batches = redrives.coverage, self._batches
        in_ledger = {batch.seq for batch in self._snapshot.ledger_of_table}
        total = sum(part.span for batch in batches for part in coverage.covered_ranges(batch))
        with closing(TopicReader(self._settings, partitions=len(coverage.begin))) as topic:
            for batch in batches:
                if batch.erased is not None:
                    fold.erase(batch)
                if batch.kind not in FOLDED:
                    continue
                records = redrives.of(batch)
                if batch.kind != "redrive":
                    records = self._counted(topic.read(coverage.covered_ranges(batch)), total)
                if batch.kind == "ingest" and not coverage.is_accepted(batch.seq):
                    records = refuse_another_log(self._spec.name, batch, records)
                recount = fold.batch(batch, records)
                self._differences.add(recount.clashes)
                is_whole = coverage.can_recount(batch) and redrives.can_recount(batch)
                if batch.seq in in_ledger and is_whole:
                    self._differences.add(miscounts(batch, recount))
                    self._counts["batches"] += 1

    def _counted(self, chunks: Iterable[list[Record]], total: int) -> Iterator[list[Record]]:
        for records in chunks:
            yield records
            self._counts["records"] += len(records)
            self._tell("reading the topic", self._counts["records"], total)

    def _prove_the_rows(self, proof: RowsProof) -> None:
        version, table = self._snapshot.version, self._paths.table
        with self._damage_is_different("rows", table.translate_read_errors()):
            done, total = 0, table.log().row_count() or 0
            for rows in rows_in(table.scan(proof.names, version)):
                done += len(rows)
                if self._adopted:
                    rows = self._adopted.take(rows, proof.names)
                self._differences.add(proof.differences(rows))
                self._tell("comparing the table", done, total)
            remembered = partial(tombstones_of, self._paths.tombstones, self._spec, proof.coverage)
            is_readable = self._sides["tombstones"].damage is None
            self._differences.add(proof.missing(remembered if is_readable else tuple))
            if self._adopted:
                self._differences.add(self._adopted.differences(version))
                self._limits.extend(self._adopted.limits)
        self._counts["rows"] = proof.compared
        self._counts["rows"] += self._adopted.compared if self._adopted else 0
        self._limits.extend(proof.limits())

    @contextmanager
    def _damage_is_different(
        self, part: Part, translated: AbstractContextManager[None]
    ) -> Iterator[None]:
        """Count a table whose files are not as they were written as a difference."""
        try:
            with translated:
                yield
        except DamagedTableError as error:
            # What is read twice is damaged once.
            if str(error) not in self._damages:
                self._damages.add(str(error))
                self._differences.add([Difference(part, str(error))])


def _alterations(batches: Iterable[Batch]) -> Iterator[Alteration]:
    """Yield what batches have renamed and dropped; notes of other kinds may repeat it."""
    for batch in batches:
        if batch.kind == "schema" and (done := (batch.declaration or {}).get(ALTERED)):
            yield Alteration(batch.seq, done["renamed"], done["dropped"])


def _other_meanings(spec: StreamSpec, batches: Iterable[Batch]) -> Iterator[str]:
    """Name the batches that the declaration of then has read otherwise: it may explain them."""
    seqs: dict[str, list[int]] = {}
    for batch in (batch for batch in batches if batch.kind in FOLDED):
        # What the table asked of its rows, and whose records were, is compared by that of then.
        by_then = {CONSTRAINTS, "route"}
        asked = {n: what for n, what in (batch.declaration or {}).items() if n in by_then}
        for field, what in meaning_changes(batch.declaration, {**meaning(spec), **asked}):
            seqs.setdefault(f"`{field}` {what}", []).append(batch.seq)
    for change, of_change in seqs.items():
        yield (
            f"another declaration was in force for seq {written_seqs(of_change)}, compared by "
            f"today's: {change}. Next: put it back, or oncelake rebuild {spec.name}"
        )
