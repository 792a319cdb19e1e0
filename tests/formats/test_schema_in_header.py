"""A schema id in a header: the bytes are a payload alone, whatever they look like.

Confluent's headers are read, with an id or a GUID; of other makers' the record is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry.serde import SchemaId

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.schema_registry import Registry
from oncelake.ingestion.settings import Settings
from tests.support.both_readers import Headers, Sent, classified, declared, judged
from tests.support.http_server import Handler, served
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry, small_registry
from tests.support.world import World

GUID = b"\x01" + b"g" * 16
NAME = "__value_schema_id"
# Of makers whose headers are not read.
NAMES = {
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


def rows(spec: StreamSpec, registry: SmallRegistry, *records: Sent) -> list[Any]:
    """Return each record's row or reason, once the proof says the same."""
    found = judged(spec, registry.settings, records)
    proven = classified(spec, registry.settings, records)
    assert {c.offset: c.key for c in proven.changes} == {
        row["_offset"]: f"[{row['id']}]" for row in found if row["_reason"] is None
    }
    return [row["_reason"] or (row["id"], row["name"]) for row in found]


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


def of_id(registry: SmallRegistry, number: int) -> bytes:
    """Return what Confluent's serializers put before a payload by a schema's id."""
    return _schema_id(registry, number).id_to_bytes()


def of_guid(registry: SmallRegistry, number: int) -> bytes:
    """Return what they put into a header by its GUID."""
    return _schema_id(registry, number).guid_to_bytes()


def _schema_id(registry: SmallRegistry, number: int) -> SchemaId:
    type_ = registry.schemas[number]["schemaType"]
    indexes = [0] if type_ == "PROTOBUF" else None
    return SchemaId(type_, number, str(registry.guid(number)), indexes)


@pytest.mark.parametrize("start", [of_id, of_guid])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_ids_in_headers(
    registry: SmallRegistry, name: str, start: Callable[[SmallRegistry, int], bytes]
) -> None:
    """Alone or many at once, among framed records; of headers of other makers none is read."""
    format_, type_, text, payload = FORMATS[name]
    number = registry.add(text, type_)
    # Message indexes are before a payload of Protobuf, wherever the id is.
    bare = payload[1:] if name == "protobuf" else payload
    header = start(registry, number)
    plain: Headers = (("trace", b"1"), ("__key_schema_id", GUID), (NAME, b"?"), (NAME, header))
    in_header, in_front = Sent(bare, headers=plain), Sent(framed(number, payload))
    bad = in_front._replace(headers=(("apicurio.value.globalId", b"1"),))
    spec = declared(format=format_)

    alone = rows(spec, registry, in_header, bad, in_front)
    many = rows(spec, registry, *[in_header, in_front] * 50, bad, *[in_header] * 50)

    assert alone == [(1, "abc"), "not_framed", (1, "abc")]
    assert many == [*[(1, "abc")] * 100, "not_framed", *[(1, "abc")] * 50]


@pytest.mark.parametrize("name", ["avro", "protobuf", "json_schema"])
@pytest.mark.parametrize(
    "wrong",
    [
        *(None, b"", b"\0", b"\0\0\0\0", b"\2\0\0\0\1", b"\1" + b"g" * 15),
        *(b"\0\0\0\0\1\2", b"\1" + b"g" * 16 + b"\4\0", b"\0\0\0\0\1\0\0"),
    ],
)
def test_a_header_that_is_no_id_is_refused(
    registry: SmallRegistry, name: str, wrong: bytes | None
) -> None:
    """Bytes too few or too many are not made up by those of the payload."""
    format_, type_, text, payload = FORMATS[name]
    registry.add(text, type_)

    found = refused(
        declared(format=format_), registry, *[Sent(payload, headers=((NAME, wrong),))] * 40
    )

    detail = "a header has no schema id as Confluent's serializers write it: "
    assert found == [f"not_framed: {detail}{(wrong or b'').hex()}"] * 40


@pytest.mark.parametrize("has_guids", [True, False])
def test_a_guid_that_is_unknown_is_quarantined(registry: SmallRegistry, has_guids: bool) -> None:
    """So are those of a registry that knows nothing of GUIDs; ids are read on."""
    number = registry.add(AVRO)
    registry.has_guids = has_guids
    guid = registry.guid(number) if not has_guids else UUID(int=number)
    spec = declared(format="avro")

    found = judged(
        spec,
        registry.settings,
        [
            Sent(b"\x02\x06abc", headers=((NAME, b"\1" + guid.bytes),)),
            Sent(b"\x02\x06abc", headers=((NAME, framed(number, b"")),)),
        ],
    )

    detail = f"schema GUID {guid}: the registry does not know it"
    assert [(row["_reason"], row["_detail"]) for row in found] == [
        ("unknown_schema_id", detail),
        (None, None),
    ]


def test_a_server_that_is_no_registry_is_no_word_about_a_guid() -> None:
    """It answers that a path is unknown, whatever it is asked; the run stops, and may be tried."""

    class _Other(Handler):
        def get(self) -> None:
            self.answer(404, b"{}")

    with served(_Other) as address, pytest.raises(DependencyError, match="does not answer"):
        Registry(Settings(schema_registry=address)).schemas([UUID(int=1)])


def test_a_key_with_its_id_in_a_header_deletes(registry: SmallRegistry) -> None:
    """By the key's own header, where the value's says nothing; one of another maker is refused."""
    number = registry.add('"long"')
    spec = declared(key_format="avro")
    of_key = "__key_schema_id"

    found = rows(
        spec,
        registry,
        Sent(None, b"\x0e", ((of_key, of_guid(registry, number)),)),
        Sent(None, b"\x0e", ((of_key, framed(number, b"")), (NAME, GUID))),
        Sent(None, framed(number, b"\x0e"), ((NAME, GUID),)),
        Sent(None, framed(number, b"\x0e"), (("apicurio.key.globalId", b"1"),)),
    )

    assert found == [*[(7, None)] * 3, "tombstone_without_key"]


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
        [Sent(value, headers=(("apicurio.value.globalId", GUID),)) for value in values],
    )

    assert {row["_reason"] for row in found} == {"not_framed"}
    assert asked == []


@pytest.mark.parametrize("engine", ["auto", *twins("spark")])
def test_ids_and_guids_in_headers_arrive_in_the_table(
    world: World, registry: SmallRegistry, engine: str
) -> None:
    """In both engines, of values and keys, each by the schema that its header names."""
    change = {"merge_engine": engine, "schema_registry": registry.address}
    world.settings = world.settings.model_copy(update=change)
    value, other, key = (
        registry.add(AVRO),
        registry.add({**AVRO, "name": "B"}),
        registry.add('"int"'),
    )
    world.declare(
        format="avro", key_format="avro", record=["Row", "B"], schema="id INT, name STRING"
    )
    sent = [
        (b"\x02\x06abc", (NAME, of_guid(registry, value))),
        (b"\x04\x06abc", (NAME, of_id(registry, other))),
        (framed(value, b"\x06\x06abc"), ("other", b"")),
        (b"\x08\x06abc", (NAME, b"\1" + b"g" * 16)),
        (None, ("__key_schema_id", of_guid(registry, key))),
    ]
    for raw, header in sent:
        world.producer.produce(world.topic, raw, b"\x02", partition=0, headers=[header])
    assert world.producer.flush(30) == 0
    world.run()

    assert [(row["id"], row["name"]) for row in world.rows()] == [(2, "abc"), (3, "abc")]
    assert [row["reason"] for row in world.quarantined()] == ["unknown_schema_id"]
    assert find_problems(world) == ()


@pytest.mark.kafka
def test_a_real_registry_without_guids_does_not_know_one(
    registry_address: str, settings: Settings
) -> None:
    """Apicurio's answers otherwise than Confluent's, and is known for a registry all the same."""
    asked = Registry(settings.model_copy(update={"schema_registry": registry_address}))

    assert asked.schemas([UUID(int=1)]) == {}
