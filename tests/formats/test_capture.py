"""What Debezium said of a real PostgreSQL becomes the tables that it held, value by value."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any
from zlib import crc32

import pytest

from oncelake.ingestion.declaration.types import SqlType
from tests.support.long import only_long, twins
from tests.support.proof import find_problems
from tests.support.world import ROOT, World

RECORDING = ROOT / "tests" / "captures"
EVERYTHING = """
    id BIGINT NOT NULL, small SMALLINT, whole INT, big BIGINT, exact DECIMAL(38, 10),
    price DECIMAL(5, 2), loose DECIMAL(38, 6), flag BOOLEAN, near FLOAT, nearer DOUBLE,
    label STRING, code VARCHAR(20), padded STRING, blob BINARY, born DATE, at TIMESTAMP_NTZ,
    at_millis TIMESTAMP_NTZ, seen TIMESTAMP, clock BIGINT, ref STRING, doc STRING, feeling STRING,
    tags ARRAY<STRING>, numbers ARRAY<INT>, days ARRAY<DATE>, amounts ARRAY<DECIMAL(12, 2)>,
    moments ARRAY<TIMESTAMP_NTZ>, zoned ARRAY<TIMESTAMP>, long_text STRING,
    long_blob BINARY, added DECIMAL(20, 3)
"""
PARTIAL = """
    shelf STRING NOT NULL, place INT NOT NULL, count INT, long_text STRING, long_blob BINARY,
    tags ARRAY<STRING>, lsn BIGINT
"""
TIMESTAMPS = {"at": "micros", "at_millis": "millis", "moments": "micros"}


def recorded(name: str) -> list[dict[str, Any]]:
    """Read one file of the recording."""
    lines = gzip.decompress((RECORDING / f"{name}.jsonl.gz").read_bytes()).splitlines()
    return [json.loads(line) for line in lines]


def events(table: str, *, schemas: bool) -> list[dict[str, Any]]:
    """Return the keys and values that Debezium sent of a table, in the order of its log."""
    found = recorded("with_schemas" if schemas else "without")
    return [event for event in found if event["table"] == table]


def deliver(world: World, log: list[dict[str, Any]]) -> None:
    """Produce events, each key always to the same partition, and run."""
    for event in log:
        # A truncate has no key, and may lie anywhere.
        partition = crc32((event["key"] or "").encode()) % 2
        world.producer.produce(world.topic, event["value"], event["key"], partition)
    assert world.producer.flush(30) == 0
    world.run()


def source_rows(world: World, table: str) -> list[dict[str, Any]]:
    """Return the rows that the database held in the end, in the declared types."""
    types = world.spec.types
    rows = [
        {name: None if text is None else typed(types[name], text) for name, text in row.items()}
        for row in recorded(table)
    ]
    return sorted(rows, key=lambda row: [str(row[key]) for key in world.spec.keys])


def typed(type: SqlType, text: Any) -> Any:
    """Return what PostgreSQL wrote as text as a value of a declared type."""
    if type.word == "ARRAY":
        item = type.parts["element"]
        return [None if each is None else typed(item, each) for each in text]
    return READ[type.word](text)


def whole(text: str) -> int:
    """Return a whole number, or a time of the day in microseconds."""
    if ":" not in text:
        return int(text)
    hours, minutes, seconds = text.split(":")
    return (int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000)


def single(text: str) -> float:
    """Return a number of 32 bits."""
    (nearest,) = struct.unpack("<f", struct.pack("<f", float(text)))
    return float(nearest)


READ: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("SMALLINT", "INT", "BIGINT"), whole),
    **dict.fromkeys(("STRING", "VARCHAR"), str),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_NTZ"), dt.datetime.fromisoformat),
    "BOOLEAN": {"true": True, "false": False}.__getitem__,
    "FLOAT": single,
    "DOUBLE": float,
    "DECIMAL": Decimal,
    "BINARY": base64.b64decode,
    "DATE": dt.date.fromisoformat,
}


def exactly(value: Any) -> Any:
    """Return what equals only the same: NaN equals itself, and -0.0 is not 0.0."""
    if isinstance(value, list):
        return [exactly(each) for each in value]
    if isinstance(value, dict):
        return {name: exactly(each) for name, each in value.items()}
    return value.hex() if isinstance(value, float) else value


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("schemas", "runs"),
    [
        pytest.param(False, 1, id="without"),
        *twins(
            pytest.param(False, 2, id="without, in two runs"),
            pytest.param(True, 1, id="with schemas"),
        ),
    ],
)
@only_long
def test_a_table_of_a_real_database_is_followed(world: World, schemas: bool, runs: int) -> None:
    """Whatever its types, and whatever happened to it: each value is the database's."""
    how = {"schemas": True} if schemas else {"timestamps": TIMESTAMPS}
    world.declare(schema=EVERYTHING, format={"type": "debezium", **how})
    log = events("everything", schemas=schemas)
    size = -(-len(log) // runs)
    for start in range(0, len(log), size):
        deliver(world, log[start : start + size])

    assert exactly(world.rows()) == exactly(source_rows(world, "everything"))
    assert [row.counts["quarantined"] for row in world.ledger] == [0] * runs
    assert find_problems(world) == ()


@pytest.mark.parametrize("schemas", [True, *twins(False)], ids=lambda with_: f"schemas {with_}")
def test_what_a_real_database_did_not_send_is_kept(world: World, schemas: bool) -> None:
    """A value for which it sent a placeholder is the row's; half of the log shows it best."""
    world.declare(
        schema=PARTIAL,
        keys=["shelf", "place"],
        format={"type": "debezium", "schemas": schemas, "columns": {"lsn": "source.lsn"}},
        sequence_by=["lsn"],
    )
    log = events("partial", schemas=schemas)
    deliver(world, log[:8])
    first, *_, last = world.rows()
    deliver(world, log[8:])

    assert (first["count"], first["long_text"][:4], first["long_blob"][:2]) == (1, "t1t1", b"\1\1")
    assert (last["count"], last["long_text"], last["long_blob"]) == (4, "l", b"\4")
    assert first["tags"] == last["tags"]
    found = [{name: row[name] for name in row if name != "lsn"} for row in world.rows()]
    assert found == source_rows(world, "partial")
    assert [row.counts["quarantined"] for row in world.ledger] == [0, 0]
    assert [row.counts.get("columns_kept", 0) for row in world.ledger] == [6, 0]
    assert find_problems(world) == ()


@pytest.mark.spark
@pytest.mark.parametrize(
    "schemas",
    [pytest.param(False, id="without"), *twins(pytest.param(True, id="with schemas"))],
)
def test_a_table_that_was_emptied_is_followed_from_there(world: World, schemas: bool) -> None:
    """A truncate waits for a person, and says what to write: then the table is the database's."""
    world.declare(
        schema="id INT NOT NULL, label STRING, lsn BIGINT NOT NULL",
        format={"type": "debezium", "schemas": schemas, "columns": {"lsn": "source.lsn"}},
        sequence_by=["lsn"],
    )
    deliver(world, events("emptied", schemas=schemas))
    (truncate,) = world.quarantined()
    before = [row["id"] for row in world.rows()]

    position = truncate["detail"].removeprefix("op t at lsn ")
    world.declare(where=f"lsn > {position}")
    world.rebuild()

    found = [{name: row[name] for name in row if name != "lsn"} for row in world.rows()]
    assert (truncate["reason"], before) == ("truncate", [1, 2, 3, 4, 5, 6])
    assert found == source_rows(world, "emptied")
    assert [row["id"] for row in found] == [2, 3]
    assert find_problems(world) == ()


@pytest.mark.parametrize("schemas", [False, True], ids=["without", "with schemas"])
def test_a_table_is_emptied_where_the_database_was(world: World, schemas: bool) -> None:
    """In a topic of one partition, which has the order of the database's log."""
    one = replace(world, topic=world.add_topic("one"))
    options = {"type": "debezium", "schemas": schemas, "on_truncate": "apply"}
    one.declare(schema="id INT NOT NULL, label STRING", format=options)
    for event in events("emptied", schemas=schemas):
        one.producer.produce(one.topic, event["value"], event["key"], 0)
    assert one.producer.flush(30) == 0
    one.run()

    assert one.rows() == source_rows(one, "emptied")
    assert [row.kind for row in one.ledger][-2:] == ["truncate", "ingest"]
    assert find_problems(one) == ()
