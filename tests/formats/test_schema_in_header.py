"""A schema id in a header: the bytes are a payload alone, whatever they look like."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from oncelake.ingestion.declaration.spec import StreamSpec
from tests.support.both_readers import Headers, Sent, classified, declared, judged
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry, small_registry

GUID = b"\x01" + b"g" * 16
NAMES = {
    "Confluent": "__value_schema_id",
    "Apicurio, global": "apicurio.value.globalId",
    "Apicurio, content": "apicurio.value.contentId",
    "Apicurio, hash": "apicurio.value.contentHash",
    "Apicurio, by name": "apicurio.value.artifactId",
    "Cloudera": "value.schema.version.id",
}
FIELDS = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
AVRO = {"type": "record", "name": "Row", "fields": FIELDS}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", AVRO]},
        {"name": "after", "type": ["null", "Row"]},
        {"name": "op", "type": "string"},
    ],
}
PROTO = 'syntax = "proto3"; message Row { int64 id = 1; string name = 2; }'
JSON = {"title": "Row", "type": "object"}
# A format, its schema, and the payload of row 1, "abc".
FORMATS: dict[str, tuple[Any, str, str, bytes]] = {
    "avro": ("avro", "AVRO", json.dumps(AVRO), b"\x02\x06abc"),
    "protobuf": ("protobuf", "PROTOBUF", PROTO, b"\x00\x08\x01\x12\x03abc"),
    "json_schema": ("json_schema", "JSON", json.dumps(JSON), b'{"id": 1, "name": "abc"}'),
    "debezium": (
        {"type": "debezium", "encoding": "avro"},
        "AVRO",
        json.dumps(ENVELOPE),
        b"\x00\x02\x02\x06abc\x02c",
    ),
}


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    """A registry without schemas."""
    with small_registry() as found:
        yield found


def refused(spec: StreamSpec, registry: SmallRegistry, *records: Sent) -> list[str | None]:
    """Return why the engine refuses each record, once the proof refuses the same ones."""
    rows = judged(spec, registry.settings, records)
    bad = classified(spec, registry.settings, records).bad
    of_engine = [row["_offset"] for row in rows if row["_disposition"] == "quarantined"]
    assert [record.offset for record, _ in bad] == of_engine
    return [
        f"{row['_reason']}: {row['_detail']}" if row["_disposition"] == "quarantined" else None
        for row in rows
    ]


@pytest.mark.parametrize("header", NAMES.values(), ids=NAMES)
def test_bytes_behind_an_id_in_a_header_are_not_read_as_framed(
    registry: SmallRegistry, header: str
) -> None:
    """Bytes that begin like a frame of a schema that exists are no row, and the detail says why."""
    registry.add({**AVRO, "fields": FIELDS[:1]})
    registry.add({**AVRO, "fields": FIELDS[1:]})
    bare = bytes.fromhex("000000000206616263")
    spec = declared(format="avro")

    found = refused(spec, registry, Sent(bare, headers=((header, GUID),)), Sent(bare))

    in_header = f"not_framed: its schema id is in a header, {header}"
    assert found == [in_header, "missing_key: null: id"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_of_the_registry_sees_the_header(registry: SmallRegistry, name: str) -> None:
    """Of framed records, alone or many at once, only the one with such a header is refused."""
    format_, type_, text, payload = FORMATS[name]
    number = registry.add(text, type_)
    spec = declared(format=format_)
    plain: Headers = (("trace", b"1"), ("__key_schema_id", GUID))
    good = Sent(framed(number, payload), headers=plain)
    bad = good._replace(headers=(*plain, ("__value_schema_id", GUID)))

    alone = refused(spec, registry, bad, good)
    many = refused(spec, registry, *[good] * 50, bad, *[good] * 50)

    assert alone == ["not_framed: its schema id is in a header, __value_schema_id", None]
    assert [at for at, why in enumerate(many) if why] == [50]


@pytest.mark.parametrize("header", [name.replace("value", "key") for name in NAMES.values()])
def test_a_key_with_its_id_in_a_header_deletes_nothing(
    registry: SmallRegistry, header: str
) -> None:
    """A null value whose key only looks framed is quarantined; a value's header is no key's."""
    registry.add('"long"')
    spec = declared(key_format="avro")
    key = framed(1, b"\x02")

    found = refused(
        spec,
        registry,
        Sent(None, key, ((header, GUID),)),
        Sent(None, key, (("__value_schema_id", GUID),)),
    )

    detail = f"not_framed: its schema id is in a header, {header}"
    assert found == [f"tombstone_without_key: {detail}", None]


@pytest.mark.parametrize("format_", ["json", {"type": "debezium"}], ids=str)
def test_formats_without_a_registry_do_not_look_at_such_headers(
    registry: SmallRegistry, format_: Any
) -> None:
    """JSON is JSON, whatever else is said of its schema."""
    row = {"id": 1, "name": "abc"}
    value = {"op": "c", "after": row} if format_ != "json" else row
    sent = Sent(json.dumps(value).encode(), headers=(("__value_schema_id", GUID),))

    assert refused(declared(format=format_), registry, sent) == [None]


def test_no_id_is_asked_for_that_only_seems_to_be_one(registry: SmallRegistry) -> None:
    """Ten thousand payloads that begin with a zero byte are no ten thousand requests."""
    asked: list[str] = []
    answer = registry.answer
    registry.answer = lambda path: (asked.append(path), answer(path))[1]  # type: ignore[method-assign]
    values = [b"\0" + number.to_bytes(4) for number in range(10_001)]

    found = judged(
        declared(format="avro"),
        registry.settings,
        [Sent(value, headers=(("__value_schema_id", GUID),)) for value in values],
    )

    assert {row["_reason"] for row in found} == {"not_framed"}
    assert asked == []
