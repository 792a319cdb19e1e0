"""Change events of PostgreSQL and MySQL become the rows that the database holds."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pytest

from oncelake.ingestion.declaration.formats import DebeziumOptions
from oncelake.ingestion.formats.debezium import _JsonEnvelopes
from oncelake.ingestion.formats.decoder import Encoded
from tests.support.debezium import MISSING, field, mysql, postgres, unscaled
from tests.support.decoding import decoded, disagreements, opened, row_type
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.registry import Subject
from tests.support.world import World

DDL = (
    "id BIGINT NOT NULL, name STRING, total DECIMAL(12, 2), any_number DECIMAL(20, 4), born DATE, "
    "millis TIMESTAMP_NTZ, micros TIMESTAMP, zoned TIMESTAMP, ratio DOUBLE, blob BINARY, "
    "tags ARRAY<STRING>, lsn BIGINT NOT NULL, seen TIMESTAMP, op STRING"
)
COLUMNS = {"lsn": "source.lsn", "seen": "ts_ms", "op": "op"}
FULL: dict[str, Any] = {
    "id": 1,
    "name": "é",
    "total": unscaled("-1234.50", 2),
    "any_number": {"scale": 3, "value": unscaled("7.125", 3)},
    "born": 19_782,
    "millis": 1_709_210_096_789,
    "micros": 1_709_210_096_789_012,
    "zoned": "2024-02-29T12:34:56.789012Z",
    "ratio": 0.1,
    "blob": "AP8=",
    "tags": ["a", None],
}
MOMENT = dt.datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=dt.UTC)


def deliver(world: World, value: bytes | None, **key: Any) -> None:
    """Produce one event under its key."""
    raw_key = json.dumps(key).encode() if key else None
    world.producer.produce(world.topic, value=value, key=raw_key, partition=0)
    assert world.producer.flush(30) == 0


@pytest.mark.parametrize("schemas", [True, *twins(False)], ids=lambda with_: f"schemas {with_}")
def test_a_postgres_table_is_followed(world: World, schemas: bool) -> None:
    """Snapshot, insert, update, delete, changed key, truncate: the table is the database's."""
    bare = {"timestamps": {"millis": "millis", "micros": "micros"}}
    options = {"schemas": True} if schemas else bare
    world.declare(schema=DDL, format={"type": "debezium", "columns": COLUMNS, **options})
    log = postgres(schemas=schemas)
    events = [
        log.event("r", None, FULL, lsn=100, snapshot="first"),
        log.event("c", None, {**FULL, "id": 2, "name": "b", "ratio": "NaN"}, lsn=110),
        log.event("c", None, {**FULL, "id": 3}, lsn=110),
        log.event("u", {**FULL, "id": 2}, {**FULL, "id": 2, "name": None}, lsn=120),
        log.event("u", None, {**FULL, "id": 1, "name": MISSING}, lsn=130),
        log.event("u", None, {**FULL, "id": 1, "total": "not base64!"}, lsn=131),
        log.event("u", None, {**FULL, "any_number": {"scale": -900, "value": "AQ=="}}, lsn=132),
        log.event("u", None, {**FULL, "any_number": {"scale": 2**31, "value": "AQ=="}}, lsn=133),
        log.event("u", None, FULL, lsn=134).replace(b"0.1", b"1e400"),
        log.event("u", None, FULL, lsn=135).replace(b"0.1", b"1e99999999999999999999"),
        log.event("t", None, None, lsn=140),
        log.event("m", None, None, lsn=141),
        log.event("x", None, FULL, lsn=142),
        log.event("c", None, None, lsn=143),
        b'{"id": 1}',
        b"[]",
        b'{"op": "c", "op": "d"}',
    ]
    for event in events:
        deliver(world, event)
    deliver(world, log.event("d", {"id": 3, "name": "", "total": MISSING}, None, lsn=150), id=3)
    deliver(world, None, id=3)
    deliver(world, log.event("d", {**FULL, "id": 2}, None, lsn=160), id=2)
    deliver(world, None, id=2)
    deliver(world, log.event("c", None, {**FULL, "id": 22, "added": 1}, lsn=160), id=22)
    world.run()

    first, moved = world.rows()
    assert (first["id"], moved["id"], moved["lsn"], moved["op"]) == (1, 22, 160, "c")
    assert (first["name"], first["total"]) == ("é", Decimal("-1234.50"))
    assert (first["any_number"], first["born"]) == (Decimal("7.1250"), dt.date(2024, 2, 29))
    assert first["millis"] == MOMENT.replace(microsecond=789000, tzinfo=None)
    assert (first["micros"], first["zoned"]) == (MOMENT, MOMENT)
    assert (first["ratio"], first["blob"], first["tags"]) == (0.1, b"\x00\xff", ["a", None])
    assert first["seen"] == dt.datetime.fromtimestamp(1709210000.123, dt.UTC)
    assert (first["lsn"], world.ledger[-1].counts["columns_kept"]) == (130, 1)
    assert [each["reason"] for each in world.quarantined()] == [
        *["type_mismatch"] * 4,
        "malformed_debezium",
        "truncate",
        "not_a_change",
        *["malformed_debezium"] * 5,
    ]
    counts = world.ledger[-1].counts
    assert (counts["ignored"], counts["extra_fields"]) == (2, 1)
    assert find_problems(world) == ()


MYSQL = [
    {**field("id", "int32"), "optional": False},
    field("price", "bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "3"}),
    field("at", "int64", "io.debezium.time.Timestamp"),
    field("tiny", "int16"),
]


def test_a_mysql_table_is_followed_by_its_log(world: World) -> None:
    """The binlog's file and position order the records, however late they are delivered."""
    world.declare(
        schema="id INT NOT NULL, price DECIMAL(10, 3), at TIMESTAMP_NTZ, tiny TINYINT, "
        "file STRING, pos BIGINT",
        format={
            "type": "debezium",
            "schemas": True,
            "columns": {"file": "source.file", "pos": "source.pos"},
        },
        sequence_by=["file", "pos"],
    )
    log = mysql(MYSQL, schemas=True)

    def at(row: int, price: str) -> dict[str, Any]:
        return {"id": row, "price": unscaled(price, 3), "at": 1_709_210_096_789, "tiny": -1}

    late = log.event("c", None, at(1, "1.000"), file="binlog.000002", pos=900)
    deliver(world, log.event("u", at(1, "1.000"), at(1, "2.500"), file="binlog.000003", pos=4))
    deliver(world, late)
    deliver(world, log.event("c", None, at(2, "3.125"), file="binlog.000003", pos=90))
    deliver(world, log.event("d", at(2, "3.125"), None, pos=95), id=2)
    deliver(world, None, id=2)
    deliver(world, log.event("u", None, at(2, "9.999"), pos=93))
    world.run()

    (row,) = world.rows()
    assert (row["id"], row["price"], row["pos"], row["tiny"]) == (1, Decimal("2.500"), 4, -1)
    assert find_problems(world) == ()


@pytest.mark.spark
def test_a_delete_that_where_would_leave_out_is_applied(world: World) -> None:
    """Filtered out, it would leave its row in the table."""
    world.declare(
        schema="id BIGINT NOT NULL, name STRING", format="debezium", where="name = 'kept'"
    )
    log = postgres(schemas=False)
    world.send(log.event("c", None, {"id": 1, "name": "kept"}, lsn=1))
    world.run()
    world.send(log.event("d", {"id": 1, "name": "left out"}, None, lsn=2))
    world.run()

    assert world.rows() == []
    assert world.ledger[-1].counts["deleted"] == 1
    assert find_problems(world) == ()


def test_a_delete_without_an_image_takes_its_key_from_kafka(world: World) -> None:
    """A table without replica identity still says by the record's key which row is gone."""
    world.declare(
        schema="id BIGINT, name VARCHAR(3), ratio DOUBLE", format="debezium", extra_fields="reject"
    )
    log = postgres(schemas=False)
    for id in (1, 2, 3):
        deliver(world, log.event("c", None, {"id": id, "name": "x", "ratio": math.pi}), id=id)
    deliver(world, log.event("d", None, None), id=1)
    deliver(world, log.event("d", {"id": None, "name": "?"}, None), id=2)
    deliver(world, log.event("d", None, None))
    deliver(world, log.event("c", None, {"id": 4, "name": "long", "ratio": 1}), id=4)
    deliver(world, log.event("c", None, {"id": 4, "added": 1}), id=4)
    world.run()

    assert [each["id"] for each in world.rows()] == [3]
    reasons = [each["reason"] for each in world.quarantined()]
    assert reasons == ["missing_key", "type_mismatch", "unknown_field"]
    assert find_problems(world) == ()


def connect(type: str, semantic: str, **more: Any) -> dict[str, Any]:
    """A type of Avro that Kafka Connect has named."""
    return {"type": type, "connect.version": 1, "connect.name": semantic, **more}


VARIABLE = connect(
    "record",
    "io.debezium.data.VariableScaleDecimal",
    name="VariableScaleDecimal",
    namespace="io.debezium.data",
    fields=[{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
)
DECIMAL = connect(
    "bytes",
    "org.apache.kafka.connect.data.Decimal",
    logicalType="decimal",
    precision=12,
    scale=2,
)
AVRO_ROW = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}]
    + [
        {"name": name, "type": ["null", type], "default": None}
        for name, type in {
            "name": "string",
            "total": DECIMAL,
            "any_number": VARIABLE,
            "born": connect("int", "io.debezium.time.Date"),
            "millis": connect("long", "io.debezium.time.Timestamp"),
            "micros": connect("long", "io.debezium.time.MicroTimestamp"),
            "zoned": connect("string", "io.debezium.time.ZonedTimestamp"),
            "blob": "bytes",
        }.items()
    ],
}
AVRO_SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [{"name": "lsn", "type": ["null", "long"], "default": None}],
}
AVRO_ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "s.public.t",
    "fields": [
        {"name": "before", "type": ["null", AVRO_ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": AVRO_SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


def test_envelopes_may_be_avro(registered: World, subject: Subject) -> None:
    """The registry's schemas say what a schema block would: the same rows, the same deletes."""
    registered.declare(
        schema=DDL.replace(", ratio DOUBLE", "").replace(", tags ARRAY<STRING>", ""),
        format={"type": "debezium", "encoding": "avro", "columns": COLUMNS},
    )
    row = {
        "id": 1,
        "name": "é",
        "total": Decimal("-1234.50"),
        "born": 19_782,
        "any_number": {"scale": 3, "value": (7125).to_bytes(2)},
        "blob": b"\0",
        "millis": FULL["millis"],
        "micros": FULL["micros"],
        "zoned": FULL["zoned"],
    }
    events = [
        ("c", None, row),
        ("c", None, {**row, "id": 2}),
        ("u", None, {**row, "name": MISSING}),
        ("u", None, {**row, "blob": MISSING.encode()}),
        ("d", {"id": 2, "name": ""}, None),
        ("t", None, None),
        ("c", None, None),
    ]
    envelopes = [
        {"before": b, "after": a, "op": op, "ts_ms": 1709210000123, "source": {"lsn": n}}
        for n, (op, b, a) in enumerate(events)
    ]
    registered.send(*subject.avro(AVRO_ENVELOPE, *envelopes), b"{}", None)
    registered.run()

    (found,) = registered.rows()
    assert (found["name"], found["lsn"], found["born"]) == ("é", 3, dt.date(2024, 2, 29))
    assert found["blob"] == b"\0"
    assert (found["total"], found["any_number"]) == (Decimal("-1234.50"), Decimal("7.1250"))
    assert (found["micros"], found["zoned"], found["millis"].year) == (MOMENT, MOMENT, 2024)
    assert [each["reason"] for each in registered.quarantined()] == [
        "truncate",
        "malformed_debezium",
        "not_framed",
    ]
    assert find_problems(registered) == ()


PLAIN = "the option is `decimals: string`"
DECIMALS: dict[str, tuple[str, str, Decimal | None]] = {
    "base64": ("precise", "AN6t", Decimal("570.05")),
    "base64 of a negative number": ("precise", unscaled("-1234.50", 2), Decimal("-1234.50")),
    "zero": ("precise", "AA==", Decimal(0)),
    "digits": ("precise", "1234", None),
    "more digits": ("precise", "12345678", None),
    "digits that are no base64": ("precise", "7", None),
    "a point": ("precise", "12.50", None),
    "a sign": ("precise", "-123", None),
    "a plus": ("precise", "+123", None),
    "an exponent": ("precise", "1E+3", None),
    "an exponent without a sign": ("precise", "12e3", None),
    "a long exponent": ("precise", "1E123456", None),
    "not a number": ("precise", "NaN", None),
    "nothing": ("precise", "", None),
    "zeros in front": ("precise", "AAAB", None),
    "a sign in front of a positive number": ("precise", "AAE=", None),
    "a sign in front of a negative number": ("precise", "//8=", None),
    "a zero that a sign needs": ("precise", "AIA=", Decimal("1.28")),
    "a sign that is needed": ("precise", "/38=", Decimal("-1.29")),
    "an exponent without digits": ("precise", "E123", Decimal("12691.75")),
    "two exponents": ("precise", "1e2e3e4e", Decimal("-462584274006.74")),
    "digits as text": ("string", "1234", Decimal(1234)),
    "a point as text": ("string", "12.50", Decimal("12.50")),
    "digits that are base64": ("base64", "1234", Decimal("-26588.24")),
    "letters that are base64": ("base64", "AN6t", Decimal("570.05")),
}


@pytest.mark.parametrize(("option", "text", "value"), DECIMALS.values(), ids=DECIMALS)
def test_a_decimal_is_never_guessed(option: str, text: str, value: Decimal | None) -> None:
    """Text that may be a number, or that no connector would write as base64, names the option."""
    ddl = "total DECIMAL(20, 2)"
    values = [json.dumps({"op": "c", "after": {"total": text}}).encode()]

    (found,) = decoded(opened("debezium", ddl, decimals=option), values, [None])

    assert (found["row"] or {}).get("total") == value
    assert found["reason"] == (None if value is not None else "type_mismatch")
    assert value is not None or PLAIN in found["detail"]
    assert disagreements("debezium", ddl, values, decimals=option) == []


def test_a_decimal_in_a_list_is_never_guessed() -> None:
    """An item is read as the column would be."""
    ddl = "totals ARRAY<DECIMAL(12, 2)>"
    values = [
        json.dumps({"op": "c", "after": {"totals": items}}).encode()
        for items in (["AN6t", None], ["AN6t", "1234"])
    ]

    good, bad = decoded(opened("debezium", ddl), values, [None] * 2)

    assert good["row"] == {"totals": [Decimal("570.05"), None]}
    assert PLAIN in bad["detail"]
    assert disagreements("debezium", ddl, values) == []


def test_a_schema_says_that_digits_are_base64() -> None:
    """Beside a schema nothing is guessed: the same text is the number that its bytes are."""
    log = postgres(schemas=True)
    values = [log.event("c", None, {"id": 1, "total": "1234"})]
    ddl = "id BIGINT, total DECIMAL(12, 2)"

    (found,) = decoded(opened("debezium", ddl, schemas=True), values, [None])

    assert found["row"] == {"id": 1, "total": Decimal("-26588.24")}
    assert disagreements("debezium", ddl, values, schemas=True) == []


HALF = "\\ud800"
HALVES = {
    "a declared value": f'{{"op": "c", "after": {{"id": "{HALF}"}}}}',
    "an undeclared value": f'{{"op": "c", "after": {{"id": 1, "other": ["{HALF}"]}}}}',
    "an undeclared name": f'{{"op": "c", "after": {{"id": 1, "{HALF}": 1}}}}',
    "the operation": f'{{"op": "{HALF}", "after": {{"id": 1}}}}',
}


def test_half_a_character_blocks_nothing() -> None:
    """Wherever it stands, its record is refused, and the others are read."""
    whole = b'{"op": "c", "after": {"id": 1, "name": "\\ud83d\\ude42"}}'
    values = [*(text.encode() for text in HALVES.values()), whole]
    ddl = "id BIGINT NOT NULL, name STRING"

    *bad, good = decoded(opened("debezium", ddl), values, [None] * len(values))

    assert good["row"] == {"id": 1, "name": "\U0001f642"}
    assert [each["reason"] for each in bad] == ["malformed_debezium"] * len(HALVES)
    assert disagreements("debezium", ddl, values) == []


@pytest.mark.spark
def test_an_exploded_delete_without_its_array_is_seen(world: World) -> None:
    """Which rows are gone it does not say: it waits, and is never taken for a filtered record."""
    world.declare(
        format="debezium",
        value_schema="id INT NOT NULL, tag ARRAY<STRING>",
        schema="id INT NOT NULL, tag STRING NOT NULL",
        explode="tag",
        keys=["id", "tag"],
    )
    log = postgres(schemas=False)
    for id in (1, 2):
        deliver(world, log.event("c", None, {"id": id, "tag": ["a", "b"]}))
    deliver(world, log.event("d", {"id": 1, "tag": ["a", "b"]}, None))
    deliver(world, log.event("d", {"id": 2, "tag": None}, None), id=2)
    world.run()

    (waits,) = world.quarantined()
    assert (waits["reason"], waits["_offset"]) == ("missing_key", 3)
    assert world.rows() == [{"id": 2, "tag": "a"}, {"id": 2, "tag": "b"}]
    assert world.ledger[-1].counts.get("filtered", 0) == 0
    assert find_problems(world) == ()


def test_schemas_that_are_written_anew_each_time_fill_no_memory() -> None:
    """A converter that puts the payload first, with white space, is read with a plan of each."""
    options = DebeziumOptions(schemas=True)
    encoded = Encoded(
        schema=row_type("id INT"), is_key=False, options=options, extra_fields="ignore"
    )
    read = _JsonEnvelopes(encoded, options)
    event = json.loads(postgres(schemas=True).event("c", None, {"id": 1}, lsn=1))
    reversed_ = json.dumps({"payload": event["payload"], "schema": event["schema"]}).encode()

    rows = [read(reversed_, None).row for _ in range(1000)]

    assert rows == [rows[0]] * 1000
    assert len(read._plans) <= 200
    assert len(read._schemas) <= 200
