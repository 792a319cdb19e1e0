"""Following: one process and one JVM, in which each stream gets a run whenever it is behind.

    what is declared? → how far is each behind? → whose turn is it? → their runs, side by side

Each of them is an ordinary run: bounded, under the stream's own lock, which is held only while it
lasts, with seq, ledger row and report. So a run by hand gets its turn, and whatever ends this
process leaves no more behind than the end of a run does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from oncelake.ingestion.declaration.files.loader import DeclaredStream, StreamFolder, siblings_of
from oncelake.ingestion.errors import (
    DependencyError,
    IngestionError,
    InvalidSpecError,
    StreamLockedError,
    first_exit_code,
)
from oncelake.ingestion.operations.discover import NewTopics
from oncelake.ingestion.operations.follow.together import SharedReading, submit
from oncelake.ingestion.operations.follow.turns import EVERY_SECONDS, JOBS, Turn
from oncelake.ingestion.operations.run import Run
from oncelake.ingestion.operations.status.lag import LagReader
from oncelake.ingestion.operations.telemetry import watching
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.pipeline.spark.session import SharedSpark
from oncelake.ingestion.settings import Settings

# So often Kafka is asked for transactions that hide records; one that seems to hang takes a JVM.
_STALLS_EVERY_SECONDS: Final = 60.0
# Stands for what all streams need: the folder of the declarations, and Kafka.
_SHARED: Final = ""


@dataclass(kw_only=True)
class Follow:
    """Runs streams whenever they are behind, until the time is over or ``stop`` is set.

    Attributes:
        streams: Names of the streams to follow; empty for all that are declared.
        jobs: How many are run at once, at most.
        every_seconds: How often Kafka is asked.
        for_seconds: How long to go on; ``None`` until it is stopped.
        on_report: Called with each run's report, in the thread of that run.
        on_failure: Called with what keeps a stream from being run, once until it is another.
            Without a stream it keeps all of them.
    """

    settings: Settings
    spark: SharedSpark
    run_id: str
    on_report: Callable[[DeclaredStream, RunReport], None]
    on_failure: Callable[[DeclaredStream | None, Exception], None]
    streams: Collection[str] = ()
    jobs: int = JOBS
    every_seconds: float = EVERY_SECONDS
    for_seconds: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    _lags: LagReader = field(init=False)
    _topics: NewTopics = field(init=False)
    _followed: list[DeclaredStream] = field(default_factory=list)
    _turns: dict[str, Turn] = field(default_factory=dict)
    _runs: dict[str, tuple[DeclaredStream, Future[RunReport]]] = field(default_factory=dict)
    _stalls: set[object] = field(default_factory=set)
    _stalled: set[str] = field(default_factory=set)
    _stalls_due: float = 0.0

    def execute(self) -> int:
        """Follow.

        Returns:
            The exit code: the first of the contract's order among what is wrong in the end.

        Raises:
            DependencyError: the JVM died; whoever starts this again gets another one.
        """
        end = time.monotonic() + (self.for_seconds or float("inf"))
        folder = StreamFolder(self.settings.streams)
        self._lags, self._topics = LagReader(self.settings), NewTopics(self.settings)
        pool = ThreadPoolExecutor(self.jobs, thread_name_prefix="follow")
        try:
            with watching(self.settings, lambda: self._followed):
                while not self.stop.is_set() and (left := end - time.monotonic()) > 0:
                    self._play_round(pool, folder)
                    self.stop.wait(min(self.every_seconds, left))
        finally:
            self.stop.set()
            # Each run looks at ``stop``; whoever cannot wait for that interrupts this thread.
            pool.shutdown(cancel_futures=True)
        self._collect_ended()
        return first_exit_code(turn.exit_code for turn in self._turns.values())

    @property
    def unreachable(self) -> tuple[str, ...]:
        """The failure that stops all streams, and what does not answer or refuses the login."""
        turns = self._turns.items()
        return tuple(turn.message for name, turn in turns if turn.is_transient or name == _SHARED)

    @property
    def is_cut_off(self) -> bool:
        """Tell whether a run still works although it was asked to stop."""
        return any(run.running() for _, run in self._runs.values())

    def _play_round(self, pool: ThreadPoolExecutor, folder: StreamFolder) -> None:
        """Begin the runs of all streams whose turn it is; those that waited longest first."""
        self._collect_ended()
        if time.monotonic() < self._turn(_SHARED).not_before:
            return
        try:
            self._topics.look(folder.read())
            declared = [each for each in folder.read() if self._is_followed(each)]
            self._followed = declared
            free = [each for each in declared if each.name not in self._runs]
            lag = self._lags.read([each.spec for each in free if each.spec is not None])
        except IngestionError as error:
            self._fail(None, error)
            return
        self._turns = {each.name: self._turn(each.name) for each in declared}
        self._find_stalls(lag)
        due = [each for each in free if self._is_due(each, lag.get(each.name))]
        for group in siblings_of(sorted(due, key=lambda each: self._turn(each.name).began)):
            for each in group:
                self._turns[each.name] = self._turn(each.name).begun(time.monotonic())
                self._stalled.discard(each.name)
            runs = submit(pool, group, self._run)
            self._runs |= {each.name: (each, runs[each.name]) for each in group}

    def _find_stalls(self, lags: Mapping[str, Mapping[str, int] | None]) -> None:
        """Note which streams without lag a transaction holds back; a run tells of each once."""
        if time.monotonic() < self._stalls_due:
            return
        self._stalls_due = time.monotonic() + _STALLS_EVERY_SECONDS
        with suppress(DependencyError):
            for name, stalls in self._lags.stalls(lags).items():
                places = {(name, stall.at, stall.offset) for stall in stalls}
                if not places <= self._stalls:
                    self._stalls |= places
                    self._stalled.add(name)

    def _is_followed(self, declared: DeclaredStream) -> bool:
        return not self.streams or declared.name in self.streams

    def _is_due(self, declared: DeclaredStream, lags: Mapping[str, int] | None) -> bool:
        if declared.spec is None:
            self._fail(declared, declared.error or InvalidSpecError(str(declared.path)))
            return False
        if declared.name in self._stalled:
            lags = None
        now, lag = time.monotonic(), None if lags is None else sum(lags.values())
        turn = self._turns[declared.name] = self._turn(declared.name).seen(lag, now)
        condition = self._condition(declared)
        return turn.is_due(declared.spec.follow, lag=lag, condition=condition, now=now)

    def _run(self, declared: DeclaredStream, together: SharedReading | None) -> RunReport:
        if self.stop.is_set():
            raise InterruptedError(declared.name)
        assert declared.spec is not None
        report = Run(
            spec=declared.spec,
            settings=self.settings,
            spark=self.spark.of(declared.name),
            run_id=self.run_id,
            stop=self.stop,
            together=together,
        ).execute()
        self.on_report(declared, report)
        return report

    def _collect_ended(self) -> None:
        """Take note of how runs have ended."""
        for name in [name for name, (_, run) in self._runs.items() if run.done()]:
            declared, run = self._runs.pop(name)
            self._lags.forget(name)
            error = None if run.cancelled() else run.exception()
            if error is None and not run.cancelled():
                self._turns[name] = self._turn(name).ended(is_balanced=run.result().is_balanced)
            elif isinstance(error, Exception) and not self.stop.is_set():
                # A stream that is locked is simply not free yet.
                if not isinstance(error, StreamLockedError):
                    self._fail(declared, error)
                if self.spark.has_died:
                    raise error

    def _fail(self, declared: DeclaredStream | None, error: Exception) -> None:
        """Tell what keeps a stream, or all, from being run, unless that was told last."""
        name = declared.name if declared else _SHARED
        before, condition = self._turn(name), declared and self._condition(declared)
        self._turns[name] = before.failed(error, condition, time.monotonic())
        if before.message != str(error):
            self.on_failure(declared, error)

    def _turn(self, name: str) -> Turn:
        return self._turns.get(name, Turn())

    def _condition(self, declared: DeclaredStream) -> object:
        # Another run that is refused, too, changes nothing.
        return declared.spec, self._lags.lake_state(declared.name)[:2]
