"""What a producer without mercy sends: late, repeated, dead, broken and aborted records.

Seeded: the same seed sends the same records. Keys are Zipf-distributed, so that a few are written
over and over while most are rare.
"""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

from confluent_kafka import Producer

from oncelake.ingestion.settings import Settings

KEYS = 200
GONE = "gone"
_BROKEN = (
    b"",
    b"{",
    b'{"id": "no number"}',
    b'{"id": null, "name": "no key", "at": 1}',
    b'{"id": 1, "at": "not when"}',
    b"\xff\xfe",
    b"[1]",
)


@dataclass(kw_only=True)
class Traffic:
    """A transactional producer for one topic.

    Attributes:
        settings: Where Kafka is.
        topic: Where to send.
        partitions: How many the topic has; a key always goes to the same.
        seed: What makes it repeatable.
        aborted, broken, tombstones, deletes, late: Shares of what is sent.
        sent: How many records of each kind were sent so far.
    """

    settings: Settings
    topic: str
    partitions: int
    seed: int
    aborted: float = 0.1
    broken: float = 0.05
    tombstones: float = 0.03
    deletes: float = 0.02
    late: float = 0.05
    sent: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Open the first transaction's producer."""
        self._dice = random.Random(self.seed)
        self._weights = list(accumulate(1 / (rank + 1) for rank in range(KEYS)))
        self._clock = 0
        self._id = f"traffic-{uuid.uuid4().hex[:8]}"
        self.begin_again()

    def begin_again(self) -> None:
        """Take a new producer, which aborts what the last one left open; for after a failure."""
        self._producer = Producer(
            {
                "bootstrap.servers": self.settings.bootstrap_servers(),
                "transactional.id": self._id,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(60)

    def send(self, records: int, *, at_once: int = 25) -> None:
        """Send so many records in transactions of ``at_once``, some of which are aborted."""
        for start in range(0, records, at_once):
            self._transaction(min(at_once, records - start))

    def _transaction(self, records: int) -> None:
        self._producer.begin_transaction()
        kinds = Counter(self._one() for _ in range(records))
        # What is not flushed before an abort never reaches the broker, and leaves no gap there.
        self._producer.flush(30)
        if self._dice.random() < self.aborted:
            self._producer.abort_transaction(30)
            self.sent["aborted"] += records
        else:
            self._producer.commit_transaction(30)
            self.sent += kinds

    def _one(self) -> str:
        """Send one record, and say of which kind it was."""
        dice, self._clock = self._dice, self._clock + 1
        (id,) = dice.choices(range(KEYS), cum_weights=self._weights)
        key = json.dumps({"id": id}).encode()
        kind = dice.random()
        if kind < self.broken:
            return self._put(id, key, dice.choice(_BROKEN), "broken")
        kind -= self.broken
        if kind < self.tombstones:
            return self._put(id, key, None, "tombstones")
        kind -= self.tombstones
        name = GONE if kind < self.deletes else f"{self._clock}"
        is_late = dice.random() < self.late
        at = self._clock - dice.randrange(1, 500) if is_late else self._clock
        value = json.dumps({"id": id, "name": name, "at": at}).encode()
        return self._put(
            id, key, value, "deletes" if name == GONE else "late" if is_late else "on time"
        )

    def _put(self, id: int, key: bytes, value: bytes | None, kind: str) -> str:
        self._producer.produce(self.topic, value=value, key=key, partition=id % self.partitions)
        return kind
