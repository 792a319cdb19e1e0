"""Metrics of runs and streams, by OpenTelemetry: pushed over OTLP, or served to Prometheus.

What runs do is counted as it happens. Where streams stand is measured as ``oncelake status`` does:
at the end of each run, or, while streams are followed, every half minute. Ages are told as
of the moment of their export.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, start_http_server

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.lake.books import DISPOSITIONS
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.operations.status.status import StatusReader, StreamStatus
from oncelake.ingestion.operations.telemetry.observer import Outcome, guarded, wants_otlp
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.settings import Settings

WATCH_SECONDS: Final = 30.0
# What is older says nothing of now: then no value is exported, which an alert can notice.
_STALE_SECONDS: Final = 300.0
# How long a measurement that is under way may keep following from its end.
_END_SECONDS: Final = 1.0
_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.sdk.metrics._internal.export",
)


class Metrics:
    """The instruments of a process, each by stream."""

    def __init__(self, readers: Sequence[MetricReader]) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME") or "oncelake"
        self.provider = MeterProvider(readers, Resource.create({"service.name": name}))
        self.is_watched = False
        self._statuses: dict[str, tuple[StreamStatus, dt.datetime]] = {}
        meter = self.provider.get_meter("oncelake")
        self.offsets = meter.create_counter(
            "oncelake.offsets", "{offset}", "Offsets in the ranges of committed batches"
        )
        self.records = meter.create_counter(
            "oncelake.records", "{record}", "Records read, by what became of them"
        )
        self.batches = meter.create_counter(
            "oncelake.batches", "{batch}", "Batches committed, by their verdict"
        )
        self.runs = meter.create_counter("oncelake.runs", "{run}", "Runs, by their outcome")
        self.batch_duration = meter.create_histogram(
            "oncelake.batch.duration",
            "s",
            "From one commit, or the run's begin, to the next",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.run_duration = meter.create_histogram(
            "oncelake.run.duration",
            "s",
            "How long runs took, by outcome",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        for gauge, unit, says, value in _GAUGES:
            meter.create_observable_gauge(gauge, [self._callback(value)], unit, says)

    def record(self, status: StreamStatus) -> None:
        """Take note of where a stream stands now."""
        self._statuses[status.stream] = status, dt.datetime.now(dt.UTC)

    def keep_only(self, streams: Collection[str]) -> None:
        """Forget where other streams stood, which are declared no longer."""
        self._statuses = {
            stream: status for stream, status in self._statuses.items() if stream in streams
        }

    def _callback(self, value: _Value) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            now = dt.datetime.now(dt.UTC)
            for stream, (status, measured_at) in sorted(self._statuses.items()):
                since = (now - measured_at).total_seconds()
                number = value(status, now, since) if since < _STALE_SECONDS else None
                if number is not None:
                    yield Observation(number, {"stream": stream})

        return observe


_Value = Callable[[StreamStatus, dt.datetime, float], float | None]


def _headroom(status: StreamStatus, now: dt.datetime, since: float) -> float | None:
    least = status.retention and status.retention.least
    return max(0.0, least.seconds - since) if least else None


def _is_headroom_unknown(status: StreamStatus, now: dt.datetime, since: float) -> float | None:
    return float(bool(status.retention.unknown)) if status.retention else None


def _unread_age(status: StreamStatus, now: dt.datetime, since: float) -> float | None:
    oldest = status.retention.oldest_unread if status.retention else None
    if oldest is not None:
        return (now - oldest).total_seconds()
    return 0.0 if status.lag == 0 else None


def _commit_age(status: StreamStatus, now: dt.datetime, since: float) -> float | None:
    return (now - status.committed_at).total_seconds() if status.committed_at else None


def _withheld_age(status: StreamStatus, now: dt.datetime, since: float) -> float | None:
    return (now - status.withheld_since).total_seconds() if status.withheld_since else None


_GAUGES: Final[tuple[tuple[str, str, str, _Value], ...]] = (
    ("oncelake.lag", "{offset}", "Offsets not read yet", lambda status, *_: status.lag),
    ("oncelake.unread.age", "s", "Age of the oldest unread record", _unread_age),
    ("oncelake.commit.age", "s", "Time since the newest commit of the ledger", _commit_age),
    (
        "oncelake.retention.headroom",
        "s",
        "Until Kafka may delete the next unread record; none where it cannot",
        _headroom,
    ),
    (
        "oncelake.retention.unknown",
        "",
        "1 where a limit of the headroom could not be measured, else 0",
        _is_headroom_unknown,
    ),
    (
        "oncelake.quarantine.waiting",
        "{record}",
        "Records in quarantine that no redrive has sent in",
        lambda status, *_: status.waiting,
    ),
    ("oncelake.gate.age", "s", "Time since a batch is held back at the gate", _withheld_age),
    ("oncelake.rows", "{row}", "Rows of the table", lambda status, *_: status.row_count),
    (
        "oncelake.status",
        "",
        "Exit code of `oncelake status`: 0 in order, 1 wrong, 2 declaration, 3 refused, "
        "5 unreachable",
        lambda status, *_: status.exit_code,
    ),
)


class RunMetrics:
    """Counts what one run does."""

    def __init__(self, metrics: Metrics, spec: StreamSpec, settings: Settings) -> None:
        self._metrics = metrics
        self._spec = spec
        self._settings = settings
        self._of_stream = {"stream": spec.name}
        self._start = self._last = time.monotonic()

    def start(self) -> None:
        """Take the time."""
        self._start = self._last = time.monotonic()

    def batch(self, row: LedgerRow, lag: int) -> None:
        """Count a batch and its records."""
        now, metrics = time.monotonic(), self._metrics
        metrics.batch_duration.record(now - self._last, self._of_stream)
        self._last = now
        verdict = "red" if row.is_red else "balanced"
        metrics.batches.add(1, {**self._of_stream, "verdict": verdict})
        metrics.offsets.add(row.counts.get("offsets", 0), self._of_stream)
        for disposition in DISPOSITIONS:
            if count := row.counts.get(disposition, 0):
                metrics.records.add(count, {**self._of_stream, "disposition": disposition})

    def end(self, outcome: Outcome, report: RunReport | None, error: BaseException | None) -> None:
        """Count the run, and measure where it leaves the stream."""
        attributes = {**self._of_stream, "outcome": outcome}
        self._metrics.runs.add(1, attributes)
        self._metrics.run_duration.record(time.monotonic() - self._start, attributes)
        if not self._metrics.is_watched:
            declared = DeclaredStream(
                name=self._spec.name, path=Path(), spec=self._spec, error=None
            )
            self._metrics.record(StatusReader(self._settings).read_status(declared))


class _Shared:
    """The metrics of this process, made when they are first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics: Metrics | None = None

    def get(self, *served: MetricReader) -> Metrics:
        """Return them; ``served`` are further readers of those that are made."""
        with self._lock:
            if self._metrics is None:
                self._metrics = Metrics([*served, *_pushing()])
            return self._metrics

    def end(self) -> None:
        """Send what is left; whoever asks later gets others."""
        with self._lock:
            metrics, self._metrics = self._metrics, None
        if metrics is not None:
            metrics.provider.shutdown()


shared: Final = _Shared()


def _pushing() -> Iterator[MetricReader]:
    """Yield what pushes over OTLP, where that is set: for the last time when the process ends."""
    if wants_otlp():
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_FirstError())
        yield PeriodicExportingMetricReader(OTLPMetricExporter())


class _FirstError(logging.Filter):
    """Lets the first error of an exporter through, which would tell of each attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._has_told = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is the first."""
        is_first = record.levelno >= logging.ERROR and not self._has_told
        self._has_told = self._has_told or is_first
        return is_first


def serve(port: int, host: str) -> Callable[[], None]:
    """Serve the metrics of this process to Prometheus, and return what ends that.

    Raises:
        OSError: the port cannot be listened on.
    """
    registry = CollectorRegistry()
    server, thread = start_http_server(port, host, registry)
    shared.get(PrometheusMetricReader(scope_info_enabled=False, registry=registry))

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()
        shared.end()

    return stop


def watch(
    settings: Settings, streams: Callable[[], Sequence[DeclaredStream]]
) -> Callable[[], None]:
    """Measure streams every ``WATCH_SECONDS`` in a thread, and return what ends it."""
    metrics, over = shared.get(), threading.Event()

    def measure() -> None:
        while not over.is_set():
            reader, followed = StatusReader(settings), streams()
            for declared in followed:
                with guarded("metrics"):
                    if not over.is_set():
                        metrics.record(reader.read_status(declared))
            metrics.keep_only({declared.name for declared in followed})
            over.wait(WATCH_SECONDS)

    thread = threading.Thread(target=measure, name="metrics", daemon=True)
    metrics.is_watched = True
    thread.start()

    def stop() -> None:
        over.set()
        thread.join(_END_SECONDS)
        metrics.is_watched = False

    return stop
