"""What a run does when Kafka dies, stands still, or is badly connected: it ends in time, whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import oncelake.ingestion.operations.run
import oncelake.ingestion.pipeline.batch
from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.settings import Settings
from tests.support.frail_broker import PATIENCE_SECONDS, FrailBroker
from tests.support.long import twins
from tests.support.world import World, changed, row, transactional

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

# A question may wait for the patience three times over, one after the other, and no more; the rest
# is for a machine on which other workers are busy.
IN_TIME = 3 * PATIENCE_SECONDS + 9

FAULTS: dict[str, Callable[[FrailBroker], None]] = {
    "killed": FrailBroker.kill,
    "frozen": FrailBroker.freeze,
    "stalled": lambda frail: frail.proxy.switch("stall"),
    "reset": lambda frail: frail.proxy.switch("reset"),
    "throttled": lambda frail: frail.proxy.switch("throttle"),
    "cut": lambda frail: frail.proxy.switch("cut", cut_after=100),
}
MOMENTS = {
    "before the plan": (oncelake.ingestion.operations.run, "read_stream"),
    "before the fetch": (oncelake.ingestion.pipeline.batch, "validate"),
    "before the proof": (Kafka, "records_in"),
}


class Outage:
    """A fault that begins when it is told to, and is undone should a run wait for its end."""

    def __init__(self, frail: FrailBroker, fault: str) -> None:
        """Choose whom it hits, and how."""
        self._frail = frail
        self._fault = FAULTS[fault]
        self._began = 0.0
        self._relief = threading.Timer(IN_TIME + 30, frail.mend)

    def begin(self, *_: object) -> None:
        """Begin, once."""
        if not self._began:
            self._began = time.monotonic()
            self._relief.start()
            self._fault(self._frail)

    def begins(self, patch: pytest.MonkeyPatch, moment: str) -> None:
        """Choose the moment."""
        if moment in MOMENTS:
            module, name = MOMENTS[moment]
            honest = getattr(module, name)

            def after_the_fault(*given: Any, **named: Any) -> Any:
                self.begin()
                return honest(*given, **named)

            patch.setattr(module, name, after_the_fault)

    @contextmanager
    def survived(self) -> Iterator[None]:
        """Expect what runs inside to end in time, with an error that says whom to look at."""
        try:
            with pytest.raises(DependencyError) as raised:
                yield
        finally:
            self._relief.cancel()
        took = time.monotonic() - self._began
        print(f"\n{took:.1f} s: {raised.value}")
        assert self._began, "the fault never came"
        assert took < IN_TIME
        assert self._frail.proxied in str(raised.value)
        assert "Next:" in str(raised.value)
        self._frail.mend()


@pytest.mark.parametrize(
    ("moment", "fault"),
    [
        ("between two batches", "killed"),
        *twins(
            ("before the plan", "reset"),
            ("before the fetch", "stalled"),
            ("before the proof", "stalled"),
            ("between two batches", "cut"),
            ("before the plan", "throttled"),
            ("before the fetch", "frozen"),
        ),
    ],
)
def test_a_fault_ends_the_run_in_time_and_loses_nothing(
    frail: FrailBroker,
    frail_world: World,
    monkeypatch: pytest.MonkeyPatch,
    *,
    moment: str,
    fault: str,
) -> None:
    """A run keeps what it has committed, exits 5 in time, and the next one reads the rest."""
    world, outage = frail_world, Outage(frail, fault)
    world.declare(max_offsets_per_trigger=4)
    with_a_marker(world)

    with monkeypatch.context() as patch, outage.survived():
        outage.begins(patch, moment)
        world.run(on_batch=outage.begin)
    committed = world.ledger
    world.send(row(9, "later"), partition=1)
    world.run()

    assert [batch.seq for batch in committed] == ([1] if moment == "between two batches" else [])
    assert world.rows() == [row(1, None), *(row(n, "a") for n in range(2, 5)), row(9, "later")]
    assert (sum(b.counts["read"] for b in world.ledger), world.ledger[0].counts["gaps"]) == (5, 1)
    assert all(batch.balanced for batch in world.ledger)


@pytest.mark.parametrize(
    ("fault", "is_first"), [("killed", True), ("stalled", False), *twins(("throttled", True))]
)
def test_a_fault_before_a_run_needs_no_spark(
    frail: FrailBroker, frail_world: World, *, fault: str, is_first: bool
) -> None:
    """A broker that does not answer is reported without starting anything, at the first run too."""
    world, outage = frail_world, Outage(frail, fault)
    if not is_first:
        world.run()

    with outage.survived():
        outage.begin()
        world.run(spark=lambda _: pytest.fail("Spark was asked for"))


@pytest.mark.parametrize(
    ("address", "why"),
    [("127.0.0.1:1", "refused"), ("nosuchhost.invalid:9092", "resolve")],
    ids=["nobody listens", "no such name"],
)
def test_a_wrong_address_is_named(settings: Settings, address: str, why: str) -> None:
    """Nobody listening, and a name that nobody knows, are told apart, in time."""
    wrong = changed(settings, kafka=address, kafka_timeout_seconds=2)
    began = time.monotonic()

    with pytest.raises(DependencyError) as raised:
        Kafka(wrong).topics("orders", ["orders"])

    assert time.monotonic() - began < 10
    for part in (address, why, "ONCELAKE_KAFKA"):
        assert part in str(raised.value)


def test_a_wrong_login_names_the_user_and_not_the_password(settings: Settings) -> None:
    """Where a broker wants no login, or another, the error says as whom it was asked."""
    login = {
        "kafka_security_protocol": "SASL_PLAINTEXT",
        "kafka_sasl_mechanism": "PLAIN",
        "kafka_sasl_username": "loader",
        "kafka_sasl_password": "canary-5ecret",
        "kafka_timeout_seconds": 2,
    }
    wrong = changed(settings, **login)

    with pytest.raises(DependencyError) as raised:
        Kafka(wrong).topics("orders", ["orders"])

    assert "as user 'loader'" in str(raised.value)
    assert "canary-5ecret" not in str(raised.value)


def with_a_marker(world: World) -> None:
    """Send four records and, between them, the marker of a transaction: five offsets."""
    producer = transactional(world)
    producer.begin_transaction()
    producer.produce(world.topic, b'{"id": 1}', partition=0)
    producer.commit_transaction(30)
    world.wait_for_end(2)
    world.send(*(row(n, "a") for n in range(2, 5)))
