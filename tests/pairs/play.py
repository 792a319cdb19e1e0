"""Plays a pair: sends its records, runs its streams, and compares them with the oracle."""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oncelake.ingestion.declaration.files.loader import load_streams
from oncelake.ingestion.errors import IngestionError
from oncelake.ingestion.verify.verify import verify
from tests.pairs.oracle import Outcome, outcome
from tests.pairs.plan import Feature, Message, Plan, Row, plan_of
from tests.pairs.records import bytes_of, messages_of
from tests.pairs.statements import in_python
from tests.support.arrow_source import ArrowSession, without_spark
from tests.support.statements import statements_without_spark
from tests.support.topics_in_memory import Cluster
from tests.support.world import World, settings_in, transactional


@dataclass(kw_only=True)
class Play:
    """A pair's streams while they run.

    Attributes:
        plan: What the pair comes to.
        sent: What was sent so far.
        streams: A world of each stream, by its table; of one alone by no name.
        lost: Records that Kafka holds no longer.
    """

    plan: Plan
    world: World
    dice: random.Random
    sent: list[Message] = field(default_factory=list)
    streams: dict[str, World] = field(default_factory=dict)
    lost: list[Message] = field(default_factory=list)
    runs: int = 0

    @property
    def topics(self) -> list[str]:
        """The names of its topics."""
        return [f"{self.world.topic}{suffix}" for suffix in self.plan.topics]

    def declare(self) -> None:
        """Write the file, and load it."""
        folder = self.world.settings.streams
        folder.mkdir(parents=True, exist_ok=True)
        content = self.plan.declaration(self.topics)
        (folder / f"{self.world.topic}.yaml").write_text(json.dumps(content))
        specs = {each.name: each.require_spec() for each in load_streams(folder)}
        self.streams = {
            name.removeprefix(self.world.topic).removeprefix("_"): replace(
                self.world,
                declared={
                    "keys": [],
                    "topic": None,
                    **spec.model_dump(by_alias=True, exclude_unset=True),
                },
            )
            for name, spec in specs.items()
        }

    def send(self, messages: Sequence[Message]) -> None:
        """Send records, and note where they land."""
        for message in messages:
            key, value = bytes_of(self.plan, message)
            message.topic = f"{self.world.topic}{message.topic}"
            at = Cluster.by_address[self.world.settings.kafka.address or ""].topic(message.topic)
            message.offset = at.partitions[message.partition].end
            self.world.producer.produce(
                message.topic,
                value=value,
                key=key,
                partition=message.partition,
                timestamp=message.time_ms,
                headers=[(n, v and v.encode()) for n, v in message.headers.items()] or None,
            )
        self.sent += messages

    def run(self) -> None:
        """Run each stream once."""
        for world in self.streams.values():
            report = world.run(run_id=f"run-{self.runs}")
            assert report.is_balanced, report
            self.runs += 1

    def send_aborted(self, messages: Sequence[Message]) -> None:
        """Send records in a transaction that is aborted."""
        producer, usual = transactional(self.world), self.world.producer
        producer.begin_transaction()
        self.world.producer = producer
        self.send(messages)
        producer.abort_transaction()
        self.world.producer = usual

    def ends(self, topic: str) -> dict[int, int]:
        """Return the end of each partition of a topic."""
        cluster = Cluster.by_address[self.world.settings.kafka.address or ""]
        return {n: each.end for n, each in enumerate(cluster.topic(topic).partitions)}

    def forget(self) -> None:
        """Delete all records of the topics, as retention would."""
        for topic in self.topics:
            for partition, end in self.ends(topic).items():
                replace(self.world, topic=topic).forget_before(partition, end)

    def expect(self, error: type[Exception], action: Any) -> None:
        """Make sure that something is refused."""
        try:
            action()
        except error:
            return
        raise AssertionError(f"{error.__name__} was not raised")

    def refuse(self, error: type[Exception], message: Message) -> None:
        """Make sure that the run of each stream is refused that reads a record."""
        for name, world in self.streams.items():
            if self.plan.is_of(name, message):
                self.expect(error, world.run)

    def act(self, moment: int | None) -> None:
        """Do what the pair does at a moment."""
        for act in self.plan.acts.get(moment, ()):
            act(self)


def play(features: Sequence[Feature], seed: int, folder: Path) -> list[str]:
    """Play features together, and return what is wrong."""
    dice = random.Random(f"{seed} {' + '.join(each.name for each in features)}")
    plan = plan_of(*features)
    with _playing(plan, dice, folder) as it:
        batches = messages_of(plan, dice)
        it.act(0)
        it.declare()
        for batch, messages in enumerate(batches):
            if batch:
                it.act(batch)
            it.send(messages)
            it.run()
        it.act(None)
        return [each for name in it.streams for each in problems(it, name)]


@contextmanager
def _playing(plan: Plan, dice: random.Random, folder: Path) -> Iterator[Play]:
    cluster = Cluster()
    settings = settings_in(folder, cluster.address)
    with without_spark() as session, statements_without_spark():
        assert isinstance(session, ArrowSession)
        world = World.over(f"t{uuid.uuid4().hex[:8]}", settings, session)  # type: ignore[arg-type]
        it = Play(plan=plan, world=world, dice=dice)
        for topic in it.topics:
            cluster.create(topic, plan.partitions, {})
        yield it


def problems(it: Play, stream: str) -> Iterator[str]:
    """Tell where a stream differs from the oracle, or its proof does not hold."""
    world, plan = it.streams[stream], replace(it.plan, stream=stream)
    due = outcome(plan, [each for each in it.sent if plan.is_of(stream, each)])
    found = _found_rows(world, due)
    missing, more = _difference(due.rows, found)
    yield from (f"{stream} lacks {row}" for row in missing)
    yield from (f"{stream} has {row}" for row in more)
    bad = _found_bad(world)
    for place in sorted({*bad, *due.bad}):
        reasons: set[str | None] = {*due.bad.get(place, {None})}
        if "stale" in reasons:
            reasons.add(None)
        if bad.get(place) not in reasons:
            yield f"{stream}: {place} is {bad.get(place)}, due {due.bad.get(place)}"
    counts = _found_counts(world)
    wrong = {n: (counts.get(n, 0), due.counts[n]) for n in plan.counted}
    wrong = {n: both for n, both in wrong.items() if both[0] != both[1]}
    if wrong:
        yield f"{stream} counts (found, due) {wrong}"
    yield from (f"{stream}: {each}" for each in _unproven(world, plan))


def _found_rows(world: World, due: Outcome) -> list[Row]:
    names = list(due.rows[0]) if due.rows else [column.name for column in world.spec.columns][:1]
    rows = [row for batch in world.paths.table.scan(names) for row in batch.to_pylist()]
    return [{name: _plain(name, value) for name, value in row.items()} for row in rows]


def _plain(name: str, value: Any) -> Any:
    """Return a value of the table as the oracle has it."""
    if isinstance(value, dt.datetime):
        return round(value.timestamp() * 1000)
    if name == "total" and value is not None:
        return int(value)
    if name == "_extra_fields" and value is not None:
        return _text_of_variant(value)
    return value


def _text_of_variant(value: Any) -> Any:
    """Return the one field that the pairs write beside the declared ones."""
    if isinstance(value, str):
        return json.loads(value)
    assert value["metadata"].endswith(b"surprise")
    return {"surprise": value["value"][-1:].decode()}


def _difference(due: list[Row], found: list[Row]) -> tuple[list[Row], list[Row]]:
    more = list(found)
    missing = []
    for row in due:
        if row in more:
            more.remove(row)
        else:
            missing.append(row)
    return missing, more


def _found_bad(world: World) -> Mapping[tuple[str, int, int], str]:
    """Return the reasons of the records that wait in quarantine, by their places."""
    if not world.paths.quarantine.exists():
        return {}
    return {
        (row["_topic"], row["_partition"], row["_offset"]): row["reason"]
        for row in world.quarantined()
        if row["redriven_seq"] is None
    }


def _found_counts(world: World) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for row in world.ledger:
        for name, count in row.counts.items():
            counts[name] = counts.get(name, 0) + count
    return counts


def _unproven(world: World, plan: Plan) -> Iterator[str]:
    """Tell what the proof finds, and what an idle run does."""
    idle = world.run(run_id="idle")
    if idle.batches or idle.lag:
        yield f"an idle run wrote {len(idle.batches)} batches, and leaves {idle.lag} offsets"
    verdict = verify(world.spec, world.settings, apply_transformation=in_python)
    is_whole = plan.is_proven_whole
    if (is_whole and (not verdict.holds or verdict.limits)) or verdict.differences:
        yield f"verify: {verdict.headline}; {'; '.join(verdict.limits)}"
    yield from (f"verify: {each}" for each in verdict.differences)


def refusal(features: Sequence[Feature], folder: Path) -> str | None:
    """Return why the loader refuses features together; ``None`` where it takes them."""
    plan = plan_of(*features)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "t.yaml"
    file.write_text(json.dumps(plan.declaration([f"t{suffix}" for suffix in plan.topics])))
    try:
        for each in load_streams(folder):
            each.require_spec()
    except IngestionError as error:
        return str(error).replace(f"{file}:1: ", "")
    return None
