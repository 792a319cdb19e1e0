"""Streams of one file that run together: one query reads Kafka, and each commits by itself.

What must stay true: each run is the run it would be alone, with its own lock, start, books and
report, and stands where its own table stands. Only the reading is shared. It begins at the lowest
next offset, and what a table holds already is its overlap. A run that fails ends alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.modes.engines.frame_cache import FrameCache
from oncelake.ingestion.modes.engines.rows import Records

_LOOK_EVERY_SECONDS = 0.1
Result = TypeVar("Result")
# Writes the records of some ranges.
Write = Callable[[Records, Sequence[Range]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The reading of one run.

    Attributes:
        starting: Its next offset of every partition.
        lag: How many offsets there are to read.
        query: Runs a query from some offsets on, with a lag, and writes each batch.
        write: Writes a batch of this run.
        stop: Set to end the run at once.
    """

    starting: Offsets
    lag: int
    query: Callable[[Offsets, int, Write], None]
    write: Write
    stop: threading.Event

    def execute(self) -> None:
        """Read alone."""
        self.query(self.starting, self.lag, self.write)


class SharedReading:
    """The reading of several streams, in whose threads their runs wait for one another."""

    def __init__(self, streams: Iterable[str]) -> None:
        self._awaited = {*streams}
        self._readings: dict[str, Reading] = {}
        self._ended: dict[str, Exception | None] = {}
        self._changed = threading.Condition()
        self._is_over = threading.Event()

    def leave(self, stream: str) -> None:
        """Say that a run has ended, so that nobody waits for it."""
        with self._changed:
            self._awaited.discard(stream)
            self._changed.notify_all()

    def execute(self, stream: str, reading: Reading) -> None:
        """Read with all others that read now, or alone where they have begun.

        Raises:
            Exception: whatever ended this run's part, and no other's.
        """
        with self._changed:
            is_late = stream not in self._awaited
            if not is_late:
                self._join(stream, reading)
            # Nobody else begins the query, and nobody joins it any more, unless all are to stop.
            readings = dict(self._readings)
        if is_late:
            reading.execute()
            return
        if stream == next(iter(readings)):
            self._lead(reading, readings)
        # Also when it is to stop: until the query has ended it may be writing for this run.
        self._is_over.wait()
        if failure := self._ended.get(stream):
            raise failure

    def _join(self, stream: str, reading: Reading) -> None:
        """Wait until each of the others has joined, too, or has ended."""
        self._readings[stream] = reading
        self._awaited.discard(stream)
        self._changed.notify_all()
        while self._awaited and not reading.stop.is_set():
            self._changed.wait(_LOOK_EVERY_SECONDS)

    def _lead(self, leader: Reading, readings: Mapping[str, Reading]) -> None:
        """Run the query for all, in the session of the leader."""
        starting = _lowest(each.starting for each in readings.values())
        lag = max(each.lag for each in readings.values())
        try:
            leader.query(starting, lag, partial(self._write, readings))
        except _NobodyLeftError:
            pass
        except Exception as error:  # noqa: BLE001 (each run raises it in its own thread)
            self._ended = {**dict.fromkeys(readings, error), **self._ended}
        finally:
            self._is_over.set()

    def _write(
        self, readings: Mapping[str, Reading], records: Records, planned: Sequence[Range]
    ) -> None:
        """Hand one copy of a batch to each run that has not ended."""
        with closing(FrameCache()) as frames:
            copy = frames.keep_bytes(records) if len(readings) > 1 else records
            for stream in [each for each in readings if each not in self._ended]:
                try:
                    readings[stream].write(copy, planned)
                except Exception as error:  # noqa: BLE001 (its own thread raises it)
                    self._ended[stream] = error
        if self._ended.keys() >= readings.keys():
            raise _NobodyLeftError


class _NobodyLeftError(Exception):
    """Ends the query once every run of it has ended."""


def _lowest(starting: Iterable[Offsets]) -> Offsets:
    lowest: dict[TopicPartition, int] = {}
    for offsets in starting:
        lowest |= {at: min(offset, lowest.get(at, offset)) for at, offset in offsets.items()}
    return Offsets(lowest)


def submit(
    pool: Executor,
    group: Sequence[DeclaredStream],
    run: Callable[[DeclaredStream, SharedReading | None], Result],
) -> dict[str, Future[Result]]:
    """Begin the runs of siblings as one job of a pool, each in a thread; return each by name."""
    if len(group) == 1:
        return {group[0].name: pool.submit(run, group[0], None)}
    runs: dict[str, Future[Result]] = {each.name: Future() for each in group}
    together = SharedReading(runs)

    def run_one(stream: DeclaredStream) -> None:
        runs[stream.name].set_running_or_notify_cancel()
        try:
            runs[stream.name].set_result(run(stream, together))
        except BaseException as error:  # noqa: BLE001 (whoever asks for the result raises it)
            runs[stream.name].set_exception(error)
        finally:
            together.leave(stream.name)

    def run_all() -> None:
        with ThreadPoolExecutor(len(group)) as threads:
            list(threads.map(run_one, group))

    pool.submit(run_all)
    return runs
