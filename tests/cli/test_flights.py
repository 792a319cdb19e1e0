"""The demo's data: the same seed tells the same story, and the story is the data's."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import islice

import pytest

from oncelake.ingestion.cli.demo.flights import KEYS, Flight, Message, load, messages_of, plain
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.verify.read.record import Record
from tests.verify.factories import Folded

SPEC = StreamSpec.model_validate(
    {
        "name": "flights",
        "topic": "flights",
        "schema": "year INT NOT NULL, month INT NOT NULL, day INT NOT NULL,"
        "carrier STRING NOT NULL, flight INT NOT NULL, origin STRING NOT NULL,"
        "status STRING NOT NULL, sched_dep_time INT, dep_time INT, arr_time INT,"
        "updated_at TIMESTAMP NOT NULL",
        "keys": KEYS,
        "sequence_by": "updated_at",
        "apply_as_deletes": "status = 'cancelled'",
    }
)


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    """Return the first days of the year."""
    return list(islice(load(1), 5_000))


@pytest.fixture(scope="module")
def messages(flights: list[Flight]) -> list[Message]:
    """Return what these flights were told as."""
    return list(messages_of(flights, seed=7))


def test_the_same_seed_gives_the_same_messages(flights: list[Flight]) -> None:
    """Two tellings with one seed are equal, and another seed tells another story."""
    again = list(messages_of(flights[:300], seed=7))

    assert again == list(messages_of(flights[:300], seed=7))
    assert again != list(messages_of(flights[:300], seed=8))


def test_messages_come_in_the_order_of_sending(messages: list[Message]) -> None:
    """Timestamps never step back, though what they tell may."""
    sent = [message.timestamp_ms for message in messages]

    assert sent == sorted(sent)


def test_a_flight_never_says_two_things_at_one_time(messages: list[Message]) -> None:
    """Within a flight, ``updated_at`` tells its events apart and puts them in their order."""
    events = defaultdict(set)
    for message in messages:
        if message.trait != "malformed":
            assert message.value is not None
            events[message.key].add((json.loads(message.value)["updated_at"], message.event))

    stories = Counter(tuple(event for _, event in sorted(known)) for known in events.values())

    assert set(stories) <= {
        ("scheduled", "departed", "arrived"),
        ("scheduled", "departed", "diverted"),
        ("scheduled", "cancelled"),
    }


def test_some_messages_are_repeated_late_and_malformed(messages: list[Message]) -> None:
    """Every oddity occurs, and most messages have none."""
    traits = Counter(message.trait for message in messages)

    assert traits.keys() == {"on time", "repeated", "late", "malformed"}
    assert traits["on time"] > 0.9 * len(messages)


def test_exactly_the_malformed_messages_are_bad(
    flights: list[Flight], messages: list[Message]
) -> None:
    """Folded, the messages are the flights that flew, and nothing malformed is let through."""
    records = [
        Record("flights", 0, at, message.timestamp_ms, message.key, message.value)
        for at, message in enumerate(messages)
    ]

    folded = Folded(records, spec=SPEC)

    flown = {tuple(each[name] for name in KEYS) for each in flights if each["dep_time"] is not None}
    assert {row[: len(KEYS)] for row in folded.rows} == flown
    assert folded.deleted == len(flights) - len(flown)
    assert len(folded.bad) == sum(m.trait == "malformed" for m in messages)


def test_plain_inserts_produce_each_flight_once() -> None:
    """The benchmark's messages have distinct keys and say ``arrived``."""
    first = list(islice(plain(), 1_000))

    assert len({message.key for message in first}) == 1_000
    assert {message.event for message in first} == {"arrived"}
