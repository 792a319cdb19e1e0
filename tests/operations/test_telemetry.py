"""What a run tells of itself: metrics over OTLP and to Prometheus, lineage, and nothing unasked."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from oncelake.ingestion import errors
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.lake.lock import Holder, held_by_python
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.status.status import StreamStatus
from oncelake.ingestion.operations.telemetry import observed, serving, watching
from oncelake.ingestion.operations.upkeep.retention import Retention
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.settings import Settings
from tests.cli.shell import row
from tests.cli.test_run import report
from tests.support.http_sink import HttpSink, http_sink
from tests.support.world import ROOT, World
from tests.support.world import row as record

if TYPE_CHECKING:
    from oncelake.ingestion.operations.telemetry.metrics import Metrics

DASHBOARD = ROOT / "docs" / "grafana" / "oncelake.json"
STANDARD = ("OTEL_", "OPENLINEAGE")


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin with no variable, no warning told, and no metrics of another test."""
    for name in [name for name in os.environ if name.startswith(STANDARD)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("oncelake.ingestion.operations.telemetry.observer._warned", set())
    yield
    if metrics := sys.modules.get("oncelake.ingestion.operations.telemetry.metrics"):
        metrics.shared.end()
    if lineage := sys.modules.get("oncelake.ingestion.operations.telemetry.lineage"):
        lineage._client.cache_clear()
        lineage._not_before = 0.0
    # OpenLineage's client writes into the environment, where later runs would find it.
    for name in [name for name in os.environ if name.startswith(STANDARD)]:
        del os.environ[name]


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    """A collector."""
    with http_sink() as served:
        yield served


@pytest.fixture
def spec() -> StreamSpec:
    """The stream ``orders``."""
    declared = {"name": "orders", "topic": "orders", "schema": "id INT NOT NULL", "keys": ["id"]}
    return StreamSpec.model_validate(declared)


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    """A lake without tables, and a Kafka that nobody asks."""
    return Settings(lake=tmp_path / "lake", state=tmp_path / "state", kafka="k1:9092,k2:9092")


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every stream stand somewhere, without asking Kafka."""

    def read_status(reader: object, declared: DeclaredStream) -> StreamStatus:
        return StreamStatus(stream=declared.name, table="t", lag=7, waiting=3, row_count=20)

    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.status.StatusReader.read_status", read_status
    )


def run(
    spec: StreamSpec,
    settings: Settings,
    end: RunReport | BaseException,
    *,
    is_stopped: bool = False,
) -> None:
    """Observe a run that ends like this."""
    stop = threading.Event()
    if is_stopped:
        stop.set()
    with observed(spec, settings, stop) as seen:
        if isinstance(end, BaseException):
            raise end
        on_batch = seen.batches(lambda row, lag: None)
        for batch in end.batches:
            on_batch(batch, 0)
        seen.report = end


def pushed(sink: HttpSink) -> dict[str, dict[str, float]]:
    """The values of the last push: by metric, then by attributes."""
    request = ExportMetricsServiceRequest.FromString(sink.bodies("/v1/metrics")[-1])
    found: dict[str, dict[str, float]] = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        points = getattr(metric, str(metric.WhichOneof("data"))).data_points
        for point in points:
            names = " ".join(each.value.string_value for each in point.attributes)
            value = point.count if hasattr(point, "count") else point.as_int or point.as_double
            found.setdefault(metric.name, {})[names] = value
    return found


def end_metrics() -> None:
    """Let the process's metrics end, as they do with it."""
    from oncelake.ingestion.operations.telemetry.metrics import shared

    shared.end()


@pytest.mark.usefixtures("standing")
def test_runs_and_streams_are_pushed_over_otlp(
    monkeypatch: pytest.MonkeyPatch, sink: HttpSink, spec: StreamSpec, here: Settings
) -> None:
    """What runs did is summed, what became of records named, and where the stream stands told."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.address)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    red = report("orders", batches=(row(3, balanced=False, problems=("1 ≠ 2",)),))
    refusal = errors.TopicMissingError("orders", "no topic.", remedy="make it")

    for end in (report("orders"), red):
        run(spec, here, end)
    for error in (refusal, errors.DependencyError("away"), KeyError("odd")):
        with pytest.raises(type(error)):
            run(spec, here, error)
    end_metrics()

    found = pushed(sink)
    assert found["oncelake.records"] == {"orders inserted": 30}
    assert found["oncelake.offsets"] == {"orders": 30}
    assert found["oncelake.batches"] == {"orders balanced": 2, "orders red": 1}
    assert found["oncelake.batch.duration"] == {"orders": 3}
    outcomes = ("done", "red", "refused", "unreachable", "failed")
    assert found["oncelake.runs"] == {f"orders {outcome}": 1 for outcome in outcomes}
    assert found["oncelake.lag"] == {"orders": 7}
    assert found["oncelake.quarantine.waiting"] == {"orders": 3}
    request = ExportMetricsServiceRequest.FromString(sink.bodies("/v1/metrics")[-1])
    resource = {
        each.key: each.value.string_value
        for each in request.resource_metrics[0].resource.attributes
    }
    assert (resource["service.name"], resource["deployment.environment"]) == ("oncelake", "test")


class _TerminatedError(BaseException):
    """Stands for what Dagster raises in a run that a person terminates."""


@pytest.mark.usefixtures("standing")
@pytest.mark.parametrize(
    ("end", "is_stopped", "outcome", "state"),
    [
        pytest.param(report("orders", lag=7), True, "interrupted", "ABORT", id="cut short"),
        pytest.param(report("orders"), True, "done", "COMPLETE", id="had read all"),
        pytest.param(ValueError("of the stop"), True, "interrupted", "ABORT", id="broke off"),
        pytest.param(_TerminatedError(), False, "interrupted", "ABORT", id="Dagster's"),
        pytest.param(errors.InvalidSpecError("no"), False, "invalid", "FAIL", id="invalid"),
        pytest.param(errors.KafkaSettingsError("no"), False, "invalid", "FAIL", id="a login"),
        pytest.param(errors.SetupError("no"), False, "invalid", "FAIL", id="no set-up"),
        pytest.param(errors.StreamLockedError("busy"), False, "locked", "FAIL", id="locked late"),
    ],
)
def test_a_run_that_is_stopped_is_neither_done_nor_failed(
    monkeypatch: pytest.MonkeyPatch,
    sink: HttpSink,
    spec: StreamSpec,
    here: Settings,
    end: RunReport | BaseException,
    is_stopped: bool,
    outcome: str,
    state: str,
) -> None:
    """A signal, or Dagster's Terminate, is an outcome of its own, for metrics and for lineage."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.address)
    monkeypatch.setenv("OPENLINEAGE_URL", sink.address)

    with suppress(ValueError, _TerminatedError, errors.IngestionError):
        run(spec, here, end, is_stopped=is_stopped)
    end_metrics()

    assert pushed(sink)["oncelake.runs"] == {f"orders {outcome}": 1}
    assert [each["eventType"] for each in events(sink)] == ["START", state]


@pytest.mark.usefixtures("standing")
def test_a_collector_that_is_away_is_told_once_and_fails_no_run(
    monkeypatch: pytest.MonkeyPatch,
    spec: StreamSpec,
    here: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The runs end as they would, and the log has one line."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")

    run(spec, here, report("orders"))
    time.sleep(2.5)
    run(spec, here, report("orders"))
    end_metrics()

    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 1


def test_a_failure_of_what_watches_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
    sink: HttpSink,
    spec: StreamSpec,
    here: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever breaks in it, runs go on."""

    def fail(*_: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.address)
    monkeypatch.setattr("oncelake.ingestion.operations.telemetry.metrics.RunMetrics.batch", fail)
    monkeypatch.setattr(
        "oncelake.ingestion.operations.telemetry.metrics.StatusReader.read_status", fail
    )

    for _ in range(2):
        run(spec, here, report("orders"))
    end_metrics()

    assert [each.getMessage() for each in caplog.records] == [
        "metrics could not be sent: ZeroDivisionError:  (reported once; runs go on)"
    ]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scraped(port: int) -> str:
    """What Prometheus would read."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return cast("bytes", answer.read()).decode()


def test_prometheus_reads_streams_that_are_followed(
    monkeypatch: pytest.MonkeyPatch, spec: StreamSpec, here: Settings
) -> None:
    """Each metric is there by its name, also of a stream that nothing runs; then nobody listens."""
    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.status.StatusReader.read_status",
        lambda *_: full_status(spec),
    )
    declared = DeclaredStream(name="orders", path=Path(), spec=spec, error=None)
    port = free_port()
    with serving(port, "127.0.0.1"), watching(here, lambda: [declared]):
        deadline = time.monotonic() + 10
        while "oncelake_lag" not in (text := scraped(port)):
            assert time.monotonic() < deadline, "the stream was never measured"
            time.sleep(0.05)
        run(spec, here, report("orders"))
        text = scraped(port)

    assert 'oncelake_lag{stream="orders"} 7.0' in text
    assert 'oncelake_records_total{disposition="inserted",stream="orders"} 20.0' in text
    headroom = re.search(r"^oncelake_retention_headroom_seconds\{.*\} (.+)$", text, re.MULTILINE)
    assert headroom is not None
    assert 3590 < float(headroom[1]) <= 3600
    exported = set(re.findall(r"^(oncelake_\w+)[{ ]", text, re.MULTILINE))
    assert queried() <= exported
    assert documented() == {re.sub("_(bucket|count|sum|created)$", "", name) for name in exported}
    with pytest.raises(OSError, match="refused"):
        scraped(port)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    """The metrics of this process, with a watch that is as quick as a test."""
    from oncelake.ingestion.operations.telemetry import metrics

    monkeypatch.setattr(metrics, "WATCH_SECONDS", 0.02)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    return metrics.shared.get()


def exported(metrics: Metrics, gauge: str = "oncelake.lag") -> dict[str, float]:
    """The values of a gauge, by stream."""
    from opentelemetry.metrics import CallbackOptions

    from oncelake.ingestion.operations.telemetry.metrics import _GAUGES

    (value,) = (value for name, _, _, value in _GAUGES if name == gauge)
    found = metrics._callback(value)(CallbackOptions())
    return {str((each.attributes or {})["stream"]): float(each.value) for each in found}


def test_one_stream_that_cannot_be_measured_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, recorded: Metrics, spec: StreamSpec, here: Settings
) -> None:
    """Those behind it are measured all the same; one that is declared no longer is forgotten."""

    def read_status(reader: object, declared: DeclaredStream) -> StreamStatus:
        if declared.name == "a":
            raise PermissionError(13, "no")
        return StreamStatus(stream=declared.name, table="t", lag=7)

    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.status.StatusReader.read_status", read_status
    )
    names = ["a", "b", "c"]

    def streams() -> list[DeclaredStream]:
        return [DeclaredStream(name=name, path=Path(), spec=spec, error=None) for name in names]

    with watching(here, streams):
        wait_until(lambda: exported(recorded) == {"b": 7, "c": 7})
        names.remove("c")
        wait_until(lambda: exported(recorded) == {"b": 7})


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def test_what_was_measured_long_ago_is_not_exported(
    monkeypatch: pytest.MonkeyPatch, recorded: Metrics, spec: StreamSpec
) -> None:
    """A value that nobody renews would stay green for good."""
    recorded.record(full_status(spec))
    assert exported(recorded) == {"orders": 7}

    monkeypatch.setattr("oncelake.ingestion.operations.telemetry.metrics._STALE_SECONDS", 0.0)

    assert exported(recorded) == {}


def test_a_headroom_that_nobody_knows_is_not_one_that_is_not_there(
    recorded: Metrics, spec: StreamSpec
) -> None:
    """Both leave the headroom out; a gauge of its own tells them apart."""
    for name, unknown in (("known", ""), ("unknown", "Kafka refuses")):
        retention = Retention(spec=spec, unknown=unknown)
        recorded.record(StreamStatus(stream=name, table="t", retention=retention))
    recorded.record(StreamStatus(stream="new", table="t"))

    assert exported(recorded, "oncelake.retention.headroom") == {}
    assert exported(recorded, "oncelake.retention.unknown") == {"known": 0, "unknown": 1}


def queried() -> set[str]:
    """The metrics that Grafana's dashboard asks for."""
    board = json.loads(DASHBOARD.read_text())
    asked = (target["expr"] for panel in board["panels"] for target in panel.get("targets", []))
    return set(re.findall(r"oncelake_\w+", " ".join(asked)))


def documented() -> set[str]:
    """The metrics that the page about them lists, by their names in Prometheus."""
    page = (ROOT / "docs" / "monitoring.md").read_text()
    return set(re.findall(r"^\| `oncelake\.[\w.]+` \| `(oncelake_\w+)` \|", page, re.MULTILINE))


def full_status(spec: StreamSpec) -> StreamStatus:
    """A stream of which all is known."""
    import datetime as dt

    from oncelake.ingestion.kafka.offsets import TopicPartition
    from oncelake.ingestion.kafka.retention import Headroom

    now = dt.datetime.now(dt.UTC)
    at = TopicPartition("orders", 0)
    least = Headroom(at=at, offset=1, limit="time", seconds=3600, of_seconds=7200)
    return StreamStatus(
        stream="orders",
        table="t",
        row_count=20,
        committed_at=now,
        withheld_since=now,
        waiting=3,
        lag=7,
        retention=Retention(spec=spec, least=least, oldest_unread=now),
    )


def test_the_dashboard_asks_for_something() -> None:
    """It is found, and has a query for each of what is measured."""
    assert len(queried()) >= 10


def test_a_port_that_is_taken_is_bad_usage() -> None:
    """The error names the port, and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with (
            pytest.raises(errors.SetupError, match=f"127.0.0.1:{port} cannot be listened on"),
            serving(port, "127.0.0.1"),
        ):
            pass


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the packages."""
    for name in [name for name in sys.modules if name.split(".")[0] in {"opentelemetry"}]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("metrics", "lineage"):
        monkeypatch.delitem(
            sys.modules, f"oncelake.ingestion.operations.telemetry.{name}", raising=False
        )
    monkeypatch.setitem(sys.modules, "openlineage", None)
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)


@pytest.mark.usefixtures("without_the_extra")
def test_an_extra_that_is_missing_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
    spec: StreamSpec,
    here: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A port is refused; a variable, which may be meant for other programs, is told of."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    run(spec, here, report("orders"))
    with (
        pytest.raises(errors.SetupError, match=r"Next: .*pip install 'WHEEL\[observability\]'"),
        serving(1, "127.0.0.1"),
    ):
        pass

    told = [each.getMessage() for each in caplog.records]
    assert [each.split(" ")[0] for each in told] == ["metrics", "lineage"]
    assert all("pip install 'WHEEL[observability]'" in each for each in told)


def test_where_nothing_is_set_nothing_is_loaded() -> None:
    """The engine's modules bring neither library along."""
    code = (
        "import sys\n"
        "import oncelake.ingestion.operations.follow.follow, oncelake.ingestion.operations.run\n"
        "print([name for name in ('opentelemetry', 'openlineage', 'prometheus_client')"
        " if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def events(sink: HttpSink) -> list[dict[str, Any]]:
    """The lineage that was sent."""
    return [json.loads(body) for body in sink.bodies("/api/v1/lineage")]


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("k1:9092, k2:9093", ("k1", "9092")),
        ("k1", ("k1", "9092")),
        ("[::1]:9094", ("[::1]", "9094")),
    ],
)
def test_a_cluster_is_named_by_its_first_server(servers: str, expected: tuple[str, str]) -> None:
    """One without a port has Kafka's usual one."""
    from oncelake.ingestion.operations.telemetry.lineage import _first_server

    assert _first_server(servers) == expected


def test_a_run_is_told_as_lineage(
    monkeypatch: pytest.MonkeyPatch, sink: HttpSink, spec: StreamSpec, here: Settings
) -> None:
    """START, then COMPLETE, of one run: the topic in, the table out, its columns and rows."""
    monkeypatch.setenv("OPENLINEAGE_URL", sink.address)

    run(spec, here, report("orders"))

    begun, ended = events(sink)
    assert [begun["eventType"], ended["eventType"]] == ["START", "COMPLETE"]
    assert begun["run"]["runId"] == ended["run"]["runId"]
    assert (ended["job"]["namespace"], ended["job"]["name"]) == ("oncelake", "orders")
    (topic,), (table,) = ended["inputs"], ended["outputs"]
    assert (topic["namespace"], topic["name"]) == ("kafka://k1:9092", "orders")
    assert (table["namespace"], table["name"]) == ("file", str(here.lake / "orders"))
    fields = table["facets"]["schema"]["fields"]
    assert [(each["name"], each["type"]) for each in fields] == [("id", "INT")]
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 20


@pytest.mark.parametrize(
    ("end", "says"),
    [
        pytest.param(
            errors.TopicMissingError("orders", "no topic.", remedy="make it"),
            "orders: no topic. Next: make it",
            id="refused",
        ),
        pytest.param(
            report("orders", batches=(row(1, balanced=False, problems=("1 ≠ 2",)),)),
            "the books do not balance: 1 ≠ 2",
            id="red",
        ),
    ],
)
def test_a_run_that_fails_is_told_as_failed(
    monkeypatch: pytest.MonkeyPatch,
    sink: HttpSink,
    spec: StreamSpec,
    here: Settings,
    end: RunReport | Exception,
    says: str,
) -> None:
    """The event has the error in its own words; red books are a failure, too."""
    monkeypatch.setenv("OPENLINEAGE_URL", sink.address)
    try:
        run(spec, here, end)
    except errors.TopicMissingError:
        assert isinstance(end, Exception)

    _, ended = events(sink)
    assert ended["eventType"] == "FAIL"
    assert ended["run"]["facets"]["errorMessage"]["message"] == says


def test_a_lineage_server_that_fails_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
    sink: HttpSink,
    spec: StreamSpec,
    here: Settings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is told once, no run fails, and the next events are not tried for a minute."""
    monkeypatch.setenv("OPENLINEAGE_URL", sink.address)
    sink.statuses = [400] * 10

    for _ in range(3):
        run(spec, here, report("orders"))

    assert len(events(sink)) == 1
    told = [each for each in caplog.records if each.name == "oncelake.telemetry"]
    assert [each.getMessage()[:29] for each in told] == ["lineage could not be sent: HT"]


def test_a_stream_that_is_locked_sends_no_lineage(
    monkeypatch: pytest.MonkeyPatch, sink: HttpSink, spec: StreamSpec, here: Settings
) -> None:
    """Whoever follows it tries every few seconds: no run of it has begun."""
    monkeypatch.setenv("OPENLINEAGE_URL", sink.address)
    with (
        held_by_python(StreamPaths.of("orders", here), Holder.me("another")),
        suppress(errors.StreamLockedError),
    ):
        run(spec, here, errors.StreamLockedError("busy"))
    assert events(sink) == []

    with held_by_python(StreamPaths.of("orders", here), Holder.me("another")):
        run(spec, here, report("orders"))
    assert [each["eventType"] for each in events(sink)] == ["START", "COMPLETE"]


@pytest.mark.parametrize(
    ("retries", "attempts"), [(None, 2), ("3", 4)], ids=["by default", "as configured"]
)
def test_a_lineage_server_that_is_away_is_tried_twice(
    monkeypatch: pytest.MonkeyPatch,
    sink: HttpSink,
    spec: StreamSpec,
    here: Settings,
    retries: str | None,
    attempts: int,
) -> None:
    """The client's own six attempts would hold up each run that starts."""
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", sink.address)
    if retries:
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", f'{{"total": {retries}}}')
    sink.statuses = [503] * 10

    run(spec, here, report("orders"))

    assert len(events(sink)) == attempts


def test_a_rebuild_is_one_run_of_the_stream(
    monkeypatch: pytest.MonkeyPatch, sink: HttpSink, world: World
) -> None:
    """The half-built copy is not published: nothing is counted twice, the table is the stream's."""
    world.send(*(record(number, "a") for number in range(5)))
    world.run()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.address)
    monkeypatch.setenv("OPENLINEAGE_URL", sink.address)

    world.rebuild()
    end_metrics()

    metrics = pushed(sink)
    assert "oncelake.records" not in metrics
    assert metrics["oncelake.runs"] == {f"{world.topic} done": 1}
    assert metrics["oncelake.rows"] == {world.topic: 5}
    assert [each["eventType"] for each in events(sink)] == ["START", "COMPLETE"]
    assert {each["outputs"][0]["name"] for each in events(sink)} == {str(world.paths.data)}


def test_a_real_run_tells_of_itself(
    monkeypatch: pytest.MonkeyPatch, sink: HttpSink, world: World
) -> None:
    """On a real topic and table: what was committed is what both are told."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.address)
    monkeypatch.setenv("OPENLINEAGE_URL", sink.address)
    world.send(*(record(number, "a") for number in range(5)), b"bad")

    world.run()
    end_metrics()

    of, found = world.topic, pushed(sink)
    assert found["oncelake.records"] == {f"{of} inserted": 5, f"{of} quarantined": 1}
    assert found["oncelake.runs"] == {f"{of} done": 1}
    assert found["oncelake.lag"] == {of: 0}
    assert found["oncelake.quarantine.waiting"] == {of: 1}
    assert [each["eventType"] for each in events(sink)] == ["START", "COMPLETE"]
    statistics = events(sink)[1]["outputs"][0]["outputFacets"]["outputStatistics"]
    assert statistics["rowCount"] == 5


def test_a_real_stream_that_nothing_runs_is_measured(world: World) -> None:
    """Lag, age and headroom come from the topic, while no run does."""
    world.run()
    world.send(*(record(number, "a") for number in range(5)))
    declared = DeclaredStream(name=world.topic, path=Path(), spec=world.spec, error=None)
    port = free_port()
    with serving(port, "127.0.0.1"), watching(world.settings, lambda: [declared]):
        deadline = time.monotonic() + 20
        while "oncelake_lag" not in (text := scraped(port)):
            assert time.monotonic() < deadline, "the stream was never measured"
            time.sleep(0.1)

    found = dict(re.findall(r"^(oncelake_\w+)\{.*\} (.+)$", text, re.MULTILINE))
    assert (float(found["oncelake_lag"]), float(found["oncelake_status"])) == (5, 0)
    assert 0 < float(found["oncelake_unread_age_seconds"]) < 60
    assert 7 * 86400 - 60 < float(found["oncelake_retention_headroom_seconds"]) < 7 * 86400
