"""A log that lost its end and grew again is refused, however far it has grown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import InvalidSpecError, TopicTruncatedError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.operations.decisions import accept, adopt_topic
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.status.lag import LagReader
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.settings import Settings
from tests.support.disk import BrokerOnDisk
from tests.support.proof import find_problems, prove
from tests.support.world import World, row, settings_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# How each stream is read.
READ: dict[str, dict[str, Any]] = {
    "local": {"merge_engine": "local"},
    "spark": {"merge_engine": "spark"},
    "transformed": {"declared": {"where": "id >= 0"}},
    "equal": {},
    "uncut": {},
}
# How many records come behind the cut: more than were lost, as many, and one.
GROWN = {"local": 8, "spark": 8, "transformed": 8, "equal": 5, "uncut": 1}


@pytest.fixture(scope="module")
def worlds(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Iterator[dict[str, World]]:
    """Streams that have read 15 records, on a broker whose disk of then had ten.

    Of ``uncut`` none is lost. Behind the cut others came, and the broker was started once more.
    """
    disk = BrokerOnDisk(folder=tmp_path_factory.mktemp("disk"))
    lakes = tmp_path_factory.mktemp("lakes")
    address = disk.start()
    with ExitStack() as topics:
        made = {
            name: topics.enter_context(_world(settings_in(lakes / name, address), spark, **how))
            for name, how in READ.items()
        }
        for world in made.values():
            _send(world, "kept", 10)
        disk.keep()
        for name, world in made.items():
            # The second run finds the last record of the first, whoever has read it.
            for count in (4, 1):
                _send(world, "lost", 0 if name == "uncut" else count)
                world.run()
        disk.put_back()
        for name, world in made.items():
            _send(world, "new", GROWN[name])
        disk.restart()
        yield made
        disk.restart()
    disk.remove()
    shutil.rmtree(lakes)


@contextmanager
def _world(settings: Settings, spark: SparkSession, **how: Any) -> Iterator[World]:
    declared = how.pop("declared", {})
    with World.made(settings.model_copy(update=how), spark) as world:
        world.declare(**declared)
        yield world


def _send(world: World, name: str, count: int) -> None:
    """Send records with a key and headers, one of them without a value."""
    for n in range(count):
        world.producer.produce(
            world.topic,
            key=f"{n}".encode(),
            value=json.dumps(row(n, name)).encode(),
            headers=[("of", name.encode()), ("none", None)],
            partition=0,
        )
    assert world.producer.flush(30) == 0


@pytest.fixture
def cut(worlds: dict[str, World], tmp_path: Path) -> Callable[[str], World]:
    """Return a stream with a lake of the test's own."""
    return lambda name: worlds[name].copied_to(tmp_path / "lake", state=tmp_path / "state")


@pytest.mark.parametrize("name", ["local", "spark", "transformed", "equal"])
def test_a_log_that_grew_again_is_refused(name: str, cut: Callable[[str], World]) -> None:
    """Run, status and proof name partition, both records and the ways on; nothing is written."""
    world = cut(name)
    before = world.ledger

    last = r"-0: the last record read was at offset 14 \(.+Z\); offset 14 holds another, of .+Z"
    with pytest.raises(TopicTruncatedError, match=last) as refused:
        world.run()

    for way in ("rebuild", "adopt-topic", "accept"):
        assert f"oncelake {way} {world.name}" in refused.value.remedy
    assert world.ledger == before
    declared = DeclaredStream(name=world.name, path=Path("x.yaml"), spec=world.spec, error=None)
    status = StatusReader(world.settings).read_status(declared)
    assert [problem.type for problem in status.problems] == ["TopicTruncatedError"]
    with pytest.raises(TopicTruncatedError, match=r"batch 1 read a record of .* at offset 13"):
        prove(world)


def test_a_stream_without_news_notices_another_leader(
    cut: Callable[[str], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has grown to just where it was is left to a run; an intact log is looked at once."""
    asked: list[int] = []
    ask = Kafka.first_records

    def counted(kafka: Kafka, *places: Any) -> Any:
        asked.append(len(places[0]))
        return ask(kafka, *places)

    equal = cut("equal")
    reader = LagReader(equal.settings)

    assert reader.read([equal.spec]) == {equal.name: None}

    world = equal.copied_to(equal.settings.state / "lake")
    adopt_topic(world.spec, world.settings, run_id="me")
    world.run()
    reader = LagReader(world.settings)
    monkeypatch.setattr(Kafka, "first_records", counted)
    for _ in range(2):
        assert reader.read([world.spec]) == {world.name: {world.topic: 0}}
    assert sum(asked) == 0


def test_an_intact_log_is_never_refused(cut: Callable[[str], World]) -> None:
    """A broker that was started again, from whatever disk, has what was read, and more."""
    world = cut("uncut")
    with pytest.raises(InvalidSpecError, match="nothing to accept"):
        accept(world.spec, world.settings, reason="why", run_id="me")

    report = world.run()

    assert (report.total("read"), report.total("log_unproven")) == (1, 0)
    assert not any("not proven" in notice for notice in report.notices)
    assert find_problems(world) == ()


def test_to_accept_goes_on_where_the_table_stands(cut: Callable[[str], World]) -> None:
    """Records of the new log below that are never read, and the proof says what was accepted."""
    world = cut("local")

    accepted = accept(world.spec, world.settings, reason="a test", run_id="me")
    report = world.run()

    assert (accepted.counts["cut"], accepted.is_red) == (1, False)
    assert report.total("read") == 3
    names = {each["id"]: each["name"] for each in world.rows()}
    # The new log's ids 5 to 7 stand at offsets 15 to 17; 0 to 4 are those of the log that is gone.
    assert {names[n] for n in (5, 6, 7)} == {"new"}
    assert {names[n] for n in (0, 1, 2, 3)} == {"lost"}
    verdict = prove(world)
    assert verdict.holds, verdict.differences
    assert any("Kafka had lost records" in limit for limit in verdict.limits)
    assert world.run().batches == ()


def test_to_adopt_reads_the_topic_from_its_start(cut: Callable[[str], World]) -> None:
    """Each record that Kafka holds wins over the rows of the log that is gone."""
    world = cut("local")

    adopt_topic(world.spec, world.settings, run_id="me")
    report = world.run()

    assert report.total("read") == 18
    assert {each["name"] for each in world.rows() if each["id"] < 8} == {"new"}
    assert prove(world).holds


def test_a_rebuild_holds_what_kafka_holds(cut: Callable[[str], World]) -> None:
    """No row is left of a record that Kafka has lost."""
    world = cut("spark")

    world.rebuild()

    assert {each["name"] for each in world.rows() if each["id"] < 8} == {"new"}
    assert find_problems(world) == ()


def test_at_least_once_adopts_by_itself(cut: Callable[[str], World]) -> None:
    """A stream that would rather read twice needs nobody."""
    world = cut("local")
    world.declare(delivery="at_least_once")

    report = world.run()

    assert report.epoch == 2
    assert any("delivery: at_least_once" in notice for notice in report.notices)
    assert {each["name"] for each in world.rows() if each["id"] < 8} == {"new"}


def test_a_rewind_goes_back_to_what_was_last_read_then(cut: Callable[[str], World]) -> None:
    """Behind a rewind the record of then is looked for, which the log has lost as well."""
    world = cut("local")
    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="me")

    with pytest.raises(TopicTruncatedError, match="offset 13"):
        world.run()
