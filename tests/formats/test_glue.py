"""AWS Glue's frame and registry: engine and proof read the same, each by its own code."""

from __future__ import annotations

import json
import random
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from oncelake.ingestion.declaration.files.loader import load_streams, read_outlines
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import DependencyError, InvalidSpecError, RefusedError
from oncelake.ingestion.formats.registry import glue_frame
from oncelake.ingestion.kafka.schema_registry import Registry
from oncelake.ingestion.operations.discover import discover
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.verify import verify
from tests.formats.test_schema_in_header import AVRO, FORMATS
from tests.support.both_readers import Sent, classified, declared, judged
from tests.support.glue import Glue, in_frame
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.protobuf import Compiled
from tests.support.registry import framed
from tests.support.world import World

UNKNOWN = UUID(int=7)


@pytest.fixture
def glue(store_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Glue]:
    """A registry without schemas."""
    with Glue.at(store_address, monkeypatch) as made:
        yield made


def rows(spec: StreamSpec, glue: Glue, *values: bytes | None) -> list[Any]:
    """Return each record's row or reason, once the proof says the same."""
    sent = [Sent(value) for value in values]
    found = judged(spec, glue.settings, sent)
    proven = classified(spec, glue.settings, sent)
    bad = [row["_offset"] for row in found if row["_disposition"] == "quarantined"]
    assert sorted(record.offset for record, _ in (*proven.bad, *proven.unread)) == bad
    assert {c.offset: c.key for c in proven.changes} == {
        row["_offset"]: f"[{row['id']}]" for row in found if row["_disposition"] == "row"
    }
    return [row["_reason"] or (row["id"], row["name"]) for row in found]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_compressed_or_not(glue: Glue, name: str) -> None:
    """Alone and many at once, beside records that are neither."""
    format_, type_, text, payload = FORMATS[name]
    id = glue.add(text, type_)
    plain, packed = (in_frame(id, payload, is_packed=each) for each in (False, True))
    bad = in_frame(id, payload)[:-1]
    spec = declared(format=format_)

    alone = rows(spec, glue, plain, bad, packed)
    many = rows(spec, glue, *[plain, packed] * 50, bad, *[packed] * 50)

    assert [*alone[::2], *many[:100], *many[101:]] == [(1, "abc")] * 152
    assert alone[1] == many[100]
    assert type(alone[1]) is str


def test_a_message_is_named_by_its_place_among_all_names(glue: Glue) -> None:
    """In the order of full names, nested ones included, as AWS's serializers count them."""
    text = (
        'syntax = "proto3"; package p; message Z { int64 id = 1; } '
        "message B { message C { string name = 2; } message A { message D { int64 id = 1; } } "
        "map<string, int64> M = 1; }"
    )
    id, compiled = glue.add(text, "PROTOBUF"), Compiled(text)
    names = ["p.B", "p.B.A", "p.B.A.D", "p.B.C", "p.B.MEntry", "p.Z"]
    body = compiled.make("p.Z", id=9).SerializeToString()
    sent = [in_frame(id, bytes([at]) + body) for at in range(len(names) + 1)]
    sent += [in_frame(id, b""), in_frame(id, b"\xff" * 9)]
    by_name = {name: rows(declared(format="protobuf", record=name), glue, *sent) for name in names}

    bad = ["malformed_protobuf"] * 3
    assert by_name["p.Z"] == [*[(None, None)] * 5, (9, None), *bad], "others are filtered"
    assert by_name["p.B.A.D"][2] == (9, None)
    assert {name: len([each for each in by_name[name] if each in bad]) for name in names} == (
        dict.fromkeys(names, 3)
    )


def test_what_is_no_frame_of_glues_is_refused(glue: Glue) -> None:
    """With its own reason, each alone and among many; nothing is taken for Confluent's."""
    id, other = glue.add(AVRO), glue.add('{"type": "object"}', "JSON")
    payload = b"\x02\x06abc"
    packed = in_frame(id, payload, is_packed=True)
    cases = {
        b"": "short_header",
        b"\3": "short_header",
        b"\3\0" + id.bytes[:15]: "short_header",
        b"\3\1" + id.bytes + payload: "not_framed",
        b"\4\0" + id.bytes + payload: "not_framed",
        framed(1, payload): "not_framed",
        in_frame(UNKNOWN, payload): "unknown_schema_id",
        in_frame(UNKNOWN, payload, is_packed=True): "unknown_schema_id",
        in_frame(other, b'{"id": 1}'): "wrong_schema_type",
        packed[:-1]: "malformed_compression",
        packed + b"x": "malformed_compression",
        b"\3\5" + id.bytes + payload: "malformed_compression",
        b"\3\5" + id.bytes: "malformed_compression",
        in_frame(id, payload + b"x"): "malformed_avro",
        in_frame(id, payload + b"x", is_packed=True): "malformed_avro",
    }
    spec = declared(format="avro")

    found = rows(spec, glue, *[packed] * 40, *cases, *[in_frame(id, payload)] * 40)
    alone = [rows(spec, glue, value)[0] for value in cases]

    assert found == [*[(1, "abc")] * 40, *cases.values(), *[(1, "abc")] * 40]
    assert alone == [*cases.values()]


def test_a_payload_that_explodes_is_quarantined_before_it_does(glue: Glue) -> None:
    """A record of 100 kB that would be 100 MB takes a tenth of that for a moment, and no more."""
    id = glue.add(AVRO)
    text = b"a" * 6_000_000
    size = bytes([len(text) * 2 >> 7 * n & 0x7F | (0x80 if n < 3 else 0) for n in range(4)])
    bomb = b"\3\5" + id.bytes + zlib.compress(b"\0" * 100_000_000)
    odd = b"\3\5" + id.bytes + zlib.compress(b"\2" + size + text)
    spec, good = declared(format="avro"), in_frame(id, b"\x02\x06abc", is_packed=True)
    rows(spec, glue, good)
    tracemalloc.start()

    found = rows(spec, glue, good, bomb, odd, *[good] * 40)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    bad = ["malformed_compression"] * 2
    assert found == [(1, "abc"), *bad, *[(1, "abc")] * 40]
    assert peak < 40_000_000


def test_how_much_is_decompressed_at_once_changes_no_row(
    glue: Glue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room with the others is decompressed alone."""
    id = glue.add(AVRO)
    values = [in_frame(id, bytes([2 * n]) + b"\x06abc", is_packed=True) for n in range(60)]
    values.insert(7, values[0] + b"x")
    spec = declared(format="avro")
    roomy = rows(spec, glue, *values)

    monkeypatch.setattr(glue_frame, "_MOST_AT_ONCE", 100)

    assert rows(spec, glue, *values) == roomy
    assert roomy[7] == "malformed_compression"


def test_engine_and_proof_agree_about_harmed_frames(glue: Glue) -> None:
    """Whatever byte is another one."""
    chance, id = random.Random(4), glue.add(AVRO)
    values = []
    for _ in range(600):
        value = bytearray(in_frame(id, b"\x02\x06abc", is_packed=chance.random() < 0.5))
        for _ in range(chance.randrange(3)):
            value[chance.randrange(len(value))] = chance.randrange(256)
        values.append(bytes(value[: chance.randrange(len(value) * 5)]))

    found = rows(declared(format="avro"), glue, *values)

    assert {"malformed_compression", "not_framed", "unknown_schema_id", (1, "abc")} <= {*found}


def test_the_registry_gives_versions_and_takes_nothing(glue: Glue) -> None:
    """By a name the newest version or one of a number; it is only read."""
    first = glue.add(AVRO, name="orders")
    second = glue.add_version({**AVRO, "name": "B"}, "orders")
    registry = Registry(glue.settings)

    newest, oldest = registry.versions("orders")

    assert [oldest.id, newest.id] == [first, second]
    assert json.loads(newest.text)["name"] == "B"
    assert [each.id for each in registry.versions("orders", 1)] == [first]
    assert [*registry.versions("orders", 9), *registry.versions("others")] == []
    assert registry.schemas([first, UNKNOWN, 1]).keys() == {first}
    with pytest.raises(RefusedError, match="AWS Glue's registry is only read"):
        registry.register("s", "orders", "{}")


def test_a_registry_that_does_not_answer_stops_the_run(
    glue: Glue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no word about a schema; the message says whose login it is."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    asked = Registry(Settings(schema_registry=glue.url, kafka_timeout_seconds=1))

    with pytest.raises(DependencyError, match=r"glue://.* the login that botocore finds"):
        asked.schemas([UNKNOWN])


def test_without_botocore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence."""
    monkeypatch.setitem(sys.modules, "botocore.session", None)

    with pytest.raises(InvalidSpecError, match=r"not installed.*WHEEL\[glue\]"):
        Registry(Settings(schema_registry="glue://eu-west-1/none-of-tests"))


@pytest.mark.kafka
@pytest.mark.parametrize("engine", ["auto", *twins("spark")])
def test_records_of_glues_arrive_and_are_proven(world: World, glue: Glue, engine: str) -> None:
    """Values and keys, by a real broker; what is unknown waits until the registry knows it."""
    change = {"merge_engine": engine, "schema_registry": glue.url}
    world.settings = world.settings.model_copy(update=change)
    value, key = glue.add(AVRO), glue.add('"int"')
    world.declare(format="avro", key_format="avro", schema="id INT, name STRING", keys=["id"])
    sent = [
        *((in_frame(value, b"\x02\x06abc"), b""), (in_frame(value, b"\x04\x06abc"), b"")),
        (in_frame(value, b"\x06\x06abc", is_packed=True), b""),
        *((in_frame(UNKNOWN, b"\x08\x06abc"), b""), (b"{}", b"")),
        (None, in_frame(key, b"\x02")),
    ]
    for raw, of_key in sent:
        world.producer.produce(world.topic, raw, of_key, partition=0)
    assert world.producer.flush(30) == 0
    here = world.settings
    world.settings = here.model_copy(update={"schema_registry": "glue://eu-west-1/other"})
    world.declare(quarantine_rate={"stop_above": 1})
    world.run()
    waited = [row["reason"] for row in world.quarantined()]
    world.settings = here

    report = world.redrive()

    unknown = ["unknown_schema_id"] * 4
    assert sorted(waited) == ["not_framed", "tombstone_without_key", *unknown]
    assert report.still_bad == {"not_framed": 1, "unknown_schema_id": 1}
    assert [(row["id"], row["name"]) for row in world.rows()] == [(2, "abc"), (3, "abc")]
    assert find_problems(world) == ()


@pytest.mark.kafka
def test_the_registry_gives_the_columns_and_is_needed_for_the_proof(
    world: World, glue: Glue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a schema is its topic's, as AWS's serializers have it; a newer one adds more."""
    world.settings = world.settings.model_copy(update={"schema_registry": glue.url})
    first = glue.add(AVRO, name=world.topic)
    folder = world.settings.streams
    folder.mkdir(parents=True)
    file = {"topic": world.topic, "format": "avro", "schema": "registry", "keys": ["id"]}
    path = folder / "orders.yaml"
    path.write_text(json.dumps({**file, "schema_change": "evolve"}))
    (outline,) = read_outlines(path)
    discover(outline, world.settings).write()
    (declared_stream,) = load_streams(folder)
    spec = declared_stream.require_spec()
    world.declare(**spec.model_dump(by_alias=True, exclude_unset=True))
    note = {"name": "note", "type": ["null", "string"], "default": None}
    newer = glue.add_version({**AVRO, "fields": [*AVRO["fields"], note]}, world.topic)
    world.send(in_frame(first, b"\x02\x06abc"), in_frame(newer, b"\x04\x06abc\x02\x02x"))

    world.run()

    (reloaded,) = load_streams(folder)
    spec = reloaded.require_spec()
    found = [row for each in world.paths.table.scan([*spec.types]) for row in each.to_pylist()]
    assert spec.ddl == "`id` BIGINT NOT NULL, `name` STRING, `note` STRING"
    assert [row["note"] for row in sorted(found, key=lambda row: row["id"])] == [None, "x"]
    assert verify(spec, world.settings).holds
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    gone = world.settings.model_copy(update={"kafka_timeout_seconds": 5})
    with pytest.raises(DependencyError, match="schema registry at glue://"):
        verify(spec, gone, whole=True)
