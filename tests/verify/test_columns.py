"""What is decoded in columns is what the rule says, record by record, or is called doubtful."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pytest
from confluent_kafka import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.verify.columns.events import Events, RowColumns
from oncelake.ingestion.verify.columns.records import Records, Run, decoding_of
from oncelake.ingestion.verify.fold.classify import Classifier
from oncelake.ingestion.verify.read.topic import record_of
from tests.corpus.json_messages import MESSAGES, SCHEMA
from tests.formats.test_json import EVERYWHERE, mutated
from tests.support.long import IS_LONG
from tests.verify.factories import declared

AT = TopicPartition("t", 0)
# A map is read record by record.
PLAIN = SCHEMA.replace("counts MAP<STRING, INT>, ", "")
QUIETLY: dict[str, Any] = {"deadline": None, "database": None, "derandomize": True}
Event = tuple[Any, ...]


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def messages_of(values: Sequence[bytes | None]) -> list[Message]:
    """Return messages of some values, a second apart."""
    return [
        Message(AT.topic, AT.partition, offset, b"1", value, None, timestamp=(1, 1_000 * offset))
        for offset, value in enumerate(values)
    ]


def events_in(database: duckdb.DuckDBPyConnection) -> dict[int, Event]:
    """Return the events by offset, and forget them."""
    rows = database.execute("SELECT * EXCLUDE (off), off FROM events").fetchall()
    database.execute("DROP TABLE events")
    return {row[-1]: row[:-1] for row in rows}


def in_columns(
    database: duckdb.DuckDBPyConnection, spec: StreamSpec, values: Sequence[bytes | None]
) -> tuple[dict[int, Event], set[int]]:
    """Return the events of records that columns decide about, and the offsets of the others."""
    events = Events(database, RowColumns.of(spec, [AT], epoch=1))
    messages = messages_of(values)
    _, doubtful = Records(spec, decoding_of(spec), events).add([Run(7, 0, messages)])
    return events_in(database), {record.offset for record in doubtful.get(7, [])}


def one_by_one(
    database: duckdb.DuckDBPyConnection, spec: StreamSpec, values: Sequence[bytes | None]
) -> dict[int, Event]:
    """Return the events of the records that the rule takes."""
    events = Events(database, RowColumns.of(spec, [AT], epoch=1))
    result = Classifier(spec).classify(map(record_of, messages_of(values)), seq=7)
    events.judged(result.changes, {AT: 0})
    return events_in(database)


def disagreements(
    database: duckdb.DuckDBPyConnection, spec: StreamSpec, values: Sequence[bytes]
) -> list[bytes]:
    """Return the values that columns take, and the rule takes for another row or none."""
    decided, doubtful = in_columns(database, spec, values)
    judged = one_by_one(database, spec, values)
    assert decided.keys() | doubtful == set(range(len(values)))
    assert not decided.keys() & doubtful
    # A row that is gone has no digest.
    width = -1 if spec.deletes == "hard" else None
    known = {at: event[:width] if event[-2] else event for at, event in judged.items()}
    given = {at: event[:width] if event[-2] else event for at, event in decided.items()}
    return [values[at] for at, event in given.items() if known.get(at) != event]


SPECS = {
    "plain": declared(schema=PLAIN, sequence_by=[]),
    "ordered by time": declared(schema=PLAIN, sequence_by=["at", "ratio"]),
    "rejecting": declared(schema=PLAIN, sequence_by=[], extra_fields="reject"),
    "with deletes": declared(
        schema=PLAIN, sequence_by=[], apply_as_deletes="lower(name) = 'x' OR ok"
    ),
    "marking deletes": declared(
        schema=PLAIN, sequence_by=["big"], apply_as_deletes="ok", deletes="soft"
    ),
    "needing a text": declared(
        schema=PLAIN.replace("name STRING, amount", "name STRING NOT NULL, amount"), sequence_by=[]
    ),
    "keyed by text": declared(schema=PLAIN, keys=["name", "day"], sequence_by=["_timestamp"]),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_hostile_messages_are_read_as_the_rule_reads_them(
    database: duckdb.DuckDBPyConnection, spec: StreamSpec
) -> None:
    """Whatever stands in whatever column."""
    values = [each.value for each in MESSAGES] + EVERYWHERE

    for start in range(0, len(values), 500):
        assert disagreements(database, spec, values[start : start + 500]) == []


@settings(max_examples=40 if IS_LONG else 8, **QUIETLY)
@given(seed=st.integers(0, 2**32), spec=st.sampled_from([*SPECS.values()]))
def test_mutated_messages_are_read_as_the_rule_reads_them(seed: int, spec: StreamSpec) -> None:
    """Whatever is done to a message."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        assert disagreements(database, spec, mutated(random.Random(seed), count=600)) == []


def test_most_sound_messages_are_decided_in_columns(database: duckdb.DuckDBPyConnection) -> None:
    """A proof that doubts everything would be right, and slow."""
    values = [each.value for each in MESSAGES if each.reason is None]

    decided, doubtful = in_columns(database, SPECS["plain"], values)

    assert len(doubtful) < len(decided)


def test_a_name_in_another_case_is_doubtful(database: duckdb.DuckDBPyConnection) -> None:
    """However deep: it may stand for the field that is not there."""
    values = [
        b'{"id": 1, "Name": "x"}',
        b'{"id": 2, "lines": [{"n": 1, "Price": 5}]}',
        b'{"id": 3, "who": {"name": "x", "AGE": 5}}',
        b'{"id": 4, "other": {"NAME": "x"}}',
    ]

    decided, doubtful = in_columns(database, SPECS["plain"], values)

    assert (decided.keys(), doubtful) == ({3}, {0, 1, 2})


def test_letters_of_two_cases_are_doubtful(database: duckdb.DuckDBPyConnection) -> None:
    """An engine may have another lower case for them."""
    values = [b'{"id": 1, "name": "x"}', '{"id": 2, "name": "\u1e9e"}'.encode()]

    decided, doubtful = in_columns(database, SPECS["with deletes"], values)

    assert (decided.keys(), doubtful) == ({0}, {1})


def test_a_zero_has_no_sign_in_an_order(database: duckdb.DuckDBPyConnection) -> None:
    """Of two records at zero, the later is the newer."""
    spec = declared(schema=PLAIN, sequence_by=["ratio"])
    values = [b'{"id": 1, "ratio": 0.0}', b'{"id": 1, "ratio": -0.0}']

    decided, _ = in_columns(database, spec, values)

    assert str(decided[0][1]) == str(decided[1][1]) == "0.0"
