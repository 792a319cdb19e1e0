"""``oncelake rebuild``: a new table beside the old, from the topic, by the declaration of today.

It is filled by runs like any other, in a lake of its own, while the old table goes on being read
and written. When it has caught up, it takes the stream's lock, catches up once more, and the tables
change places. Killed anywhere, it goes on where it was. The new one may be in another sink.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from oncelake.ingestion.declaration.gate import quarantining
from oncelake.ingestion.declaration.spec import StreamSpec, fingerprint
from oncelake.ingestion.errors import (
    CommitConflictError,
    DamagedTableError,
    OffsetsExpiredError,
    RefusedError,
    TableReplacedError,
    TableRolledBackError,
    TopicRecreatedError,
    TopicTruncatedError,
    counted,
    no_table_yet,
)
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.archive import Swapped, refuse_kept_name, swap_tables
from oncelake.ingestion.lake.erasure import erasures, unfinished
from oncelake.ingestion.lake.ledger import LoadedLedger, first_offsets, load_ledger
from oncelake.ingestion.lake.lock import Holder, held_by_python
from oncelake.ingestion.lake.paths import StreamPaths, refuse_unable
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.operations.erase.key import refuse_other_keys
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.operations.telemetry import observed
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.recovery.heal import known_rows, unknown_seqs
from oncelake.ingestion.recovery.position import is_elsewhere, position_of
from oncelake.ingestion.recovery.snapshot import TableSnapshot, read_snapshot
from oncelake.ingestion.recovery.standing import end_half_done, is_half_done
from oncelake.ingestion.recovery.topics import refuse_another_topic, resolve_topics
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.catalogs.register import register
from oncelake.ingestion.storage.volumes import translate_disk_errors
from oncelake.ingestion.tables.table import NamedTable

# What a half-made table cannot be read on from.
_UNUSABLE: Final = (
    OffsetsExpiredError,
    TopicRecreatedError,
    TopicTruncatedError,
    DamagedTableError,
    CommitConflictError,
    TableReplacedError,
    TableRolledBackError,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildReport:
    """The result of a rebuild: its last run into the new table, and where the old tables went.

    Nothing is archived when the new table is not in their place.
    """

    stream: str
    report: RunReport
    old: Swapped


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """One rebuild of one stream.

    Attributes:
        run: A run into the table in use, whose like fill the new one; stopped, the next rebuild
            goes on.
        without_lost: Leave out what Kafka no longer holds, instead of refusing.
        reason: Why; kept beside the old tables in the archive.
    """

    run: Run
    without_lost: bool = False
    reason: str = ""

    def execute(self) -> RebuildReport:
        """Fill a new table from the topic, and swap it with the old.

        Returns:
            What was done; when a batch of the new table is red, or it was stopped, the old table
            is where it was.

        Raises:
            InvalidSpecError: there is no table yet.
            OffsetsExpiredError: Kafka no longer holds what the old table was filled from.
            TopicRecreatedError: a topic is not the one that it was filled from.
            RefusedError: a person must decide something else first.
            StreamLockedError: a run, or another rebuild, holds the stream.
        """
        with observed(self.run.spec, self.run.settings, self.run.stop) as observed_run:
            rebuilt = self._execute(Stream(spec=self.run.spec, settings=self.run.settings))
            if rebuilt.old.named and not self.run.stop.is_set():
                notices = register(self.run.spec, self.run.settings)
                rebuilt = replace(rebuilt, report=rebuilt.report.noticing(*notices))
            observed_run.report = rebuilt.report
            return rebuilt

    def _execute(self, stream: Stream) -> RebuildReport:
        paths = stream.paths
        with translate_disk_errors(stream.name, *paths.written):
            if is_half_done(paths):
                with held_by_python(paths, Holder.me(self.run.run_id)):
                    end_half_done(paths)
            stream = resolve_topics(stream)
            snapshot = _read_old(paths)
            spec = self._beginning(stream, snapshot)
            beside, purpose = self._settings_beside(paths), _purpose(spec, snapshot)
            half_made = StreamPaths.of(spec.name, beside, spec.sink)
            self._remove_unless_made_for(purpose, half_made)
            topics = stream.kafka.topics(spec.name, spec.subscribed)
            erased = tuple(_erased_before(spec, snapshot, topics.ids))
            passed = _passed(snapshot, topics.ids)
            run = replace(self.run, spec=spec, settings=beside, inherited=erased, published=passed)
            report = self._fill(run, half_made)
            if not self._is_ready(report):
                return RebuildReport(stream=spec.name, report=report, old=Swapped())
            with held_by_python(paths, Holder.me(self.run.run_id)):
                end_half_done(paths)
                self._refuse_another_purpose(paths, purpose, half_made)
                report = self._fill(run, half_made)
                why = f"rebuild: {self.reason or 'no reason given'}"
                is_ready = self._is_ready(report)
                # A run that takes long may have slept past the lease.
                self._refuse_another_purpose(paths, purpose, half_made)
                old = swap_tables(paths, paths.workshop, why=why) if is_ready else Swapped()
            was = snapshot.paths
            if is_ready and was.sink.name != "delta" and was.table.where != paths.table.where:
                # Its sink keeps it, and it keeps its name there.
                old = replace(old, renamed=was.table.where)
            return RebuildReport(stream=spec.name, report=report, old=old)

    def _fill(self, run: Run, new: StreamPaths) -> RunReport:
        """Read into the new table; where it cannot go on, nobody need decide: it begins anew."""
        try:
            return run.execute_unobserved()
        except _UNUSABLE as error:
            self._remove_unless_made_for("", new)
            raise RefusedError(
                run.spec.name,
                f"the new table could not go on where it was: {error.problem} It was removed.",
                remedy=f"oncelake rebuild {run.spec.name}, which begins anew",
            ) from error

    def _is_ready(self, report: RunReport) -> bool:
        return report.is_balanced and not self.run.stop.is_set()

    def _settings_beside(self, paths: StreamPaths) -> Settings:
        """Return the settings of a lake of its own; Kafka's address lies in the old state."""
        changed: dict[str, Any] = {
            "lake": paths.workshop.path if paths.workshop.is_local else str(paths.workshop),
            "state": self.run.settings.state / "rebuild",
        }
        settings = self.run.settings
        return settings.at_kafka(settings.bootstrap_servers()).model_copy(update=changed)

    def _remove_unless_made_for(self, purpose: str, paths: StreamPaths) -> None:
        """Remove a table that was begun for another purpose, or whose books do not balance.

        Half of it would follow one rule and half another; and what a person accepts is the table
        in use.
        """
        begun = paths.lake / "PURPOSE"
        with held_by_python(paths, Holder.me(self.run.run_id)):
            rows = load_ledger(paths).rows
            if begun.read_if_there() != purpose.encode() or any(row.is_red for row in rows):
                # Whoever finds half of it removed removes the rest.
                begun.put(b"")
                for sink in (paths.sink, *(row.declared_sink for row in rows[-1:])):
                    if isinstance(table := paths.at(sink).table, NamedTable):
                        table.drop()
                refuse_kept_name(paths)
                for place in (paths.tombstones, paths.quarantine, paths.data, paths.ledger):
                    place.delete_all()
                shutil.rmtree(paths.checkpoints, ignore_errors=True)
                begun.put(purpose.encode())

    def _refuse_another_purpose(self, paths: StreamPaths, purpose: str, new: StreamPaths) -> None:
        """Make sure that the table in use is still the one whose records the new one holds.

        A new one is removed that may hold what has been erased meanwhile.
        """
        spec = self.run.spec
        if (new.lake / "PURPOSE").read_if_there() != purpose.encode():
            raise RefusedError(
                spec.name,
                "another rebuild has begun a new table meanwhile. Nothing was changed.",
                remedy=f"wait for it to end, or oncelake rebuild {spec.name}",
            )
        if _purpose(spec, _read_old(paths)) != purpose:
            self._remove_unless_made_for("", new)
            raise RefusedError(
                spec.name,
                "its table was replaced, or a key of it erased, while the new one was made. "
                "Nothing was changed.",
                remedy=f"oncelake rebuild {spec.name}, which begins anew",
            )

    def _beginning(self, stream: Stream, snapshot: TableSnapshot) -> StreamSpec:
        """Let the new table begin where the old one did, as far as anything remembers."""
        spec, kafka = stream.spec, stream.kafka
        position = position_of(snapshot, RefusedError)
        if position is None:
            raise no_table_yet(spec.name)
        if not self.without_lost:
            refuse_another_topic(spec, kafka, position.identity)
            if position.epoch > 1:
                raise _lost(
                    spec.name,
                    "the table holds what was read before its topic was adopted anew (epoch "
                    f"{position.epoch}), from topics that are gone",
                )
            for row in known_rows(snapshot)[:1]:
                if row.adopted is not None:
                    rows = counted(row.adopted["rows"], "row was", "rows were")
                    raise _lost(spec.name, f"{rows} adopted with the table, of no record")
        topics, begun = kafka.topics(spec.name, spec.subscribed), {}
        # What a batch has read of which nothing tells any more, is read from the start.
        if not unknown_seqs(snapshot):
            same = position.identity.topic_ids.items() & topics.ids.items()
            begun = {at: o for at, o in position.next.items() if at.topic in dict(same)}
            begun |= first_offsets(known_rows(snapshot), topics.ids)
        begin = Offsets({at: begun.get(at, 0) for at in topics.partitions})
        earliest = kafka.earliest(topics.partitions)
        lost = begin.ranges_below(earliest)
        if lost and not self.without_lost:
            raise _lost(
                spec.name,
                f"Kafka no longer holds {', '.join(map(str, lost))}, which the table was filled "
                "from",
            )
        offsets: dict[str, dict[int, int]] = {}
        for at, offset in begin.items():
            offsets.setdefault(at.topic, {})[at.partition] = max(offset, earliest[at])
        declared = spec.model_dump(by_alias=True, exclude_unset=True)
        return StreamSpec.model_validate({**declared, "starting": {"offsets": offsets}})


def _read_old(paths: StreamPaths) -> TableSnapshot:
    """Read the table whose place the new one takes, where the ledger says that it is.

    Raises:
        RefusedError: the sink of today cannot rebuild its own table, or has one of somebody else's.
    """
    ledger = load_ledger(paths)
    here = read_snapshot(paths, ledger)
    table_id = here.table.table_id if here.table else None
    if not is_elsewhere(paths, ledger.rows, table_id):
        refuse_unable(paths, "rebuild")
        return here
    alone = replace(here, ledger=LoadedLedger())
    position_of(alone, RefusedError)
    return read_snapshot(paths.at(ledger.rows[-1].declared_sink), ledger)


def _purpose(spec: StreamSpec, snapshot: TableSnapshot) -> str:
    """Say by which declaration, in place of what, and behind which erasures a new table is made."""
    table = snapshot.table.table_id if snapshot.table else "no table"
    known = erasures(known_rows(snapshot))
    erased = [erasure.seq for erasure in known if not erasure.is_truncate]
    rules = "".join(f" with {name}: {rule}" for name, rule in quarantining(spec.expect).items())
    return f"{fingerprint(spec)} in {spec.sink} for {table} without what {erased} erased{rules}"


def _passed(snapshot: TableSnapshot, topic_ids: Mapping[str, str]) -> Offsets:
    """Return how far the table in use has read topics that are still those of now."""
    position = position_of(snapshot, RefusedError)
    if position is None:
        return Offsets()
    same = dict(position.identity.topic_ids.items() & topic_ids.items())
    return Offsets({at: offset for at, offset in position.next.items() if at.topic in same})


def _erased_before(
    spec: StreamSpec, snapshot: TableSnapshot, topic_ids: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    """Yield what was erased of topics that are still those of now, for the new table to leave out.

    Raises:
        RefusedError: the declaration of now would make other keys of the same records, so that an
            erased one would not be recognised; or an erase has not come to its end.
    """
    rows = known_rows(snapshot)
    for begun in unfinished(rows):
        raise RefusedError(
            spec.name,
            f"the erase of batch {begun.seq} was cut short.",
            remedy="the same oncelake erase again",
        )
    for row, erased in ((row, row.erased) for row in rows if row.erased is not None):
        if row.kind == "truncate":
            continue  # The new table meets it again, behind what it was before.
        until = Offsets.from_json(erased["until"])
        topics = topic_ids.items() & row.identity.topic_ids.items()
        of_now = {at: offset for at, offset in until.items() if at.topic in dict(topics)}
        if of_now:
            refuse_other_keys(spec, row)
            yield {"at": row.committed_at.isoformat(), **erased, "until": Offsets(of_now).to_json()}


def _lost(stream: str, problem: str) -> OffsetsExpiredError:
    return OffsetsExpiredError(
        stream,
        f"{problem}: a new one would lack it.",
        remedy=f"oncelake rebuild {stream} --without-lost, if that is acceptable; the old tables "
        "stay in the archive",
    )
