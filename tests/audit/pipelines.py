"""A topic, and tables that other tools make of it: sound, or with one fault in them."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from oncelake.ingestion.settings import Settings

PARTITIONS = 3
KEYS = 60
ROUNDS = 5
COLUMNS = ("id", "name", "total", "is_paid", "changed_at", "note")
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "name": pa.string(),
        "total": pa.decimal128(12, 2),
        "is_paid": pa.bool_(),
        "changed_at": pa.timestamp("us", "UTC"),
        "note": pa.string(),
    }
)
PLACE = pa.schema({"kafka_partition": pa.int32(), "kafka_offset": pa.int64()})
HUDI = ("_hoodie_commit_time", "_hoodie_record_key", "_hoodie_partition_path")


@dataclass(frozen=True)
class Event:
    """A record; its row is null where it deletes."""

    key: str
    row: dict[str, Any] | None
    partition: int
    offset: int
    sent: dt.datetime

    def value(self) -> bytes | None:
        """Write it as JSON, as a producer does."""
        if self.row is None:
            return None
        shown = {**self.row, "total": float(self.row["total"])}
        shown["changed_at"] = self.row["changed_at"].isoformat()
        return json.dumps(shown).encode()


@dataclass
class Source:
    """A topic, and what was sent to it."""

    topic: str
    producer: Producer
    events: list[Event] = field(default_factory=list)

    def send(self, key: str, row: dict[str, Any] | None, partition: int, sent: dt.datetime) -> None:
        """Send a record."""
        offset = sum(each.partition == partition for each in self.events)
        event = Event(key, row, partition, offset, sent)
        self.events.append(event)
        self.producer.produce(
            self.topic,
            value=event.value(),
            key=key.encode(),
            partition=partition,
            timestamp=int(sent.timestamp() * 1000),
        )

    def flush(self) -> None:
        """Wait until all of them are there."""
        assert self.producer.flush(30) == 0

    @property
    def rows(self) -> dict[str, Event]:
        """The newest record of each key that has a row."""
        newest = {each.key: each for each in self.events}
        return {key: each for key, each in newest.items() if each.row is not None}


@contextmanager
def source(address: str, *, partitions: int = PARTITIONS, **config: str) -> Iterator[Source]:
    """Make an empty topic, and delete it in the end."""
    options = {"bootstrap.servers": address, "log_level": 0}
    admin, topic = AdminClient(options), f"a{uuid.uuid4().hex[:12]}"
    settings = {"retention.ms": "-1", **config}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result()
    yield Source(topic, Producer({**options, "linger.ms": 1, "enable.idempotence": True}))
    admin.delete_topics([topic])[topic].result()


def row(number: int, version: int, sent: dt.datetime) -> dict[str, Any]:
    """Return one version of a row."""
    return {
        "id": f"Order-{number}",
        "name": f"Name of {number}, version {version}",
        "total": Decimal(number * 100 + version) / 100 + Decimal("0.37"),
        "is_paid": bool(version % 2),
        "changed_at": sent,
        "note": None if number % 4 else f"note {version}",
    }


def fill(source: Source) -> None:
    """Send some versions of each row, a minute after another; some are deleted, one comes again."""
    moment = dt.datetime.now(dt.UTC).replace(microsecond=250_000) - dt.timedelta(days=2)
    for version in range(ROUNDS):
        for number in range(KEYS):
            moment += dt.timedelta(minutes=1)
            # Whether a key is gone before the last records come.
            is_delete = number % 10 == 7 and version == 3
            stays_gone = number % 20 == 7 and version > 3
            if not stays_gone:
                state = None if is_delete else row(number, version, moment)
                source.send(f"Order-{number}", state, number % PARTITIONS, moment)
    source.flush()


def catalog_of_others(folder: Path) -> dict[str, str]:
    """Return the variables by which pyiceberg finds a catalog in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "TYPE": "sql",
        "URI": f"sqlite:///{folder}/others.db",
        "WAREHOUSE": f"file://{folder}/warehouse",
    }
    return {f"PYICEBERG_CATALOG__DEFAULT__{name}": value for name, value in options.items()}


Rows = list[dict[str, Any]]
# Writes rows as a table; returns what an audit is asked for.
Write = Callable[[Rows, Settings], dict[str, Any]]


def _arrow(rows: Rows, schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(
        [{name: each[name] for name in schema.names} for each in rows], schema
    )


def connect_append(rows: Rows, settings: Settings) -> dict[str, Any]:
    """As Kafka Connect does: each record a row, with where it comes from; in Delta."""
    path = Path(settings.lake) / f"connect-{uuid.uuid4().hex[:6]}"
    schema = pa.schema([*SCHEMA, *PLACE])
    for start in range(0, len(rows), 100):
        write_deltalake(path, _arrow(rows[start : start + 100], schema), mode="append")
    if not rows:
        write_deltalake(path, _arrow([], schema))
    return {"table": str(path), "mode": "append"}


def delta_merge(rows: Rows, settings: Settings) -> dict[str, Any]:
    """A MERGE by hand, in micro-batches, into a partitioned table of Delta."""
    path = Path(settings.lake) / f"merge-{uuid.uuid4().hex[:6]}"
    write_deltalake(path, _arrow(rows[:20]), partition_by=["is_paid"])
    for start in range(20, len(rows), 100):
        (
            DeltaTable(path)
            .merge(_arrow(rows[start : start + 100]), "s.id = t.id AND false", "s", "t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )
    return {"table": str(path), "keys": ["id"]}


def hudi_delta(rows: Rows, settings: Settings) -> dict[str, Any]:
    """Rows with Hudi's own columns, and lower-case names of all."""
    path = Path(settings.lake) / f"hudi-{uuid.uuid4().hex[:6]}"
    found = _arrow(rows)
    for name in HUDI:
        found = found.append_column(name, pa.array(["20260101"] * len(rows), pa.string()))
    write_deltalake(path, found)
    return {"table": str(path), "keys": ["id"]}


def flink_iceberg(rows: Rows, settings: Settings) -> dict[str, Any]:
    """An Iceberg table, in the catalog of pyiceberg's configuration, written by its own appends."""
    del settings
    name = f"shop.orders_{uuid.uuid4().hex[:6]}"
    found = Config().get_catalog_config("default") or {}
    with closing(load_catalog("default", **found)) as catalog:
        catalog.create_namespace_if_not_exists("shop")
        table = catalog.create_table(name, SCHEMA)
        for start in range(0, len(rows), 40):
            table.append(_arrow(rows[start : start + 40]))
    return {"table": f"iceberg:{name}", "keys": ["id"]}


def postgres_insert(rows: Rows, settings: Settings) -> dict[str, Any]:
    """A table of PostgreSQL, of a script of somebody's."""
    assert settings.postgres is not None
    name = f"orders_{uuid.uuid4().hex[:6]}"
    with psycopg.connect(settings.postgres.get_secret_value()) as connection:
        connection.execute(
            f"CREATE TABLE {name} (id text, name text, total numeric, is_paid boolean, "
            "changed_at timestamptz, note text, loaded_at timestamptz DEFAULT now())"
        )
        for each in rows:
            connection.execute(
                f"INSERT INTO {name} ({', '.join(COLUMNS)}) VALUES (%s, %s, %s, %s, %s, %s) "
                "ON CONFLICT DO NOTHING",
                [each[name] for name in COLUMNS],
            )
    return {"table": f"postgres:public.{name}", "keys": ["id"]}


def sound(source: Source, *, is_append: bool) -> Rows:
    """Return the rows that a table should have, in the order of their records."""
    events = source.events if is_append else sorted(source.rows.values(), key=lambda e: e.sent)
    return [
        {**each.row, "kafka_partition": each.partition, "kafka_offset": each.offset}
        for each in events
        if each.row is not None
    ]


# Where the record is that a fault is about, by the row's key; none where no record says so.
Found = tuple[str, int | None, int | None]


def _found(row: dict[str, Any]) -> Found:
    return row["id"], row["kafka_partition"], row["kafka_offset"]


def _drop(rows: Rows, chosen: Callable[[int, dict[str, Any]], bool]) -> list[Found]:
    gone = [each for at, each in enumerate(rows) if chosen(at, each)]
    rows[:] = [each for each in rows if each not in gone]
    return [_found(each) for each in gone]


def _change(at: int, **values: Any) -> Callable[[Rows, Source], list[Found]]:
    def change(rows: Rows, source: Source) -> list[Found]:
        del source
        changed = {
            name: value(rows[at][name]) if callable(value) else value
            for name, value in values.items()
        }
        assert any(rows[at][name] != value for name, value in changed.items())
        rows[at] = {**rows[at], **changed}
        return [_found(rows[at])]

    return change


def _missing(
    chosen: Callable[[int, dict[str, Any]], bool],
) -> Callable[[Rows, Source], list[Found]]:
    return lambda rows, source: _drop(rows, chosen)


def _double(*places: int) -> Callable[[Rows, Source], list[Found]]:
    def double(rows: Rows, source: Source) -> list[Found]:
        del source
        again = [rows[at] for at in places]
        rows.extend(again)
        return [_found(each) for each in again]

    return double


def _stale(number: int, version: int) -> Callable[[Rows, Source], list[Found]]:
    """Put an older version of a row in its place."""

    def put(rows: Rows, source: Source) -> list[Found]:
        key = f"Order-{number}"
        older = [each for each in source.events if each.key == key][version]
        at = next(at for at, each in enumerate(rows) if each["id"] == key)
        assert older.row is not None
        rows[at] = {**rows[at], **older.row}
        return [_found(rows[at])]

    return put


def _raise_from_the_dead(number: int, version: int) -> Callable[[Rows, Source], list[Found]]:
    """Put in a row that is deleted."""

    def put(rows: Rows, source: Source) -> list[Found]:
        events = [each for each in source.events if each.key == f"Order-{number}"]
        older, last = events[version], events[-1]
        assert older.row is not None
        assert last.row is None
        rows.append({**older.row, "kafka_partition": 0, "kafka_offset": -1})
        return [(last.key, last.partition, last.offset)]

    return put


def _extra(key: str) -> Callable[[Rows, Source], list[Found]]:
    def put(rows: Rows, source: Source) -> list[Found]:
        rows.append({**rows[3], "id": key, "kafka_partition": 99, "kafka_offset": 5})
        return [(key, None, None)]

    return put


def _in_another_case(rows: Rows, source: Source) -> list[Found]:
    rows[5] = {**rows[5], "id": rows[5]["id"].upper()}
    return [(rows[5]["id"], None, None)]


def _hours(hours: int) -> Callable[[dt.datetime], dt.datetime]:
    return lambda moment: moment + dt.timedelta(hours=hours)


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with rows; ``plant`` changes them, and says where."""

    kind: str
    plant: Callable[[Rows, Source], list[Found]]


# Of every table.
COMMON = {
    "first missing": Fault("missing", _missing(lambda at, _: at == 0)),
    "one missing": Fault("missing", _missing(lambda at, _: at == 20)),
    "partition missing": Fault("missing", _missing(lambda _, row: row["kafka_partition"] == 1)),
    "range missing": Fault("missing", _missing(lambda at, _: 10 <= at < 25)),
    "one doubled": Fault("doubled", _double(7)),
    "some doubled": Fault("doubled", _double(1, 4, 9, 16)),
    "one tripled": Fault("doubled", _double(11, 11)),
    "extra": Fault("extra", _extra("Order-4711")),
    "of another topic": Fault("extra", _extra("Refund-3")),
}
# Where a row is known by its key, or its place.
OF_VALUES = {
    "null": Fault("different", _change(12, name=None)),
    "not null": Fault("different", _change(1, note="")),
    "rounded": Fault("different", _change(13, total=lambda value: round(value, 0))),
    "truncated": Fault("different", _change(14, name=lambda text: text[:7])),
    "padded": Fault("different", _change(14, name=lambda text: f"{text} ")),
    "another zone": Fault("different", _change(15, changed_at=_hours(-5))),
    "without fractions": Fault(
        "different", _change(16, changed_at=lambda at: at.replace(microsecond=0))
    ),
    "flipped": Fault("different", _change(17, is_paid=lambda flag: not flag)),
    "sign lost": Fault("different", _change(18, total=lambda value: -value)),
}
OF_UPSERTS = {
    "stale": Fault("different", _stale(3, 2)),
    "oldest": Fault("different", _stale(8, 0)),
    "tombstone lost": Fault("extra", _raise_from_the_dead(7, 2)),
    "resurrected": Fault("extra", _raise_from_the_dead(27, 0)),
}


def faults(*, is_append: bool) -> dict[str, Fault]:
    """Return the faults that a table of this kind can have."""
    return {**COMMON, **OF_VALUES, **({} if is_append else OF_UPSERTS)}


WRITERS: dict[str, Write] = {
    "connect": connect_append,
    "merge": delta_merge,
    "hudi": hudi_delta,
    "flink": flink_iceberg,
    "postgres": postgres_insert,
}
