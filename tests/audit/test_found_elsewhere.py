"""Bugs of other loaders, each made again by a small one; `docs/found/` has a page of each.

A loader here reads a real topic and writes a real table, with the one fault of its page.
The test types the command of the page, and compares what it prints with the page.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from deltalake import write_deltalake

from oncelake.ingestion.settings import Settings
from tests.audit.pipelines import source
from tests.audit.test_command import type_audit
from tests.support.world import ROOT

pytestmark = pytest.mark.kafka

PAGES = ROOT / "docs" / "found"
SHOWN = re.compile(r"^```\n\$ oncelake (audit .+?)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SENT = dt.datetime.now(dt.UTC) - dt.timedelta(days=2)

Value = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """A record as a loader gets it; without a value it is a tombstone."""

    offset: int
    key: str
    value: Value | None


# Makes the rows of a table from the records of a topic.
Load = Callable[[list[Record]], Iterable[Value]]


@dataclass(frozen=True)
class Bug:
    """What was sent, and how a loader goes wrong.

    Attributes:
        sent: Keys and values, in their order; groups of them are transactions.
        load: The loader.
        schema: Its table.
        aborted: Which of the groups, if any, is aborted.
        reads: The isolation level that the loader reads with.
    """

    sent: list[Any]
    load: Load
    schema: pa.Schema
    aborted: int | None = None
    reads: str = "read_committed"


def orders(*totals: str) -> list[tuple[str, str | None]]:
    """Return an order for each total, of a key of its own."""
    return [
        (str(id), f'{{"id": {id}, "status": "paid", "total": {total}}}')
        for id, total in enumerate(totals, 1)
    ]


ORDERS = pa.schema({"id": pa.int64(), "status": pa.string(), "total": pa.decimal128(20, 8)})
PLACED = pa.schema([*ORDERS, ("kafka_partition", pa.int32()), ("kafka_offset", pa.int64())])


def newest(records: Iterable[Record]) -> list[Value]:
    """Upsert by key, as a loader without a fault does."""
    rows = dict[str, Value]()
    for each in records:
        rows.pop(each.key, None)
        if each.value is not None:
            rows[each.key] = each.value
    return list(rows.values())


def again_after_a_crash(records: list[Record]) -> list[Value]:
    """Append batches of two; commit the second, die before its offsets are, and append it again."""
    first, second, third = records[:2], records[2:4], records[4:]
    return [
        {**(each.value or {}), "kafka_partition": 0, "kafka_offset": each.offset}
        for each in (*first, *second, *second, *third)
    ]


def without_tombstones(records: list[Record]) -> list[Value]:
    """Skip records that have no value."""
    return newest(each for each in records if each.value is not None)


def last_to_arrive(records: list[Record]) -> list[Value]:
    """Let whatever comes later win, without a look at the time in the record."""
    return newest(records)


def offsets_first(records: list[Record]) -> list[Value]:
    """Commit offsets while rows wait in memory; die once, and go on behind them."""
    table, waiting = list[Record](), list[Record]()
    for at, each in enumerate(records):
        waiting.append(each)
        if at == 3:
            waiting.clear()
        elif len(waiting) == 2:
            table, waiting = table + waiting, []
    return newest(table + waiting)


def through_a_float(records: list[Record]) -> list[Value]:
    """Convert numbers by way of a double, which has 53 bits."""
    rows = newest(records)
    return [{**row, "total": round(Decimal(float(row["total"])), 6)} for row in rows]


def in_the_zone_of_the_server(records: list[Record]) -> list[Value]:
    """Write a moment as the local time of the machine."""
    zone = ZoneInfo("Asia/Shanghai")
    return [
        {**row, "paid_at": dt.datetime.fromisoformat(row["paid_at"]).astimezone(zone).isoformat()}
        for row in newest(records)
    ]


def with_defaults(records: list[Record]) -> list[Value]:
    """Put the column's default where the record has null."""
    return [
        {name: "unknown" if value is None else value for name, value in row.items()}
        for row in newest(records)
    ]


def in_step_with_offsets(records: list[Record]) -> list[Value]:
    """Expect each record at the offset behind the last, and drop those that are elsewhere."""
    expected, taken = 0, list[Record]()
    for each in records:
        if each.offset == expected:
            taken.append(each)
            expected += 1
    return newest(taken)


def without_what_timed_out(records: list[Record]) -> list[Value]:
    """Give a record up when its conversion fails for the moment, and say nothing."""
    return newest(each for each in records if each.offset != 2)


BUGS = {
    "duplicates-after-a-retry": Bug(
        sent=orders("10.50", "20", "30", "40", "50"), load=again_after_a_crash, schema=PLACED
    ),
    "lost-tombstones": Bug(
        sent=[*orders("10.50", "20", "30"), ("2", None), *orders("11")],
        load=without_tombstones,
        schema=ORDERS,
    ),
    "late-records": Bug(
        sent=[
            ("1", '{"id": 1, "status": "paid", "updated_at": "2026-03-01T12:00:00Z"}'),
            ("2", '{"id": 2, "status": "paid", "updated_at": "2026-03-01T12:05:00Z"}'),
            ("1", '{"id": 1, "status": "new", "updated_at": "2026-03-01T11:00:00Z"}'),
        ],
        load=last_to_arrive,
        schema=pa.schema({"id": pa.int64(), "status": pa.string(), "updated_at": pa.string()}),
    ),
    "offsets-before-rows": Bug(
        sent=orders("10.50", "20", "30", "40", "50", "60"), load=offsets_first, schema=ORDERS
    ),
    "shortened-decimals": Bug(
        sent=orders("10.50", "12345678901.12345678"), load=through_a_float, schema=ORDERS
    ),
    "shifted-times": Bug(
        sent=[
            ("1", '{"id": 1, "paid_at": "2026-03-01T12:00:00Z"}'),
            ("2", '{"id": 2, "paid_at": "2026-03-01T20:30:00Z"}'),
        ],
        load=in_the_zone_of_the_server,
        schema=pa.schema({"id": pa.int64(), "paid_at": pa.timestamp("us")}),
    ),
    "default-for-null": Bug(
        sent=[("1", '{"id": 1, "coupon": "SPRING"}'), ("2", '{"id": 2, "coupon": null}')],
        load=with_defaults,
        schema=pa.schema({"id": pa.int64(), "coupon": pa.string()}),
    ),
    "aborted-records": Bug(
        sent=[orders("10.50"), orders("99", "99", "99"), orders("10.50", "20")[1:]],
        load=newest,
        schema=ORDERS,
        aborted=1,
        reads="read_uncommitted",
    ),
    "gaps-in-offsets": Bug(
        sent=[orders("10.50", "20"), orders("1", "2", "30")[2:], orders("11")],
        load=in_step_with_offsets,
        schema=ORDERS,
    ),
    "a-record-given-up": Bug(
        sent=orders("10.50", "20", "30", "40"), load=without_what_timed_out, schema=ORDERS
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_another_loader_is_found_as_its_page_shows(
    kafka_address: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The command of the page prints what the page has, and exits with 1."""
    [(command, shown)] = SHOWN.findall((PAGES / f"{name}.md").read_text())
    bug, table = BUGS[name], Path(settings.lake) / "orders"
    with source(kafka_address, partitions=1) as made:
        send(bug, kafka_address, made.topic)
        save(bug.load(read(kafka_address, made.topic, bug.reads)), table, bug.schema)
        words = command.replace("--topic orders", f"--topic {made.topic}")

        result = type_audit(
            settings, monkeypatch, *words.replace("lake/orders", str(table)).split()[1:]
        )

    said = result.stdout.replace(str(table), "lake/orders").replace(made.topic, "orders")
    assert (result.exit_code, said) == (1, shown)


def test_every_page_of_a_bug_has_its_loader() -> None:
    """No page shows what no test has seen."""
    assert {page.stem for page in PAGES.glob("*.md")} == {"index", *BUGS}


@pytest.mark.parametrize("name", ["lost-tombstones", "gaps-in-offsets"])
def test_a_loader_without_the_bug_passes(
    kafka_address: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is the fault that is found, and not the way in which it is made."""
    bug, table = BUGS[name], Path(settings.lake) / "orders"
    with source(kafka_address, partitions=1) as made:
        send(bug, kafka_address, made.topic)
        save(newest(read(kafka_address, made.topic, "read_committed")), table, bug.schema)
        words = ("--topic", made.topic, "--table", str(table), "--keys", "id")

        assert type_audit(settings, monkeypatch, *words).exit_code == 0


def send(bug: Bug, address: str, topic: str) -> None:
    """Send what the loader will read, in transactions where the bug asks for some."""
    groups = bug.sent if isinstance(bug.sent[0], list) else [bug.sent]
    options = {"bootstrap.servers": address, "log_level": 0}
    if is_transactional := groups is bug.sent:
        options["transactional.id"] = topic
    producer = Producer(options)
    if is_transactional:
        producer.init_transactions(30)
    for at, group in enumerate(groups):
        if is_transactional:
            producer.begin_transaction()
        for key, value in group:
            data = None if value is None else value.encode()
            producer.produce(topic, data, key.encode(), 0, timestamp=int(SENT.timestamp() * 1000))
        assert producer.flush(30) == 0
        if is_transactional:
            end = producer.abort_transaction if at == bug.aborted else producer.commit_transaction
            end(30)


def read(address: str, topic: str, level: str) -> list[Record]:
    """Read all records of the topic's only partition."""
    options = {"bootstrap.servers": address, "group.id": "loader", "log_level": 0}
    reader = {"isolation.level": level, "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**options, **reader})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = list[Record]()
    while (message := consumer.poll(30)) is not None and message.error() is None:
        offset, key, value = message.offset(), message.key(), message.value()
        assert offset is not None
        assert key is not None
        row = None if value is None else json.loads(value, parse_float=Decimal)
        found.append(Record(offset, key.decode(), row))
    consumer.close()
    return found


def save(rows: Iterable[Value], table: Path, schema: pa.Schema) -> None:
    """Write a Delta table, as any tool would."""
    written = [{each.name: _as(each.type, row.get(each.name)) for each in schema} for row in rows]
    write_deltalake(table, pa.Table.from_pylist(written, schema))


def _as(type_: pa.DataType, value: Any) -> Any:
    if pa.types.is_decimal(type_):
        return Decimal(value)
    if pa.types.is_timestamp(type_):
        return dt.datetime.fromisoformat(value).replace(tzinfo=None)
    return value
