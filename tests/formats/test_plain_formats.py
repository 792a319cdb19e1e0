"""CSV, text, bytes, and JSON behind a schema id: what becomes of good and of hostile records."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pytest

from tests.support.decoding import decoded, disagreements, opened
from tests.support.proof import find_problems
from tests.support.registry import Subject, framed
from tests.support.world import World, row

CSV = (
    "id INT, name STRING, price DECIMAL(9, 2), ratio DOUBLE, small FLOAT, yes BOOLEAN, day DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ"
)
GOOD = b"1;'a;b''c';12.50;1e-3;0.1;true;2024-02-29;2024-02-29 12:30:00.5+01:00;2024-02-29T01:02"
BAD_CSV = {
    b"": "malformed_csv",
    b"9;x": "malformed_csv",
    GOOD + b";": "malformed_csv",
    GOOD + b"\n" + GOOD: "malformed_csv",
    GOOD.replace(b"'a;b''c'", b"'a"): "malformed_csv",
    GOOD.replace(b"'a;b''c'", b"'a'b"): "malformed_csv",
    GOOD.replace(b"'a;b''c'", b"a'b"): "malformed_csv",
    GOOD.replace(b"'a;b''c'", b"\xff"): "invalid_utf8",
    GOOD.replace(b"1;", b" 1;", 1): "type_mismatch",
    GOOD.replace(b"1;", b"2147483648;", 1): "type_mismatch",
    GOOD.replace(b"12.50", b"12.505"): "type_mismatch",
    GOOD.replace(b"12.50", b"0x1F"): "type_mismatch",
    GOOD.replace(b"1e-3", b"1e400"): "type_mismatch",
    GOOD.replace(b"true", b"yes"): "type_mismatch",
    GOOD.replace(b"2024-02-29;", b"2024-2-29;"): "type_mismatch",
    GOOD.replace(b"2024-02-29;", b"2023-02-29;"): "type_mismatch",
    GOOD.replace(b"T01:02", b"T01:02Z"): "type_mismatch",
}


def test_csv_is_read_strictly() -> None:
    """A line has the declared columns, in their order and of their types, or is refused."""
    options = {"delimiter": ";", "quote": "'", "null_value": "\\N"}
    nulls = b";".join([b"2", b"'\\N'", *[b"\\N"] * 7])
    values = [GOOD + b"\r\n", nulls, *BAD_CSV]

    first, second, *bad = decoded(opened("csv", CSV, **options), values)

    row = first["row"]
    assert (row["name"], row["price"], row["ratio"]) == ("a;b'c", Decimal("12.50"), 0.001)
    assert row["at"] == dt.datetime(2024, 2, 29, 11, 30, 0, 500000, dt.UTC)
    assert (row["day"], row["local"].isoformat()) == (dt.date(2024, 2, 29), "2024-02-29T01:02:00")
    assert second["row"] == dict.fromkeys(second["row"]) | {"id": 2, "name": "\\N"}
    assert [each["reason"] for each in bad] == list(BAD_CSV.values())
    assert [each["detail"].split(":")[0] for each in bad[8:]] == [
        *("id", "id", "price", "price", "ratio", "yes", "day", "day", "local"),
    ]
    assert disagreements("csv", CSV, values, **options) == []


@pytest.mark.parametrize(("format", "type"), [("string", "STRING"), ("raw", "BINARY")])
def test_text_and_bytes_are_taken_as_they_are(format: str, type: str) -> None:
    """Every byte arrives; what is no UTF-8 is bad as a text, and only then."""
    texts, others = ["a", "", "é\0"], [b"\xff\xfe", b"\xed\xa0\x80"]
    values = [*(text.encode() for text in texts), *others]
    decode = opened(format, f"value {type}")

    structs = decoded(decode, [*values, None])

    taken = [each["row"] and each["row"]["value"] for each in structs]
    reasons = [each["reason"] for each in structs]
    if format == "string":
        assert taken == [*texts, None, None, None]
        assert reasons == [None] * 3 + ["invalid_utf8"] * 2 + [None]
    else:
        assert (taken, set(reasons)) == ([*values, None], {None})
    assert decoded(decode, [values[0]])[0]["row"] == {"value": taken[0]}
    assert disagreements(format, f"value {type}", values) == []


UUID = b"0b5a6c5e-9f0e-4d5f-8a57-0c0ffee00001"


@pytest.mark.parametrize(
    ("format", "type", "raw", "value"),
    [
        ("short", "SMALLINT", b"\xff\xfe", -2),
        ("short", "BIGINT", b"\x12\x34", 0x1234),
        ("int", "INT", b"1234", 0x31323334),
        ("int", "BIGINT", b"\x80\0\0\0", -(2**31)),
        ("long", "BIGINT", b"\x7f" + b"\xff" * 7, 2**63 - 1),
        ("long", "BIGINT", b"\xff" * 8, -1),
        ("uuid", "STRING", UUID, UUID.decode()),
        *(
            (format, type, raw, None)
            for format, type, raw in (
                ("short", "SMALLINT", b"1"),
                ("short", "SMALLINT", b"\0\0\x01"),
                ("int", "INT", b""),
                ("int", "INT", b"123"),
                ("int", "INT", b'"1234"'),
                ("int", "BIGINT", b"\0" * 8),
                ("long", "BIGINT", b"\0\0\0\x01"),
                ("uuid", "STRING", UUID.upper()),
                ("uuid", "STRING", b'"' + UUID + b'"'),
                ("uuid", "STRING", UUID[:-1]),
                ("uuid", "STRING", UUID.replace(b"-", b"")),
                ("uuid", "STRING", b"\xff" * 16),
                ("uuid", "STRING", UUID + b"\n"),
            )
        ),
    ],
)
def test_a_key_of_javas_serializers_is_read_by_its_bytes(
    format: str, type: str, raw: bytes, value: int | str | None
) -> None:
    """A number has exactly its bytes, a UUID its text; anything else is no such key."""
    ddl = f"id {type}"

    (found,) = decoded(opened(format, ddl, is_key=True), [raw])

    assert found["reason"] == (None if value is not None else "malformed_key")
    assert (found["row"] or {}).get("id") == value
    assert disagreements(format, ddl, [raw], is_key=True) == []


def test_a_null_value_deletes_the_row_of_a_javas_number(world: World) -> None:
    """Its bytes may be digits to other eyes, and delete no other row."""
    world.declare(key_format="int")
    ours = 0x31323334
    world.send(row(ours, "a"), row(1234, "b"))
    world.run()
    world.producer.produce(world.topic, value=None, key=ours.to_bytes(4), partition=0)
    world.producer.produce(world.topic, value=None, key=b"12345", partition=0)
    assert world.producer.flush(30) == 0
    world.run()

    assert world.rows() == [row(1234, "b")]
    (waits,) = world.quarantined()
    assert (waits["reason"], waits["detail"]) == (
        "tombstone_without_key",
        "malformed_key: 5 bytes, not 4",
    )
    assert find_problems(world) == ()


def test_text_arrives_in_its_table(world: World) -> None:
    """Through Kafka and Spark, with what is bad in quarantine."""
    world.declare(schema="value STRING", keys=["value"], format="string", tombstones="ignore")
    world.send(b"a", b"", b"\xff\xfe", None)
    world.run()

    assert {row["value"] for row in world.rows()} == {"a", ""}
    assert [each["reason"] for each in world.quarantined()] == ["invalid_utf8"]
    assert find_problems(world) == ()


@pytest.mark.kafka
def test_json_behind_a_schema_id_is_json(registered: World, subject: Subject) -> None:
    """The id leads to a JSON Schema, and what follows it is decoded as JSON is."""
    registered.declare(format="json_schema", key_format="json_schema")
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Row",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": ["string", "null"]}},
    }
    good = subject.json(schema, {"id": 1, "name": "a"}, {"id": 2, "name": None}, {"id": 3})
    number = int.from_bytes(good[0][1:5])
    avro = subject.register('{"type": "record", "name": "R", "fields": []}')
    hostile = {
        b'{"id": 4}': "not_framed",
        b"": "short_header",
        b"\0\0": "short_header",
        framed(2**31 + 7, b"{}"): "unknown_schema_id",
        framed(avro, b'{"id": 4}'): "wrong_schema_type",
        framed(number, b""): "empty_value",
        framed(number, b'{"id": 4'): "malformed_json",
        framed(number, b'{"id": "4"}'): "wrong_type",
        framed(number, b'{"name": "\xff"}'): "invalid_utf8",
        framed(number, b"{}"): "missing_key",
    }
    registered.send(*good, *hostile)
    key = framed(number, json.dumps({"id": 2}).encode())
    registered.producer.produce(registered.topic, value=None, key=key, partition=0)
    registered.producer.flush(30)
    registered.run()

    assert registered.rows() == [row(1, "a"), row(3, None)]
    found = [(each["value"], each["reason"]) for each in registered.quarantined()]
    assert found == list(hostile.items())
    assert registered.quarantined()[-2]["detail"].startswith(f"schema id {number}: ")
    assert find_problems(registered) == ()
