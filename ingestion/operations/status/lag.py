"""How far streams are behind, and whether a run is due all the same; no Spark.

All together cost two requests to Kafka, and a third where a stream declares a pattern. Where a
partition has another leader, or the same that was started again, one more makes sure, once, that
its log is still the one that was read. What they cannot tell is left to a run, which says what is
wrong in its own words.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.kafka.admin import Kafka, Topics
from oncelake.ingestion.kafka.offsets import Ends, TopicPartition
from oncelake.ingestion.kafka.transactions import Stall, find_stalls
from oncelake.ingestion.lake.lock import holder_of
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.continuity import compare_moved
from oncelake.ingestion.recovery.position import Position, is_ledger_behind, position_of
from oncelake.ingestion.recovery.snapshot import TableSnapshot, read_snapshot
from oncelake.ingestion.settings import Settings

# Of a stream's table and ledger, what changes with every commit, and when either is replaced; then,
# where the lake is a folder, of who has taken the lock: commits to other sinks show nowhere else.
LakeState = tuple[object, object, object]
# So long a lake in a store, where each look costs money, is taken to be as it was.
_STORE_SECONDS: Final = 60.0


def awaits_run(snapshot: TableSnapshot) -> bool:
    """Tell whether a run is due whatever is unread.

    The first one writes down where the stream begins, before more comes; another one finishes what
    a run left that died behind its commit.
    """
    return snapshot.table is None or snapshot.table.seq is None or is_ledger_behind(snapshot)


class LagReader:
    """Counts what streams have not read; a table is read again only when it has changed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kafka: Kafka | None = None
        self._partitions: tuple[TopicPartition, ...] = ()
        self._known: dict[str, tuple[LakeState, Position | None]] = {}
        self._states: dict[str, tuple[float, LakeState]] = {}
        self._uncut: dict[str, set[tuple[TopicPartition, int]]] = {}

    def lake_state(self, stream: str) -> LakeState:
        """Return what changes whenever somebody commits to a stream's table or ledger.

        Of a lake in a store what others commit shows within a minute; see ``forget``.
        """
        paths, now = StreamPaths.of(stream, self._settings), time.monotonic()
        known = self._states.get(stream)
        if known is None or paths.lake.is_local or now - known[0] > _STORE_SECONDS:
            table, ledger = ((at / "_delta_log").fingerprint() for at in (paths.data, paths.ledger))
            holder = paths.holder.fingerprint() if paths.lake.is_local else None
            known = self._states[stream] = (now, (table, ledger, holder))
        return known[1]

    def forget(self, stream: str) -> None:
        """Forget what was read of a stream's lake: a run of this process has ended."""
        self._states.pop(stream, None)

    def position(self, spec: StreamSpec) -> Position | None:
        """Return where a table stands; ``None`` while a run is due whatever is unread."""
        state = self.lake_state(spec.name)
        known = self._known.get(spec.name)
        if known is None or known[0] != state:
            paths = StreamPaths.of(spec.name, self._settings, spec.sink)
            is_held = holder_of(paths) is not None
            for table in (paths.data, paths.ledger):
                # A listing that is older than the state would stay until the next commit.
                log_files(table).forget()
            snapshot = read_snapshot(paths)
            # A table without a batch changes nothing in the lake when it is opened.
            if awaits_run(snapshot):
                return None
            known = state, position_of(snapshot)
            # Whoever holds the stream may die behind a commit.
            self._known |= {} if is_held else {spec.name: known}
        return known[1]

    def read(self, specs: Sequence[StreamSpec]) -> dict[str, Mapping[str, int] | None]:
        """Count the offsets of each topic that a stream has not read, up to the last stable one.

        ``None`` stands for a stream of which only a run can tell.

        Raises:
            DependencyError: Kafka does not answer.
        """
        if not specs:
            return {}
        kafka, self._kafka = self._kafka or Kafka(self._settings), None
        existing = kafka.names() if any(spec.topic_pattern for spec in specs) else ()
        subscribed = [(spec, tuple(_topics_of(spec, existing))) for spec in specs]
        topics = kafka.known_topics({name for _, names in subscribed for name in names})
        ends = kafka.known_ends(topics.partitions)
        # Kept only now: after a failure the address is looked up again.
        self._kafka, self._partitions = kafka, topics.partitions
        return {spec.name: self._lag(spec, names, topics, ends) for spec, names in subscribed}

    def stalls(self, lags: Mapping[str, Mapping[str, int] | None]) -> dict[str, list[Stall]]:
        """Find what open transactions hold back of streams, by stream, of the lags just read.

        There is no lag, and yet no progress.

        Raises:
            DependencyError: Kafka does not answer.
        """
        quiet = {name: lag for name, lag in lags.items() if lag and not any(lag.values())}
        topics = {topic for lag in quiet.values() for topic in lag}
        if self._kafka is None or not topics:
            return {}
        partitions = [at for at in self._partitions if at.topic in topics]
        found = find_stalls(partitions, self._kafka, self._settings)
        held = {
            name: [each for each in found if each.at.topic in lag] for name, lag in quiet.items()
        }
        return {name: stalls for name, stalls in held.items() if stalls}

    def _lag(
        self, spec: StreamSpec, names: Sequence[str], topics: Topics, ends: Ends
    ) -> dict[str, int] | None:
        try:
            position = self.position(spec)
        except Exception:  # noqa: BLE001 (a run says what is wrong, in its own words)
            return None
        if position is None or not names or not topics.ids.keys() >= {*names}:
            return None
        ids = topics.ids
        is_another = any(position.identity.topic_ids.get(it, ids[it]) != ids[it] for it in names)
        partitions = [at for at in topics.partitions if at.topic in names]
        reached = position.next
        if is_another or any(ends.get(at, -1) < reached.get(at, 0) for at in partitions):
            return None
        lag = {
            name: reached.lag_to({at: ends[at] for at in partitions if at.topic == name})
            for name in names
        }
        return None if not any(lag.values()) and self._is_cut(spec, position, ends) else lag

    def _is_cut(self, spec: StreamSpec, position: Position, ends: Ends) -> bool:
        """Tell whether a log that shows nothing new has lost its end, and grown again as far.

        Of a leader that has been asked about nothing is asked again.
        """
        assert self._kafka is not None, "asked only behind the request for the ends"
        known = self._uncut.setdefault(spec.name, set())
        found = compare_moved(self._kafka, position, ends, known=known)
        if not found.cuts:
            known |= {(at, ends.leader_epochs[at]) for at in position.last if at in ends}
        return bool(found.cuts)


def _topics_of(spec: StreamSpec, existing: Iterable[str]) -> Iterable[str]:
    if spec.topic_pattern is None:
        return spec.subscribed
    return [topic for topic in existing if re.fullmatch(spec.topic_pattern, topic)]
