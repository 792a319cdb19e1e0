"""Where a stream stands, gathered without Spark: its file, its table, its lock, and Kafka.

Each part is asked for by itself, so that one that cannot be known leaves the others standing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.modes import COORDINATES
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.integrity import translate_read_errors
from oncelake.ingestion.errors import (
    DONE,
    WRONG,
    DamagedTableError,
    DependencyError,
    counted,
    first_exit_code,
)
from oncelake.ingestion.kafka.client import code_of
from oncelake.ingestion.kafka.transactions import Stall, find_stalls
from oncelake.ingestion.lake.ledger import known_paths, load_ledger, standing_rows
from oncelake.ingestion.lake.lock import Holder, holder_of
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.quarantine import count_waiting
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.operations.failure import Failure
from oncelake.ingestion.operations.upkeep.retention import Retention, retention_now, retention_of
from oncelake.ingestion.pipeline.report import absent_columns
from oncelake.ingestion.recovery.continuity import unproven_logs
from oncelake.ingestion.recovery.position import Position, is_ledger_behind
from oncelake.ingestion.recovery.schema_diff import allowed_changes
from oncelake.ingestion.recovery.side_tables import quarantined
from oncelake.ingestion.recovery.snapshot import TableSnapshot
from oncelake.ingestion.recovery.standing import NOT_PLACED, read_standing
from oncelake.ingestion.recovery.start import begin_offsets, offsets_to_read, starting_offsets
from oncelake.ingestion.recovery.topics import (
    as_of_table,
    changed_identity,
    refuse_another_topic,
    resolve_topics,
)
from oncelake.ingestion.recovery.withheld import waiting_at, withheld_error
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.catalogs.register import registration_notices
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.volumes import refuse_read_only_volumes, translate_disk_errors
from oncelake.ingestion.tables.commit_log import CommitLog
from oncelake.ingestion.tables.table import MarkableTable, SinkTable

_MOST_SECONDS = 10.0
_NEWEST_BATCHES = 50
# From so many copied rows for each changed one on a person is told.
_COPIES_A_CHANGE = 20


@dataclass(kw_only=True)
class StreamStatus:
    """Where one stream stands; ``None`` is what is not there, or could not be known.

    Attributes:
        committed_at: When the ledger's newest batch was.
        red: Seqs of batches that do not balance and that nobody has accepted.
        unknown: Seqs of batches of which nothing tells any more.
        waiting: Records in quarantine that no redrive has sent in.
        lag: Offsets that the table has not reached, up to Kafka's last stable ones.
        retention: When Kafka may delete what the table has not reached; before the first run it
            holds nothing that was promised.
        notices: Columns that the newest batch had no value of.
        withheld_since: Since when a batch waits at the gate, if one does.
        is_sensed: Whether Dagster's sensor is to start its runs.
        run_ids: The runs that wrote its newest batches.
        idle: What starts no runs of it in Dagster, and what to do; filled in by who asks Dagster.
        problems: Why a run would not go through, and what could not be found out.
    """

    stream: str
    table: str
    exists: bool = False
    delta_version: int | None = None
    row_count: int | None = None
    position: Position | None = None
    committed_at: dt.datetime | None = None
    red: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    holder: Holder | None = None
    waiting: int | None = None
    lag: int | None = None
    stalls: tuple[Stall, ...] = ()
    retention: Retention | None = None
    problems: tuple[Failure, ...] = ()
    notices: tuple[str, ...] = ()
    withheld_since: dt.datetime | None = None
    is_sensed: bool = False
    run_ids: tuple[str, ...] = ()
    idle: str | None = None

    def add(self, problem: Exception) -> None:
        """Take one more problem; whoever looks every few seconds wants no file for each."""
        failure = Failure.of(problem, stream=self.stream, debug=True)
        self.problems += (failure,) if failure not in self.problems else ()

    @property
    def exit_code(self) -> int:
        """The code that tells what a run would meet; a stream that is being run is in order.

        One that a run would not be refused is wrong all the same when records may be lost soon.
        """
        is_low = self.retention is not None and self.retention.is_low
        code = first_exit_code(problem.exit_code for problem in self.problems)
        return code or (WRONG if is_low else DONE)


class StatusReader:
    """Finds out where streams stand; asks a Kafka that does not answer only once."""

    def __init__(self, settings: Settings) -> None:
        seconds = min(settings.kafka_timeout_seconds, _MOST_SECONDS)
        self._settings = settings.model_copy(update={"kafka_timeout_seconds": seconds})
        self._silence: DependencyError | None = None

    def read_status(self, declared: DeclaredStream) -> StreamStatus:
        """Find out where a stream stands; what cannot be found out is one of its problems."""
        try:
            paths = known_paths(declared.name, self._settings, declared.sink)
        except Exception as error:  # noqa: BLE001 (other streams can be known)
            status = StreamStatus(stream=declared.name, table=str(self._settings.lake))
            status.add(error)
            return status
        status = StreamStatus(stream=declared.name, table=paths.table.where)
        if declared.error is not None:
            status.add(declared.error)
        steps = [partial(_read_table, status, paths)]
        if declared.spec is not None:
            status.is_sensed = declared.spec.is_sensed
            steps.append(partial(_compare_declaration, status, declared.spec, paths))
            steps.append(partial(_look_at_gate, status, declared.spec, paths))
            steps.append(partial(self._ask_kafka, status, declared.spec))
        steps.append(partial(_find_holder, status, paths))
        steps.append(partial(_look_at_registration, status, paths))
        steps.append(partial(refuse_read_only_volumes, *paths.written))
        for step in steps:
            try:
                with translate_disk_errors(declared.name, *paths.written):
                    step()
            except Exception as error:  # noqa: BLE001 (the rest, and other streams, can be known)
                status.add(error)
        return status

    def _ask_kafka(self, status: StreamStatus, spec: StreamSpec) -> None:
        if self._silence is not None:
            raise self._silence
        try:
            _compare_topics(status, resolve_topics(Stream(spec=spec, settings=self._settings)))
        except DependencyError as error:
            # A broker that refuses one topic answers, and may tell of the others.
            if code_of(error.__cause__) < 0:
                self._silence = error
            raise


def _compare_topics(status: StreamStatus, stream: Stream) -> None:
    spec, kafka, at = stream.spec, stream.kafka, status.position
    partitions = kafka.topics(spec.name, spec.subscribed).partitions
    status.stalls = find_stalls(partitions, kafka, stream.settings)
    if at is not None:
        topics = refuse_another_topic(spec, kafka, at.identity)
        status.lag = at.next.lag_to(kafka.stable_end(topics.partitions))
        status.retention = retention_of(stream, begin_offsets(at, topics))
        _, _, unproven = offsets_to_read(stream, at, topics)
        status.notices += (unproven_logs(unproven),) if unproven else ()
    elif status.problems:
        # The table is not as it was left: how far it has read, a person decides.
        status.retention = retention_now(spec, stream.settings)
    else:
        begin = starting_offsets(spec, kafka, partitions)
        status.lag = begin.lag_to(kafka.stable_end(partitions))


def _compare_declaration(status: StreamStatus, spec: StreamSpec, paths: StreamPaths) -> None:
    if status.position is not None and (
        finding := changed_identity(spec, status.position.identity)
    ):
        raise finding
    if status.position is not None or (status.exists and not status.problems):
        spec = as_of_table(spec, status.position, paths)
        allowed_changes(spec, paths, is_ours=status.position is not None)


def _look_at_gate(status: StreamStatus, spec: StreamSpec, paths: StreamPaths) -> None:
    if spec.publish.is_checked and (batch := waiting_at(status.position, paths)):
        status.withheld_since = dt.datetime.fromisoformat(batch.since)
        raise withheld_error(spec, batch)


def _find_holder(status: StreamStatus, paths: StreamPaths) -> None:
    status.holder = holder_of(paths)


def _look_at_registration(status: StreamStatus, paths: StreamPaths) -> None:
    status.notices += registration_notices(paths)


def _read_table(status: StreamStatus, paths: StreamPaths) -> None:
    log, ledger = paths.table.log(), load_ledger(paths)
    status.exists = log.exists
    status.run_ids = tuple({row.run_id: None for row in ledger.rows[-_NEWEST_BATCHES:]})
    status.committed_at = max((row.committed_at for row in ledger.rows), default=None)
    status.red = tuple(row.seq for row in standing_rows(ledger.rows) if row.is_red)
    try:
        standing = read_standing(paths, ledger)
    finally:
        if status.exists:
            status.delta_version, status.row_count = _size(paths.table, log)
    for finding in standing.findings:
        status.add(finding)
    # How far a table has read that somebody changed, or that nothing remembers, a person decides.
    if standing.position is None or standing.has(*NOT_PLACED):
        return
    status.position, status.unknown = standing.position, standing.unknown
    read = [row for row in standing.snapshot.rows if row.kind == "ingest"]
    status.notices = (*absent_columns(read[-1:]), *costly_merges(paths, log))
    if standing.sides["quarantine"].damage is None:
        status.waiting = _count_waiting(standing.snapshot)


def costly_merges(paths: StreamPaths, log: CommitLog) -> Iterator[str]:
    """Say that merges copy many more rows than they change."""
    copied = changed = 0
    if isinstance(paths.table, MarkableTable):
        copied, changed = paths.table.rewritten(log)
    if copied > _COPIES_A_CHANGE * changed > 0:
        yield (
            f"its newest batches copied {counted(copied, 'row')} to change {changed:,}: with "
            f"`deletion_vectors: true` in its file they would be marked instead, where "
            "every reader of the table heeds that (docs/maintain.md)"
        )


def _size(table: SinkTable, log: CommitLog) -> tuple[int | None, int | None]:
    """Return version and rows of a table, as far as a damaged one lets them be read."""
    try:
        with table.translate_read_errors():
            return max(log.versions(), default=None), log.row_count()
    except DamagedTableError:
        return None, None


def _count_waiting(snapshot: TableSnapshot) -> int:
    """Count what waits in quarantine, also of a commit whose run died before it was projected."""
    quarantine = snapshot.paths.quarantine
    if not is_ledger_behind(snapshot):
        return count_waiting(quarantine)
    with translate_read_errors(quarantine):
        rows = quarantined(snapshot, (*COORDINATES, "_seq", "redriven_seq", "removed"))
        return sum(row["redriven_seq"] is None and row["removed"] is None for row in rows)


def known_waiting(quarantine: Location) -> int | None:
    """Count what waits in quarantine, or return ``None`` where that cannot be read.

    For those who have something to report all the same: the next run says what is damaged.
    """
    try:
        return count_waiting(quarantine)
    except Exception:  # noqa: BLE001 (unknown is an answer here)
        return None
