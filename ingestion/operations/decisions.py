"""The decisions of a person: accept a loss, adopt another topic, reset, remove a dead lease.

Whoever decides takes the lock first. An acceptance leaves one commit without rows, and its row in
the ledger; a reset deletes nothing, and moves everything away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import (
    ClusterChangedError,
    IdentityChangedError,
    InvalidSpecError,
    OffsetsUnknownError,
    StreamLockedError,
    TopicMissingError,
    TopicRecreatedError,
    counted,
    no_table_yet,
)
from oncelake.ingestion.kafka.admin import Topics
from oncelake.ingestion.kafka.offsets import Offsets, Range
from oncelake.ingestion.lake.archive import Swapped, archive_table, swap_tables
from oncelake.ingestion.lake.ledger import (
    LedgerRow,
    known_paths,
    load_ledger,
    put_rows,
    refuse_newer_table,
    standing_rows,
)
from oncelake.ingestion.lake.lock import held, holder_of
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.recovery.continuity import Cut, compare_logs, without
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.recovery.side_tables import written_off_counts
from oncelake.ingestion.recovery.standing import ALTERED, BESIDE, Standing, heal_stream
from oncelake.ingestion.recovery.start import begin_offsets
from oncelake.ingestion.recovery.topics import refuse_another_topic, resolve_topics
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.storage.lease import Lease, read_lease, release
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import (
    UNKNOWN,
    CommitMetadata,
    CountedRange,
    Identity,
    SideName,
    ranges_at,
)


def accept(spec: StreamSpec, settings: Settings, *, reason: str, run_id: str) -> LedgerRow:
    """Accept what the stream is refused for: lost ranges, red batches, what others have altered.

    The lost ranges are skipped, and stay in the ledger with the reason; a red batch stays red,
    with the reason beside it. A quarantine, or a table of tombstones, that is damaged or short of
    rows moves into the archive.

    Raises:
        InvalidSpecError: there is nothing to accept, or no reason is given.
        RefusedError: the stream is refused for something that cannot be accepted.
    """
    if not reason.strip():
        raise InvalidSpecError(f"{spec.name}: say why, in --reason; it is kept in the ledger")
    with _locked(spec, settings, run_id) as stream:
        standing = heal_stream(stream.spec, stream.paths)
        if (position := standing.position) is None:
            raise InvalidSpecError(f"{spec.name}: there is no table yet, so nothing to accept")
        standing.refuse(*ALTERED, *BESIDE, IdentityChangedError)
        refused = _find_refused(stream, standing, position)
        if not (refused.counts or refused.red):
            raise InvalidSpecError(
                f"{spec.name}: nothing is lost, cut, red, damaged or altered; nothing to accept"
            )
        archive_table(stream.paths, refused.forgotten.values(), why=f"accept: {reason}")
        skipped = tuple(CountedRange(range=lost, records=0, gaps=0) for lost in refused.lost)
        left = ranges_at(Offsets({cut.at: position.next[cut.at] for cut in refused.cuts}))
        ranges = (*skipped, *left)
        made = position.next_metadata(run_id, kind="accept", ranges=ranges, counts=refused.counts)
        return _commit_decision(
            stream,
            replace(
                made,
                reason=reason,
                accepts=tuple(row.seq for row in refused.red),
                last=without(position.last, refused.cuts),
            ),
            position.table_id,
            problems=refused.problems,
            accepted=[replace(row, accepted=reason) for row in refused.red],
        )


def adopt_topic(
    spec: StreamSpec, settings: Settings, *, run_id: str, reason: str = ""
) -> LedgerRow:
    """Begin a new epoch: read the topics that are new from their start, into the same table.

    Rows of the earlier epoch stay, and lose against any record of the new one. So it also helps
    where nothing remembers what was read: whatever the topics still hold is read again.

    Raises:
        InvalidSpecError: there is no table yet, or the topics are those it was filled from.
        RefusedError: the table is not the one that the ledger remembers.
    """
    with _locked(spec, settings, run_id) as stream:
        paths = stream.paths
        standing = heal_stream(stream.spec, paths)
        if (position := standing.position) is None:
            raise no_table_yet(spec.name)
        standing.refuse(OffsetsUnknownError, IdentityChangedError, *BESIDE)
        topics = stream.kafka.topics(stream.name, stream.spec.subscribed)
        cut = _topics_cut(stream, position, topics)
        topic_ids = {**position.identity.topic_ids, **topics.ids}
        identity = replace(position.identity, cluster_id=topics.cluster_id, topic_ids=topic_ids)
        if identity == position.identity and not cut:
            raise InvalidSpecError(
                f"{spec.name}: the topic is the one the table was filled from; nothing to adopt"
            )
        rule = spec.rule if position.identity == UNKNOWN else identity.rule
        kept = _kept_topics(position, identity) - cut
        begin = _begin(position, stream.kafka.earliest(topics.partitions), kept)
        metadata = replace(
            position.next_metadata(run_id, kind="accept"),
            ranges=ranges_at(begin),
            epoch=position.epoch + 1,
            identity=replace(identity, keys=spec.keys, order=spec.sequence_by, rule=rule),
            next=begin,
            last={at: each for at, each in position.last.items() if at.topic in kept},
            reason=f"adopted {', '.join(f'{name} ({id})' for name, id in topics.ids.items())}"
            + (f": {reason}" if reason else ""),
        )
        return _commit_decision(stream, metadata, position.table_id)


def reset(
    stream: str,
    settings: Settings,
    *,
    run_id: str,
    reason: str = "",
    sink: SinkSpec | None = None,
) -> Swapped:
    """Move a stream's tables into the lake's archive, and drop its checkpoints.

    A table outside the lake gets another name where it is; without a ``sink``, because the stream's
    file cannot be read, the ledger tells of it. The reason is kept in the archive. The next run
    makes a new table and begins at ``starting``.

    Raises:
        RefusedError: a topic cannot be given another name.
    """
    paths = known_paths(stream, settings, sink)
    with held(paths, run_id):
        # Tables of a newer version are not moved; its ledger row may be still to come.
        refuse_newer_table(paths)
        load_ledger(paths)
        return swap_tables(paths, why=f"reset: {reason or 'no reason given'}")


def unlock(stream: str, settings: Settings, *, force: bool = False) -> Lease | None:
    """Remove a dead run's lease; a kernel lock needs none of this.

    Args:
        force: A person vouches that a run on another host, which cannot be seen from here, is
            dead. It is not taken for a run on this host, where the truth can be seen.

    Returns:
        The lease that was removed, or ``None`` when the stream was free.

    Raises:
        StreamLockedError: the holder lives, or may live; names it.
    """
    paths = StreamPaths.of(stream, settings)
    if paths.lease is None:
        if holder := holder_of(paths):
            raise StreamLockedError(
                f"{stream}: {holder} is alive; the lock is released when that process ends. "
                "Next: wait for it to end, or end it"
            )
        return None
    lease = read_lease(paths.lease)
    if lease is None:
        return None
    run = f"{stream}: run {lease.run_id} on {lease.host} (since {lease.since})"
    if lease.is_here:
        pids = ", ".join(str(worker.pid) for worker in lease.living())
        raise StreamLockedError(
            f"{run} is alive (pid {pids}) and may commit. Next: wait for it to end, or end it"
        )
    if not force:
        raise StreamLockedError(
            f"{run} cannot be seen from here. Next: wait: if it has ended, its lease does within "
            f"{lease.seconds:g} s; or, when you are certain that it has, oncelake unlock {stream} "
            "--force"
        )
    release(paths.lease)
    return lease


@dataclass(frozen=True, kw_only=True, slots=True)
class _Refused:
    """A refusal that a person may accept.

    Attributes:
        rows: The ledger's rows, by seq, for the counts of what is written off.
        lost: What retention has deleted before it was read.
        cuts: Logs that lost records which were read, and grew again.
        forgotten: Side tables that are damaged or short of rows, by name.
        is_altered: Whether somebody else has changed the rows.
    """

    rows: tuple[LedgerRow, ...]
    lost: tuple[Range, ...]
    cuts: tuple[Cut, ...]
    forgotten: Mapping[SideName, Location]
    is_altered: bool

    @property
    def red(self) -> tuple[LedgerRow, ...]:
        """The batches whose books do not balance."""
        return tuple(row for row in standing_rows(self.rows) if row.is_red)

    @property
    def counts(self) -> dict[str, int]:
        """The counts of an acceptance in the ledger."""
        offsets = sum(map(len, self.lost))
        lost = {"offsets": offsets, "lost": offsets} if self.lost else {}
        cut = {"cut": len(self.cuts)} if self.cuts else {}
        altered = {"altered": 1} if self.is_altered else {}
        return {**lost, **cut, **altered, **written_off_counts(self.forgotten, self.rows)}

    @property
    def problems(self) -> list[str]:
        """Why the books of the acceptance itself do not balance."""
        lost = counted(len(self.lost), "range was lost", "ranges were lost")
        ranges = [lost] if self.lost else []
        return [*ranges, *map(str, self.cuts), *(f"{name} was given up" for name in self.forgotten)]


def _find_refused(stream: Stream, standing: Standing, position: Position) -> _Refused:
    """Find all that can be accepted."""
    lost: tuple[Range, ...] = ()
    cuts: tuple[Cut, ...] = ()
    try:
        lost, cuts = _find_lost(stream, position)
    except (ClusterChangedError, TopicMissingError, TopicRecreatedError):
        # Of what a topic has lost, only the one that was read can tell: a run asks for that next.
        if not standing.findings:
            raise
    return _Refused(
        rows=standing.rows,
        lost=lost,
        cuts=cuts,
        forgotten={name: side.path for name, side in standing.sides.items() if side.problem},
        is_altered=standing.has(*ALTERED),
    )


def _find_lost(stream: Stream, position: Position) -> tuple[tuple[Range, ...], tuple[Cut, ...]]:
    """Find what retention deleted before it was read, and the logs that lost what was read."""
    spec, kafka = stream.spec, stream.kafka
    topics = refuse_another_topic(spec, kafka, position.identity)
    begin, earliest = begin_offsets(position, topics), kafka.earliest(topics.partitions)
    ends = kafka.stable_end(topics.partitions)
    found = compare_logs(kafka, position.last, position.next, ends)
    # A topic that was made again meanwhile has first offsets that mean other records.
    refuse_another_topic(spec, kafka, position.identity)
    # One that is shorter still cannot be read on from where the table stands.
    cuts = tuple(cut for cut in found.cuts if begin[cut.at] <= ends[cut.at])
    return begin.ranges_below(earliest), cuts


def _topics_cut(stream: Stream, position: Position, topics: Topics) -> set[str]:
    """Return the topics that have lost records which were read."""
    kafka, partitions = stream.kafka, topics.partitions
    ends = kafka.stable_end(partitions)
    found = compare_logs(kafka, position.last, position.next, ends)
    shorter = {at.topic for at in partitions if ends[at] < position.next.get(at, 0)}
    return shorter | {cut.at.topic for cut in found.cuts}


def _kept_topics(position: Position, identity: Identity) -> set[str]:
    """Return the topics that are those of before."""
    known = position.identity
    is_same_cluster = known.cluster_id == identity.cluster_id and known != UNKNOWN
    same = known.topic_ids.items() & identity.topic_ids.items() if is_same_cluster else ()
    return {name for name, _ in same}


def _begin(position: Position, earliest: Offsets, kept: Collection[str]) -> Offsets:
    """Read the topics that are new from their start, and go on with the others where they were.

    Those hold the same records as before, which a mode that folds or appends would take twice; also
    one that is not declared now, for the day that it is declared again. A partition that was added
    to one begins at 0, as in any run: what it has lost already is refused by the next.
    """
    begun = {at: offset for at, offset in position.next.items() if at.topic in kept}
    return Offsets({**{at: o for at, o in earliest.items() if at.topic not in kept}, **begun})


@contextmanager
def _locked(spec: StreamSpec, settings: Settings, run_id: str) -> Iterator[Stream]:
    """Hold the stream's lock in this process, with its topics resolved under it."""
    stream = Stream(spec=spec, settings=settings)
    stream.kafka  # noqa: B018 (that no Kafka is configured is found before the lock is taken)
    with held(stream.paths, run_id):
        yield resolve_topics(stream)


def _commit_decision(
    stream: Stream,
    metadata: CommitMetadata,
    table_id: str,
    *,
    problems: Sequence[str] = (),
    accepted: Sequence[LedgerRow] = (),
) -> LedgerRow:
    """Write a decision down: in the table's log, then in the ledger; return its row there.

    Args:
        problems: Why its own books do not balance.
        accepted: Earlier batches, as the ledger shall show them from now on.
    """
    commit = stream.paths.table.commit_note(metadata)
    hit(Failpoint.DECIDED)
    row = LedgerRow.of(commit, table_id, problems=problems)
    put_rows(stream.paths, row, *accepted)
    return row
