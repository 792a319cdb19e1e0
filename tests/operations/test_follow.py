"""Following: what is run when, whom it is told, and that it ends; then the real thing."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion import errors
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.kafka.transactions import Stall
from oncelake.ingestion.lake.lock import Holder, held_by_python
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.follow.follow import Follow
from oncelake.ingestion.operations.status.lag import LagReader
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.pipeline.spark.session import SharedSpark
from oncelake.ingestion.settings import Settings
from tests.cli.shell import ORDERS, row
from tests.cli.test_run import report
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World
from tests.support.world import row as record

REFUSED = errors.TopicMissingError("refused", "no topic.", remedy="make it")


@dataclass
class Engine:
    """Plays the engine at its two seams: how far streams are behind, and one run of one."""

    lag: dict[str, int] = field(default_factory=dict)
    ends: dict[str, Exception | Callable[[threading.Event], None]] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    now: int = 0
    most: int = 0
    silent: errors.DependencyError | None = None
    stalls: dict[str, list[Stall]] = field(default_factory=dict)

    def read(self, specs: Sequence[StreamSpec]) -> dict[str, dict[str, int]]:
        """Count the lag, as ``LagReader`` does."""
        if self.silent:
            raise self.silent
        return {spec.name: {spec.name: self.lag.get(spec.name, 0)} for spec in specs}

    def run(self, **asked: Any) -> RunReport:
        """Run a stream to the end it is given; by default it reads all."""
        name = asked["spec"].name
        self.begun.append(name)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            end = self.ends.get(name)
            if isinstance(end, Exception):
                raise end
            if end is not None:
                end(asked["stop"])
            self.lag[name] = 0
            return report(name, batches=(row(1),))
        finally:
            self.now -= 1


@dataclass
class Told:
    """What was told of streams, in order."""

    reports: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine, played."""
    played = Engine()

    class _Run:
        def __init__(self, **asked: Any) -> None:
            self.asked = asked

        def execute(self) -> RunReport:
            return played.run(**self.asked)

    monkeypatch.setattr("oncelake.ingestion.operations.follow.follow.Run", _Run)
    monkeypatch.setattr(LagReader, "read", lambda reader, specs: played.read(specs))
    monkeypatch.setattr(LagReader, "stalls", lambda reader, lags: played.stalls)
    return played


@pytest.fixture
def told() -> Told:
    """Nothing yet."""
    return Told()


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    """The folder of the declarations, empty."""
    folder = tmp_path / "streams"
    folder.mkdir()
    return folder


def following(streams: Path, told: Told, **parts: Any) -> Follow:
    """Follow the streams of a folder, by default for ever and looking all the time."""
    settings = Settings(streams=streams, lake=streams.parent / "lake", kafka="nowhere:1")

    def on_report(declared: DeclaredStream, report: RunReport) -> None:
        told.reports.append(declared.name)

    def on_failure(declared: DeclaredStream | None, error: Exception) -> None:
        told.failures.append(f"{declared.name if declared else 'all'}: {type(error).__name__}")

    given: dict[str, Any] = {
        "settings": settings,
        "spark": SharedSpark(lambda backlog: cast("SparkSession", object())),
        "run_id": "f",
        "on_report": on_report,
        "on_failure": on_failure,
        "every_seconds": 0.02,
    }
    return Follow(**{**given, **parts})


def until(follow: Follow, *conditions: Callable[[], bool]) -> int:
    """Follow until the conditions have held, one after the other, and return the exit code."""
    failed = []

    def watch() -> None:
        for number, condition in enumerate(conditions):
            deadline = time.monotonic() + 150
            while not condition():
                if time.monotonic() > deadline:
                    failed.append(number)
                    break
                time.sleep(0.01)
        follow.stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = follow.execute()
    watcher.join()
    assert failed == [], "never happened"
    return code


def declare(streams: Path, *names: str, text: str = ORDERS) -> None:
    """Declare streams, each file whole at once: whoever follows may look at any moment."""
    for name in names:
        written = streams.parent / f"{name}.written"
        written.write_text(text)
        written.replace(streams / f"{name}.yaml")


def test_what_is_behind_is_run_and_nothing_else(streams: Path, engine: Engine, told: Told) -> None:
    """A stream without lag has no run, however long it is followed."""
    declare(streams, "busy", "idle")
    engine.lag = {"busy": 500}

    code = until(following(streams, told), lambda: told.reports == ["busy"])

    assert (engine.begun, told.failures, code) == (["busy"], [], 0)


def test_no_more_are_run_at_once_than_was_said(streams: Path, engine: Engine, told: Told) -> None:
    """Five streams that are behind get their runs two at a time."""
    names = [f"s{number}" for number in range(5)]
    declare(streams, *names)
    engine.lag = dict.fromkeys(names, 500)
    engine.ends = dict.fromkeys(names, lambda stop: time.sleep(0.05))

    until(following(streams, told, jobs=2), lambda: len(told.reports) == 5)

    assert engine.most == 2


def test_files_that_come_change_and_go_are_noticed(
    streams: Path, engine: Engine, told: Told
) -> None:
    """A broken one is told once and keeps no other from running; mended, it is run."""
    declare(streams, "first")
    engine.lag = {"first": 500, "second": 500}

    def breaks() -> bool:
        declare(streams, "second", text="topik: orders")
        return told.reports == ["first"]

    def mends() -> bool:
        declare(streams, "second")
        (streams / "first.yaml").unlink(missing_ok=True)
        engine.lag["first"] = 500
        return told.reports == ["first", "second"]

    code = until(
        following(streams, told),
        breaks,
        lambda: told.failures == ["second: InvalidSpecError"],
        mends,
    )

    assert told.failures == ["second: InvalidSpecError"]
    assert (engine.begun, code) == (["first", "second"], 0)


def test_a_refusal_stops_its_stream_and_is_told_once(
    streams: Path, engine: Engine, told: Told
) -> None:
    """The others go on; once its file has changed it is tried again, at once."""
    declare(streams, "refused", "fine")
    engine.lag = {"refused": 500, "fine": 500}
    engine.ends = {"refused": REFUSED}

    def again() -> bool:
        declare(streams, "refused", text=ORDERS + "description: changed\n")
        return engine.begun.count("refused") == 2

    follow = following(streams, told)
    code = until(follow, lambda: bool(told.reports and told.failures), again)

    assert told.failures == ["refused: TopicMissingError"]
    assert (told.reports, code) == (["fine"], 3)


def test_a_locked_stream_is_tried_again_and_not_told(
    streams: Path, engine: Engine, told: Told
) -> None:
    """Somebody who materializes it by hand gets his turn, and then it is followed again."""
    declare(streams, "orders", text=ORDERS + "follow: {every_seconds: 1}\n")
    engine.lag = {"orders": 500}
    engine.ends = {"orders": errors.StreamLockedError("orders: run x holds this stream")}

    def freed() -> bool:
        if engine.begun:
            engine.ends.clear()
        return told.reports == ["orders"]

    assert until(following(streams, told), freed) == 0
    assert told.failures == []


def test_a_kafka_that_is_away_is_told_once(streams: Path, engine: Engine, told: Told) -> None:
    """It keeps all streams from being run, and the exit code says so."""
    declare(streams, "orders")
    engine.silent = errors.DependencyError("Kafka does not answer")

    follow = following(streams, told, for_seconds=0.3)

    assert follow.execute() == 5
    assert told.failures == ["all: DependencyError"]


@pytest.mark.parametrize("of_all", [True, False])
def test_a_kafka_that_refuses_the_login_is_named(
    streams: Path, engine: Engine, told: Told, of_all: bool
) -> None:
    """It turns no check red, whether it keeps all streams from being run or the sink of one."""
    declare(streams, "orders")
    refused = errors.KafkaSettingsError("Kafka refuses the login")
    engine.lag = {"orders": 500}
    if of_all:
        engine.silent = refused
    else:
        engine.ends = {"orders": refused}
    follow = following(streams, told)

    code = until(follow, lambda: bool(told.failures))

    assert (code, follow.unreachable) == (2, ("Kafka refuses the login",))


def test_what_does_not_answer_is_named_beside_what_is_refused(
    streams: Path, engine: Engine, told: Told
) -> None:
    """The exit code is that of the refusal, and who follows learns of the other one, too."""
    declare(streams, "away", "refused")
    engine.lag = {"away": 500, "refused": 500}
    engine.ends = {"away": errors.StorageError("away: no space left"), "refused": REFUSED}
    follow = following(streams, told)

    code = until(follow, lambda: len(told.failures) == 2)

    assert (code, follow.unreachable) == (3, ("away: no space left",))


def test_a_transaction_that_hides_records_is_told_by_one_run(
    streams: Path, engine: Engine, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without lag no run would come that tells of it; another one at another offset is new."""
    monkeypatch.setattr("oncelake.ingestion.operations.follow.follow._STALLS_EVERY_SECONDS", 0)
    declare(streams, "held", "idle", text=ORDERS + "follow: {every_seconds: 1}\n")
    began = time.monotonic()

    def hold(offset: int) -> bool:
        at = TopicPartition("held", 0)
        stall = Stall(at=at, offset=offset, since=None, holder="a producer", remedy="abort it")
        engine.stalls = {"held": [stall]}
        return True

    until(
        following(streams, told),
        lambda: hold(41),
        lambda: time.monotonic() - began > 2.5,
        lambda: told.reports == ["held"] and hold(43),
        lambda: told.reports == ["held", "held"],
    )

    assert engine.begun == ["held", "held"]


def test_stopping_ends_open_runs_and_those_that_wait(
    streams: Path, engine: Engine, told: Told
) -> None:
    """The open one is asked to end, the ones behind it never begin, and it does not take long."""
    names = ["a", "b", "c"]
    declare(streams, *names)
    engine.lag = dict.fromkeys(names, 500)
    engine.ends = dict.fromkeys(names, lambda stop: assert_(stop.wait(30)))
    began = time.monotonic()

    until(following(streams, told, jobs=1), lambda: len(engine.begun) == 1)

    assert engine.begun == ["a"]
    assert time.monotonic() - began < 10


def assert_(fact: bool) -> None:
    """Assert, where only an expression can stand."""
    assert fact


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("merge_engine", ["local", *twins("spark")])
def test_streams_are_followed_side_by_side(
    world: World, spark: SparkSession, told: Told, merge_engine: str
) -> None:
    """Each gets its own records, seqs and ledger; one is refused, and one is locked for a while."""
    given = {"merge_engine": merge_engine}
    world.settings = settings = world.settings.model_copy(update=given)
    with World.made(settings, spark) as other, World.made(settings, spark) as locked:
        worlds = (world, other, locked)
        for each in worlds:
            each.declare(follow={"every_seconds": 1, "min_records": 1})
            each.write_declaration()
            each.send(*(record(number, each.topic) for number in range(200)))
        declare(settings.streams, "refused")
        follow = following(
            settings.streams,
            told,
            settings=settings,
            spark=SharedSpark(lambda backlog: spark),
            every_seconds=0.2,
        )
        paths = StreamPaths.of(locked.topic, settings)
        free = threading.Event()

        def hold() -> None:
            with held_by_python(paths, Holder.me("by hand")):
                assert_(free.wait(300))

        def second_batch() -> bool:
            world.send(record(1, "changed"))
            free.set()
            return True

        holder = threading.Thread(target=hold)
        holder.start()
        code = until(
            follow,
            lambda: {world.topic, other.topic} <= {*told.reports},
            second_batch,
            lambda: told.reports.count(world.topic) >= 2 and locked.topic in told.reports,
        )
        holder.join()

        assert (code, told.failures) == (3, ["refused: TopicMissingError"])
        assert [each["name"] for each in world.rows()[:3]] == [world.topic, "changed", world.topic]
        for each in worlds:
            assert len(each.rows()) == 200
            assert find_problems(each) == ()
            assert [it.seq for it in each.ledger] == list(range(1, len(each.ledger) + 1))


def test_runs_in_one_process_leave_nothing_behind(world: World) -> None:
    """No thread and no Kafka client stays of a run, whenever garbage is collected."""

    def left() -> tuple[int, int]:
        clients = sum(type(each).__name__ == "AdminClient" for each in gc.get_objects())
        return threading.active_count(), clients

    world.send(record(0, "first"))
    world.run()
    gc.collect()
    before = left()
    gc.disable()
    try:
        for number in range(3):
            world.send(record(number, "again"))
            assert world.run().total("read") == 1
        deadline = time.monotonic() + 30
        while left() > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left() <= before
    finally:
        gc.enable()
