"""The records: what ``make bench`` sends, made up by rule, so that every run sends the same."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oncelake.ingestion.local.produce import create, produce
from oncelake.ingestion.settings import Settings

ORDERS: Final = (
    "id BIGINT NOT NULL, customer STRING, city STRING, status STRING, quantity INT, price DOUBLE, "
    "paid BOOLEAN, updated_at TIMESTAMP NOT NULL"
)
WIDE: Final = "id BIGINT NOT NULL, updated_at TIMESTAMP NOT NULL, " + ", ".join(
    f"c{number:03} {('BIGINT', 'STRING', 'DOUBLE')[number % 3]}" for number in range(498)
)
LONG: Final = "id BIGINT NOT NULL, text STRING, updated_at TIMESTAMP NOT NULL"
PARTITIONS: Final = 3
DELETED: Final = "deleted"
_STATUS: Final = ("ordered", "packed", "shipped", "delivered")
_CITIES: Final = ("Amsterdam", "Barcelona", "Kobenhavn", "Edinburgh")
_2026: Final = 1_767_225_600_000


class Message(NamedTuple):
    """A message to send."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = _2026


@dataclass
class Topic:
    """A topic, and what was sent to it so far: every record is newer than those before.

    Attributes:
        ids: How many distinct keys it has; they are counted from 0.
        sent: How many records it has, which is also the time of the next one in milliseconds.
    """

    settings: Settings
    name: str
    ids: int = field(default=0, init=False)
    sent: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        create(self.settings, self.name, partitions=PARTITIONS)

    def insert(self, count: int) -> None:
        """Send records of so many new keys."""
        produce(self.settings, self.name, self.next_inserts(count))

    def next_inserts(self, count: int) -> Iterator[Message]:
        """Return the records of so many new keys, for somebody else to send."""
        first, at = self.ids, self.sent
        self.ids += count
        self.sent += count
        return (_order(first + number, at + number) for number in range(count))

    def change(self, updates: int, *, keys: int, inserts: int) -> None:
        """Send so many updates of ``keys`` keys from all over the table, and some new keys."""
        step = max(1, self.ids // keys)
        changed = (_order(n % keys * step, self.sent + n) for n in range(updates))
        self._send(changed)
        self.insert(inserts)

    def mix(self, count: int) -> None:
        """Send inserts, updates, deletes (1 of 10), late (1 of 10) and bad records (1 of 50)."""
        self.ids = max(1, count // 3)
        self._send(self._mixed(self.sent + number) for number in range(count))

    def lengthen(self, count: int) -> None:
        """Send records of 2 KB, whose text compresses to half of it."""
        self._send(_long(number, self.sent + number) for number in range(count))

    def widen(self, count: int) -> None:
        """Send records of 500 columns."""
        self._send(_wide(number, self.sent + number) for number in range(count))

    def _mixed(self, number: int) -> Message:
        key = number * 7919 % self.ids
        if number % 50 == 7:
            return Message(b"%d" % key, b"no JSON")
        if number % 10 == 3:
            return _order(key, max(0, number - self.ids * 2))
        return _order(key, number, DELETED if number % 10 == 5 else None)

    def _send(self, messages: Iterable[Message]) -> None:
        self.sent += produce(self.settings, self.name, messages)


def _order(key: int, number: int, status: str | None = None) -> Message:
    text = (
        f'{{"id": {key}, "customer": "customer {key:013}", "city": "{_CITIES[number % 4]}", '
        f'"status": "{status or _STATUS[number // 7 % 4]}", "quantity": {number % 9 + 1}, '
        f'"price": {number % 100_000 / 8}, "paid": {"true" if number % 3 else "false"}, '
        f'"updated_at": "{_moment(number)}"}}'
    )
    return Message(b"%d" % key, text.encode())


def _long(key: int, number: int) -> Message:
    text = random.Random(number).randbytes(950).hex()
    return Message(
        b"%d" % key,
        f'{{"id": {key}, "text": "{text}", "updated_at": "{_moment(number)}"}}'.encode(),
    )


def _wide(key: int, number: int) -> Message:
    cells = ", ".join(
        f'"c{n:03}": ' + (f"{number + n}", f'"text {number} {n}"', f"{n / 8}")[n % 3]
        for n in range(498)
    )
    text = f'{{"id": {key}, "updated_at": "{_moment(number)}", {cells}}}'
    return Message(b"%d" % key, text.encode())


def _moment(milliseconds: int) -> str:
    seconds, thousandths = divmod(milliseconds, 1000)
    minutes, second = divmod(seconds, 60)
    return f"2026-01-01T{minutes // 60:02}:{minutes % 60:02}:{second:02}.{thousandths:03}Z"
