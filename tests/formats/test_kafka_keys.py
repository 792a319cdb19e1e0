"""Kafka keys of JSON: those that Kafka Connect wrote with their schema, and bare numbers."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.operations.quarantine.remedies import REMEDIES
from tests.support.decoding import decoded, disagreements, opened
from tests.support.proof import find_problems
from tests.support.world import World, row

CONNECT = {"type": "json", "schemas": True}
DIGITS = {"type": "json", "numbers": "text"}
OF_CONNECT = "org.apache.kafka.connect.data"


def connect_key(payload: Any, **fields: Any) -> bytes:
    """Write a key as Kafka Connect's converter does, with the schemas of its fields."""
    listed = [{"field": name, **schema} for name, schema in fields.items()]
    schema = {"type": "struct", "fields": listed, "optional": False, "name": "Key"}
    return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()


def bare_key(payload: Any, **schema: Any) -> bytes:
    """Write a key that is one value, with the value's schema."""
    return json.dumps({"schema": schema or None, "payload": payload}).encode()


INT64 = {"type": "int64", "optional": False}
STAMP = {"type": "int64", "name": f"{OF_CONNECT}.Timestamp"}
DAYS = {"type": "int32", "name": f"{OF_CONNECT}.Date"}
CENTS = {"type": "bytes", "name": f"{OF_CONNECT}.Decimal", "parameters": {"scale": "2"}}


@pytest.mark.parametrize(
    ("ddl", "key", "values"),
    [
        ("id BIGINT", connect_key({"id": 7}, id=INT64), [7]),
        ("id BIGINT", connect_key({"id": 7, "part": "a"}, id=INT64, part={}), [7]),
        ("id BIGINT, part STRING", connect_key({"part": "a", "id": 7}, id=INT64), [7, "a"]),
        ("id BIGINT", bare_key(7, **INT64), [7]),
        ("id STRING", bare_key("7", type="string"), ["7"]),
        ("id BIGINT", bare_key(7), [7]),
        ("id BIGINT", bare_key({"id": 7}), [7]),
        ("id BIGINT", b'{"payload": {"id": 7}, "schema": null}', [7]),
        ("id BIGINT", bare_key(None), [None]),
        ("id BIGINT", connect_key({"ID": 7}, ID=INT64), [None]),
        (
            "at TIMESTAMP",
            connect_key({"at": 1_500}, at=STAMP),
            [dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC)],
        ),
        ("day DATE", connect_key({"day": 1}, day=DAYS), [dt.date(1970, 1, 2)]),
        ("total DECIMAL(9, 2)", connect_key({"total": "MDk="}, total=CENTS), [Decimal("123.45")]),
        ("total DECIMAL(9, 2)", bare_key("MDk=", **CENTS), [Decimal("123.45")]),
        ("id BIGINT", b'{"id": 7}', None),
        ("id BIGINT", b"7", None),
        ("id BIGINT", b'{"schema": null, "payload": 7, "more": 1}', None),
        ("id BIGINT", connect_key({"id": "7"}, id=INT64), None),
        ("id INT", connect_key({"id": 2**40}, id=INT64), None),
        ("id BIGINT, part STRING", bare_key(7, **INT64), None),
        ("total DECIMAL(9, 2)", connect_key({"total": 1}, total={**CENTS, "parameters": 5}), [1]),
        (
            "total DECIMAL(9, 2)",
            connect_key({"total": "MDk="}, total={**CENTS, "parameters": {"scale": "x"}}),
            None,
        ),
        ("id BIGINT", b"\xff", None),
    ],
)
def test_a_key_with_its_schema_beside_it_is_read_by_both(
    ddl: str, key: bytes, values: list[Any] | None
) -> None:
    """Its values mean what the schema says; what is no such key has a reason."""
    options = {"is_key": True, "schemas": True}

    (found,) = decoded(opened("json", ddl, **options), [key])

    assert found["reason"] == (None if values is not None else "malformed_key")
    assert values is None or list(found["row"].values()) == values
    assert disagreements("json", ddl, [key], **options) == []


def test_each_key_is_read_by_its_own_schema() -> None:
    """One after another, though the schema of the one before is kept; a bad one changes none."""
    bad = connect_key({"at": "MDk="}, at={**CENTS, "parameters": {"scale": "x"}})
    keys = [connect_key({"at": 1}, at=STAMP), connect_key({"at": 1}, at=DAYS), bad] * 2

    found = decoded(opened("json", "at TIMESTAMP", is_key=True, schemas=True), keys)

    assert [each["reason"] for each in found] == [None, "malformed_key", "malformed_key"] * 2
    assert disagreements("json", "at TIMESTAMP", keys, is_key=True, schemas=True) == []


AMBIGUOUS = [
    *(("SMALLINT", b"12"), ("INT", b"12"), ("BIGINT", b"-1")),
    *(("INT", b"1234"), ("BIGINT", b"1234"), ("INT", b"12  "), ("INT", b"null"), ("INT", b'"12"')),
    ("BIGINT", b"12345678"),
]
CLEAR = [
    *(("TINYINT", b"12"), ("SMALLINT", b"1234"), ("INT", b"12345678"), ("INT", b"123")),
    *(("BIGINT", b"123456"), ("INT", b'{"id":12}'), ("BIGINT", b'{"id":1}')),
    *(("STRING", b"1234"), ("DECIMAL(9, 0)", b"1234"), ("DOUBLE", b"12345678")),
]


@pytest.mark.parametrize(("type_", "key"), AMBIGUOUS)
def test_a_bare_key_that_may_be_a_number_of_javas_is_refused(type_: str, key: bytes) -> None:
    """Both formats are named, and both read it."""
    ddl = f"id {type_}"
    java = {2: "short", 4: "int", 8: "long"}[len(key)]

    (found,) = decoded(opened("json", ddl, is_key=True), [key])
    (as_number,) = decoded(opened(java, ddl, is_key=True), [key])

    assert found["reason"] == "ambiguous_key"
    assert f"`key_format: {java}`" in found["detail"]
    assert "`key_format: {type: json, numbers: text}`" in found["detail"]
    assert as_number["row"] == {"id": int.from_bytes(key, signed=True)}
    assert disagreements("json", ddl, [key], is_key=True) == []
    assert disagreements("json", ddl, [key], is_key=True, numbers="text") == []


@pytest.mark.parametrize(("type_", "key"), CLEAR)
def test_a_bare_key_that_no_column_holds_as_a_number_of_javas_is_read(
    type_: str, key: bytes
) -> None:
    """So is an object, which names its column."""
    ddl = f"id {type_}"

    (found,) = decoded(opened("json", ddl, is_key=True), [key])
    (as_text,) = decoded(opened("json", ddl, is_key=True, numbers="text"), [key])

    assert found["reason"] is None or type_ == "TINYINT"
    assert found == as_text
    assert disagreements("json", ddl, [key], is_key=True) == []


def test_a_number_of_javas_that_is_no_text_is_told_with_its_format() -> None:
    """Its bytes are no JSON, and as many as a format reads."""
    (found,) = decoded(opened("json", "id INT", is_key=True), [(5).to_bytes(4)])

    assert found["reason"] in ("malformed_json", "empty_value")
    assert "declare `key_format: int`" in found["detail"]


def test_keys_of_kafka_connect_delete_their_rows(world: World) -> None:
    """The advice of the quarantine is followed, and the redrive and the proof know them."""
    world.declare(quarantine_rate={"fail_above": 1})
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.producer.produce(world.topic, None, connect_key({"id": 1}, id=INT64), partition=0)
    assert world.producer.flush(30) == 0
    world.run()
    (waits,) = world.quarantined()
    world.declare(key_format=CONNECT)
    world.redrive()
    world.producer.produce(world.topic, None, connect_key({"id": 2}, id=INT64), partition=0)
    assert world.producer.flush(30) == 0

    world.run()

    assert waits["reason"] == "tombstone_without_key"
    assert "`{type: json, schemas: true}`" in REMEDIES["tombstone_without_key"]
    assert world.rows() == []
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    ("key_format", "left"), [("int", 1234), (DIGITS, 0x31323334)], ids=["int", "text"]
)
def test_four_bytes_delete_no_row_until_their_format_is_declared(
    world: World, key_format: Any, left: int
) -> None:
    """Two rows could be meant; the advice in the quarantine leads to either."""
    world.declare(quarantine_rate={"fail_above": 1})
    world.send(row(1234, "text"), row(0x31323334, "number"))
    world.run()
    world.producer.produce(world.topic, None, b"1234", partition=0)
    assert world.producer.flush(30) == 0
    world.run()
    both, (waits,) = world.rows(), world.quarantined()
    world.declare(key_format=key_format)

    world.redrive()

    assert len(both) == 2
    assert (waits["reason"], waits["detail"][:14]) == ("tombstone_without_key", "ambiguous_key:")
    assert [each["id"] for each in world.rows()] == [left]
    assert find_problems(world) == ()


def test_columns_of_keys_with_schemas_are_taken_from_them(world: World) -> None:
    """A key that is none is quarantined, as of any format."""
    world.declare(
        from_key=["id"],
        key_format=CONNECT,
        quarantine_rate={"fail_above": 1},
        schema="id BIGINT, name STRING",
    )
    for key in (connect_key({"id": 7}, id=INT64), b'{"id": 8}', b"9"):
        world.producer.produce(world.topic, b'{"name": "a"}', key, partition=0)
    assert world.producer.flush(30) == 0

    world.run()

    assert world.rows() == [{"id": 7, "name": "a"}]
    assert [each["reason"] for each in world.quarantined()] == ["bad_key"] * 2
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"key_format": {"type": "json", "schema": True}}, "it has: schemas, numbers"),
        ({"key_format": {"type": "json", "numbers": "java"}}, "option `numbers`: write one of"),
        ({"key_format": {**CONNECT, **DIGITS}}, "remove `numbers`"),
        ({"key_format": {"type": "string", "schemas": True}}, "`string` has no option `schemas`"),
        ({"format": CONNECT}, "`json` has no option `schemas`; it has none"),
    ],
)
def test_an_option_that_keys_do_not_have_is_refused(fields: dict[str, Any], says: str) -> None:
    """What only keys have is none of a value's."""
    base = {"name": "s", "topic": "s", "schema": "id STRING", "keys": ["id"]}

    with pytest.raises(ValidationError) as error:
        StreamSpec.model_validate({**base, **fields})

    assert says in str(error.value)
