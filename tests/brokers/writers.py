"""Producers that go on whatever happens, and keep a ledger of what they were promised."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

_KEYS = 500
_PARTITIONS = 3
BROKEN = b"{"
_BROKEN_SHARE, _ABORTED = 0.01, 0.1


@dataclass(kw_only=True)
class Writer:
    """One producer in a thread of its own, transactional or idempotent.

    Attributes:
        rate: Records a second.
        acknowledged: Names of the records that the cluster has promised to keep.
        aborted: Names of those that it has promised never to show.
        unknown: Names of those of which an error left open what became of them.
    """

    address: str
    topic: str
    is_transactional: bool
    rate: int
    seed: int
    acknowledged: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    paused: threading.Event = field(default_factory=threading.Event)
    idle: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Begin to write."""
        self._dice, self._count = random.Random(f"{self.topic} {self.seed}"), 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Wait until nothing is on its way any more."""
        self.idle.clear()
        self.paused.set()
        assert self.idle.wait(300), f"the writer of {self.topic} never came to an end"

    def end(self) -> None:
        """End it for good."""
        self._over.set()
        self._thread.join(120)

    def _work(self) -> None:
        producer: Producer | None = None
        while not self._over.is_set():
            began = time.monotonic()
            try:
                # A new one with the name of the last ends what that left open.
                producer = producer or self._begin()
                if not self.paused.is_set():
                    self._write(producer)
                elif producer.flush(1) == 0:
                    self.idle.set()
            except (KafkaException, BufferError):
                producer = None
            time.sleep(max(0.05, 0.25 - (time.monotonic() - began)))

    def _begin(self) -> Producer:
        options = {"bootstrap.servers": self.address, "log_level": 0, "linger.ms": 5}
        name = {"transactional.id": self.topic} if self.is_transactional else {}
        producer = Producer({**options, "enable.idempotence": True, **name})
        if self.is_transactional:
            producer.init_transactions(30)
        return producer

    def _write(self, producer: Producer) -> None:
        """Send a quarter of a second's records, as one transaction if it writes such."""
        if not self.is_transactional:
            self._send(producer)
            producer.poll(0)
            return
        producer.begin_transaction()
        names = self._send(producer)
        try:
            # What is not flushed before an abort never reaches the broker.
            producer.flush(20)
            if self._dice.random() < _ABORTED:
                producer.abort_transaction(30)
                self.aborted |= names
            else:
                producer.commit_transaction(30)
                self.acknowledged |= names
        except KafkaException:
            self.unknown |= names
            raise

    def _send(self, producer: Producer) -> set[str]:
        names = set[str]()
        for _ in range(max(self.rate // 4, 1)):
            self._count += 1
            id, name = self._dice.randrange(_KEYS), f"{self.topic}-{self._count}"
            value = json.dumps({"id": id, "name": name, "at": self._count}).encode()
            producer.produce(
                self.topic,
                value=BROKEN if self._dice.random() < _BROKEN_SHARE else value,
                key=str(id).encode(),
                partition=id % _PARTITIONS,
                headers={"name": name.encode()},
                on_delivery=None if self.is_transactional else partial(self._note, name),
            )
            names.add(name)
        return names

    def _note(self, name: str, error: KafkaError | None, _: Message) -> None:
        (self.unknown if error else self.acknowledged).add(name)
        if error is not None and error.fatal():
            raise KafkaException(error)


def name_of(message: Message) -> str:
    """Return the name that a record has in the ledger."""
    with suppress(TypeError, ValueError):
        return dict(message.headers() or ())["name"].decode()
    return ""
