"""Metrics and lineage of runs, for the systems that a team has already.

Where they go, the standard variables of OpenTelemetry and OpenLineage say. Where none is set,
nothing is imported, measured or sent. A failure of either is logged, once, and fails no run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oncelake.ingestion.errors import LOCKED, REFUSED, UNREACHABLE, USAGE, WRONG, SetupError
from oncelake.ingestion.operations.telemetry.observer import (
    INSTALL,
    Outcome,
    RunObserver,
    guarded,
    wants_otlp,
)

if TYPE_CHECKING:
    from oncelake.ingestion.declaration.files.loader import DeclaredStream
    from oncelake.ingestion.declaration.spec import StreamSpec
    from oncelake.ingestion.lake.ledger import LedgerRow
    from oncelake.ingestion.pipeline.report import RunReport
    from oncelake.ingestion.settings import Settings

_LINEAGE: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
# Whether this process serves its metrics to Prometheus.
_is_serving = False

OnBatch = Callable[["LedgerRow", int], None]


_BY_EXIT_CODE: Final[dict[int, Outcome]] = {
    USAGE: "invalid",
    REFUSED: "refused",
    LOCKED: "locked",
    UNREACHABLE: "unreachable",
}


def wants_lineage() -> bool:
    """Tell whether OpenLineage's client finds a configuration of where events go."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    files = (Path("openlineage.yml"), Path.home() / ".openlineage" / "openlineage.yml")
    return (
        any(map(os.environ.get, _LINEAGE))
        or any(name.startswith("OPENLINEAGE__TRANSPORT") for name in os.environ)
        or any(file.is_file() for file in files)
    )


class ObservedRun:
    """One run and its observers, whose failure is none of the run; ``report`` is what it gave."""

    def __init__(self, observers: Sequence[RunObserver]) -> None:
        self._observers = observers
        self.report: RunReport | None = None

    def notify(self, what: Callable[[RunObserver], None]) -> None:
        """Notify all observers."""
        for observer in self._observers:
            with guarded(type(observer).__module__.rpartition(".")[2]):
                what(observer)

    def batches(self, on_batch: OnBatch) -> OnBatch:
        """Return what to call after each batch, which calls ``on_batch``, too."""
        if not self._observers:
            return on_batch

        def notify_all(row: LedgerRow, lag: int) -> None:
            on_batch(row, lag)
            self.notify(lambda observer: observer.batch(row, lag))

        return notify_all


@contextmanager
def observed(spec: StreamSpec, settings: Settings, stop: threading.Event) -> Iterator[ObservedRun]:
    """Observe a run while the block lasts; ``stop`` is what asks it to end."""
    run = ObservedRun(_observers(spec, settings))
    error: BaseException | None = None
    run.notify(lambda observer: observer.start())
    try:
        yield run
    except BaseException as raised:
        error = raised
        raise
    finally:
        outcome = _outcome(run.report, error, is_stopped=stop.is_set())
        run.notify(lambda observer: observer.end(outcome, run.report, error))


def _outcome(report: RunReport | None, error: BaseException | None, *, is_stopped: bool) -> Outcome:
    if report is not None:
        is_cut_short = is_stopped and report.lag > 0
        return "red" if not report.is_balanced else "interrupted" if is_cut_short else "done"
    # Dagster ends a run, and Python a process, by what is no ``Exception``.
    if is_stopped or not isinstance(error, Exception):
        return "interrupted"
    return _BY_EXIT_CODE.get(getattr(error, "exit_code", WRONG), "failed")


def _observers(spec: StreamSpec, settings: Settings) -> list[RunObserver]:
    observers: list[RunObserver] = []
    if wants_otlp() or _is_serving:
        with guarded("metrics"):
            from oncelake.ingestion.operations.telemetry.metrics import RunMetrics, shared

            observers.append(RunMetrics(shared.get(), spec, settings))
    if wants_lineage():
        with guarded("lineage"):
            from oncelake.ingestion.operations.telemetry.lineage import RunLineage

            observers.append(RunLineage(spec, settings))
    return observers


@contextmanager
def watching(settings: Settings, streams: Callable[[], Sequence[DeclaredStream]]) -> Iterator[None]:
    """Measure streams again and again while the block lasts, whether they are run or refused."""
    if not (wants_otlp() or _is_serving):
        yield
        return
    stop: Callable[[], None] | None = None
    with guarded("metrics"):
        from oncelake.ingestion.operations.telemetry.metrics import watch

        stop = watch(settings, streams)
    try:
        yield
    finally:
        if stop is not None:
            stop()


@contextmanager
def serving(port: int | None, host: str) -> Iterator[None]:
    """Serve metrics to Prometheus while the block lasts, where a port is given.

    Raises:
        SetupError: the packages are not installed, or the port cannot be listened on.
    """
    global _is_serving
    if port is None:
        yield
        return
    try:
        from oncelake.ingestion.operations.telemetry.metrics import serve
    except ModuleNotFoundError as error:
        raise SetupError(f"--metrics-port: {error}. Next: {INSTALL}") from error
    try:
        stop = serve(port, host)
    except OSError as error:
        raise SetupError(
            f"--metrics-port: {host}:{port} cannot be listened on ({error.strerror}). "
            "Next: choose another port, or another --metrics-host"
        ) from error
    _is_serving = True
    try:
        yield
    finally:
        _is_serving = False
        stop()
