"""What a status must not pass over, and what one trouble must not hide."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from deltalake import DeltaTable
from pydantic import SecretStr

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.admin import Kafka, Topics
from oncelake.ingestion.kafka.client import unreachable
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.kafka.retention import Headroom, Measurement
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.operations.status.status import StatusReader, StreamStatus
from oncelake.ingestion.operations.upkeep.retention import retention_of
from oncelake.ingestion.settings import Settings
from tests.cli.shell import answer, oncelake
from tests.support.volumes import mounted
from tests.support.world import COLUMNS, World, changed, row

ORDERS = {"topic": "orders", "schema": "id INT NOT NULL", "keys": ["id"]}


def declared(spec: StreamSpec) -> DeclaredStream:
    """The stream, as it is read from a file."""
    return DeclaredStream(name=spec.name, path=Path(), spec=spec, error=None)


def stream(name: str, **more: Any) -> DeclaredStream:
    """A stream without a table."""
    return declared(StreamSpec.model_validate({"name": name, **ORDERS, "topic": name, **more}))


def status_of(world: World, **settings: Any) -> StreamStatus:
    """Find out where it stands."""
    return StatusReader(changed(world.settings, **settings)).read_status(declared(world.spec))


@pytest.fixture(scope="module")
def behind(module_world: World) -> World:
    """A table of two commits, and a record that is not read yet."""
    for name in ("a", "b"):
        module_world.send(row(1, name))
        module_world.run()
    module_world.send(row(2, "c"))
    return module_world


@pytest.fixture
def copied(behind: World, tmp_path: Path) -> World:
    """A copy of its tables."""
    return behind.copied_to(tmp_path / "lake", state=tmp_path / "state")


@pytest.mark.parametrize("kafka", [None, "127.0.0.1:1"], ids=["Kafka", "no Kafka"])
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        pytest.param({"keys": ["id", "name"]}, "IdentityChangedError", id="keys"),
        pytest.param({"schema": f"{COLUMNS}, city STRING"}, "SchemaChangedError", id="frozen"),
        pytest.param(
            {"schema": f"{COLUMNS}, city STRING", "schema_change": "evolve"}, "", id="evolves"
        ),
    ],
)
def test_a_declaration_that_a_run_would_be_refused_for_is_not_green(
    copied: World, fields: dict[str, Any], problem: str, kafka: str | None
) -> None:
    """Other keys, or a column that a frozen table lacks, are exit 3, whatever Kafka does."""
    copied.declare(**fields)
    settings = {"kafka": kafka, "kafka_timeout_seconds": 0.5} if kafka else {}

    status = status_of(copied, **settings)

    problems = [each.type for each in status.problems]
    assert problems == [problem] * bool(problem) + ["DependencyError"] * bool(kafka)
    assert status.exit_code == (3 if problem else 5 if kafka else 0)


@pytest.mark.parametrize(("change", "code"), [("freeze", 3), ("evolve", 0)])
def test_a_plan_exits_as_the_status_does_and_says_it_once(
    copied: World,
    change: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The diff shows what a run would be refused for, so the refusal is in the document alone."""
    copied.declare(schema=f"{COLUMNS}, city STRING", schema_change=change)
    copied.write_declaration()
    copied.set_environment(monkeypatch)

    shown, document = oncelake("plan", copied.topic), oncelake("plan", copied.topic, "--json")

    assert [shown.exit_code, document.exit_code] == [code, code]
    assert shown.stdout.count("city") == 2, "the change, and its statement"
    assert ("`schema_change: evolve` lets" in shown.stdout) == bool(code)
    (plan,) = answer(document)["plans"]
    assert [each["type"] for each in plan["refusals"]] == ["SchemaChangedError"] * bool(code)


def test_a_plan_names_a_topic_that_the_table_has_not_read(
    copied: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run is refused for it, so that a typing error could fill another topic in unnoticed."""
    copied.declare(topic=None, topics=[copied.topic, "another"])
    copied.write_declaration()
    copied.set_environment(monkeypatch)

    (plan,) = answer(oncelake("plan", copied.name, "--json"))["plans"]

    says = "topic another is new: the next run reads it from its start into this table"
    assert plan["notices"] == [says]


def test_a_table_that_is_refused_keeps_its_alarm_and_has_no_lag(copied: World) -> None:
    """Nobody reads while it is refused, so retention goes on; the lag is not that of a new one."""
    copied.declare(retention_warning="8 days", starting={"offsets": {copied.topic: {"0": 99}}})
    DeltaTable(copied.paths.data.path).restore(1)

    status = status_of(copied)

    assert [each.type for each in status.problems] == ["TableRestoredError"]
    assert status.lag is None
    assert status.retention is not None
    assert (status.retention.level, status.exit_code) == ("low", 3)
    assert status.retention.least is not None
    assert status.retention.least.offset == 2


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    """A lake without tables."""
    return Settings(lake=tmp_path / "lake", state=tmp_path / "state", kafka="127.0.0.1:1")


def test_the_headroom_with_the_worst_level_is_told(
    here: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that keeps an hour, and has most of it left, does not hide one that keeps a week."""
    at, limits = TopicPartition("orders", 0), ((50 * 60, 3600), (55 * 60, 7 * 86400))
    headrooms = tuple(
        Headroom(at=at, offset=1, limit="time", seconds=seconds, of_seconds=of_seconds)
        for seconds, of_seconds in limits
    )
    measured = Measurement(headrooms=headrooms)
    monkeypatch.setattr(
        "oncelake.ingestion.operations.upkeep.retention.read_headroom", lambda *_: measured
    )
    spec = stream("orders").require_spec()

    retention = retention_of(Stream(spec=spec, settings=here), Offsets())

    assert (retention.level, retention.least) == ("critical", headrooms[1])


@pytest.mark.parametrize(
    ("code", "is_known"),
    [
        pytest.param(KafkaError.TOPIC_AUTHORIZATION_FAILED, True, id="a refusal"),
        pytest.param(KafkaError._TIMED_OUT, False, id="silence"),
    ],
)
def test_a_topic_that_is_forbidden_hides_no_other(
    here: Settings, monkeypatch: pytest.MonkeyPatch, code: int, is_known: bool
) -> None:
    """A broker that refuses one topic is asked for the next one; one that is silent is not."""
    end = Offsets({TopicPartition("open", 0): 7})

    def topics(kafka: Kafka, stream: str, names: object) -> Topics:
        if stream == "closed":
            raise unreachable(here, None) from KafkaException(KafkaError(code))
        return Topics(cluster_id="c", ids={}, partitions=tuple(end))

    monkeypatch.setattr(Kafka, "topics", topics)
    monkeypatch.setattr(Kafka, "withheld", lambda *_, **__: Offsets())
    monkeypatch.setattr(Kafka, "earliest", lambda *_: Offsets({next(iter(end)): 0}))
    monkeypatch.setattr(Kafka, "stable_end", lambda *_: end)
    reader = StatusReader(here)

    closed, opened = reader.read_status(stream("closed")), reader.read_status(stream("open"))

    assert closed.exit_code == 5
    assert (opened.exit_code, opened.lag) == ((0, 7) if is_known else (5, None))


def test_a_silent_sink_is_no_silent_kafka(here: Settings) -> None:
    """A server of PostgreSQL that is down is named as what keeps the rows; Kafka is asked apart."""
    url = SecretStr("postgresql://loader:secret@127.0.0.1:1/sales")
    settings = here.model_copy(update={"postgres": url, "kafka_timeout_seconds": 0.2})

    status = StatusReader(settings).read_status(stream("orders", sink="postgres"))

    silent = status.problems[0]
    assert (silent.words, status.exit_code) == ("sink does not answer", 5)
    assert "127.0.0.1:1/sales" in silent.message
    assert "secret" not in silent.message


def test_what_cannot_be_read_hides_nothing_else(here: Settings, tmp_path: Path) -> None:
    """A lease that is garbled is a problem of its stream; the quarantine and Kafka are asked."""
    leasing = here.model_copy(update={"lock": "lease", "kafka_timeout_seconds": 0.2})
    lease = StreamPaths.of("orders", leasing).lease
    assert lease is not None
    lease.put(b"{")

    status = StatusReader(leasing).read_status(stream("orders"))

    assert [each.type for each in status.problems] == ["DependencyError", "ValidationError"]
    assert status.exit_code == 1


def test_a_volume_that_fails_is_named(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input/output error is no traceback, and no Kafka that does not answer."""

    def fail(paths: StreamPaths) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(here.lake))

    monkeypatch.setattr("oncelake.ingestion.operations.status.status.load_ledger", fail)
    settings = here.model_copy(update={"kafka_timeout_seconds": 0.2})

    status = StatusReader(settings).read_status(stream("orders"))

    assert [each.words for each in status.problems] == ["volume fails", "Kafka does not answer"]


def test_a_lake_that_is_read_only_is_not_ready(here: Settings) -> None:
    """A run would be refused; what Kafka says of it comes first."""
    here.lake.mkdir(parents=True, exist_ok=True)
    settings = here.model_copy(update={"kafka_timeout_seconds": 0.2})
    with mounted(here.lake, options="size=1m") as volume:
        volume.read_only()

        status = StatusReader(settings).read_status(stream("orders"))

    assert [each.words for each in status.problems] == ["Kafka does not answer", "volume fails"]
    assert "Read-only file system" in status.problems[-1].message
