"""Where a stream stands, gathered without Spark: its file, its table, its lock, and Kafka.

Each part is asked for by itself, so that one that cannot be known leaves the others standing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.compute as pc

from ingestion.declaration.loader import DeclaredStream
from ingestion.declaration.spec import StreamSpec
from ingestion.errors import (
    DamagedTableError,
    DependencyError,
    IngestionError,
    first_exit_code,
)
from ingestion.kafka.admin import Kafka
from ingestion.kafka.transactions import Stall, find_stalls
from ingestion.lake.damage import translate_read_errors
from ingestion.lake.ledger import load_ledger
from ingestion.lake.lock import Holder, holder_of
from ingestion.lake.paths import StreamPaths
from ingestion.lake.side_tables import count_rows
from ingestion.lake.stream import Stream
from ingestion.lake.table_log import TableLog
from ingestion.operations.failure import Failure
from ingestion.recovery.position import Position, position_of, refuse_red
from ingestion.recovery.side_tables import (
    read_side_tables,
    refuse_damaged_side_tables,
    refuse_incomplete_side_tables,
)
from ingestion.recovery.snapshot import read_snapshot
from ingestion.recovery.start import offsets_to_read, starting_offsets
from ingestion.recovery.topics import refuse_another_topic, resolve_topics
from ingestion.settings import Settings

_MOST_SECONDS = 10.0


@dataclass(kw_only=True)
class StreamStatus:
    """Where one stream stands; ``None`` is what is not there, or could not be known.

    Attributes:
        table: Folder of its table.
        exists: Whether that holds a Delta table.
        delta_version: The table's newest version.
        row_count: Rows in the table.
        position: What the table says of seq, epoch and offsets.
        red: Seqs of batches that do not balance and that nobody has accepted.
        holder: The run that holds the stream now.
        waiting: Records in quarantine that no redrive has sent in.
        lag: Offsets that the table has not reached, up to Kafka's last stable ones.
        stalls: Partitions that an open transaction has held back for long.
        problems: Why a run would not go through, in the order in which it would find out.
    """

    stream: str
    table: str
    exists: bool = False
    delta_version: int | None = None
    row_count: int | None = None
    position: Position | None = None
    red: tuple[int, ...] = ()
    holder: Holder | None = None
    waiting: int | None = None
    lag: int | None = None
    stalls: tuple[Stall, ...] = ()
    problems: tuple[Failure, ...] = ()

    @property
    def exit_code(self) -> int:
        """The code that tells what a run would meet; a stream that is being run is in order."""
        return first_exit_code(problem.exit_code for problem in self.problems)


class StatusReader:
    """Finds out where streams stand; asks a Kafka that does not answer only once."""

    def __init__(self, settings: Settings) -> None:
        seconds = min(settings.kafka_timeout_seconds, _MOST_SECONDS)
        self._settings = settings.model_copy(update={"kafka_timeout_seconds": seconds})
        self._silence: DependencyError | None = None

    def read_status(self, declared: DeclaredStream) -> StreamStatus:
        """Find out where a stream stands."""
        paths = StreamPaths.of(declared.name, self._settings)
        found = StreamStatus(stream=declared.name, table=str(paths.data), holder=holder_of(paths))
        if declared.error is not None:
            self._note(found, declared.error)
        self._try(found, lambda: _read_table(found, paths))
        if declared.spec is not None:
            spec = declared.spec
            self._try(found, lambda: self._ask_kafka(found, spec))
        return found

    def _ask_kafka(self, found: StreamStatus, spec: StreamSpec) -> None:
        if self._silence is not None:
            raise self._silence
        try:
            stream = resolve_topics(Stream(spec=spec, settings=self._settings))
            spec, kafka = stream.spec, stream.kafka
            partitions = kafka.topics(spec.name, spec.subscribed).partitions
            found.stalls = find_stalls(partitions, kafka, self._settings)
            _compare_with_kafka(found, spec, kafka)
        except DependencyError as error:
            self._silence = error
            raise

    def _try(self, found: StreamStatus, step: Callable[[], None]) -> None:
        try:
            step()
        except IngestionError as error:
            self._note(found, error)

    @staticmethod
    def _note(found: StreamStatus, error: IngestionError) -> None:
        found.problems = (*found.problems, Failure.of(error, stream=found.stream))


def _read_table(found: StreamStatus, paths: StreamPaths) -> None:
    log, ledger = TableLog(paths.data), load_ledger(paths)
    found.exists = log.exists
    found.red = tuple(row.seq for row in ledger.rows if row.is_red)
    try:
        found.position = position_of(read_snapshot(paths, ledger))
    finally:
        if found.exists:
            found.delta_version, found.row_count = _size(log)
    if found.position is not None:
        rows = ledger.rows_of(found.position.table_id)
        sides = read_side_tables(paths, rows)
        refuse_damaged_side_tables(sides)
        found.waiting = _waiting(paths, found.position.seq)
        refuse_red(found.stream, rows)
        refuse_incomplete_side_tables(found.stream, sides)


def _size(log: TableLog) -> tuple[int | None, int | None]:
    """Return version and rows of a table, as far as they can be told of a damaged one."""
    try:
        with translate_read_errors(log.path):
            return max(log.versions(), default=None), log.row_count()
    except DamagedTableError:
        return None, None


def _waiting(paths: StreamPaths, last: int) -> int:
    """Count what waits in quarantine; what lies beyond the table's last batch did not happen."""
    if not TableLog(paths.quarantine).exists:
        return 0
    is_marked = pc.field("redriven_seq") <= last
    is_waiting = ~pc.coalesce(is_marked, pc.scalar(False)) & (pc.field("_seq") <= last)
    return count_rows(paths.quarantine, is_waiting)


def _compare_with_kafka(found: StreamStatus, spec: StreamSpec, kafka: Kafka) -> None:
    at = found.position
    if at is None:
        partitions = kafka.topics(spec.name, spec.subscribed).partitions
        begin = starting_offsets(spec, kafka, partitions)
        found.lag = begin.lag_to(kafka.stable_end(partitions))
        return
    topics = refuse_another_topic(spec, kafka, at.identity)
    found.lag = at.next.lag_to(kafka.stable_end(topics.partitions))
    offsets_to_read(spec, at, kafka, topics)
