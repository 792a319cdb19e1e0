"""Protobuf through a real registry: good, evolved and hostile, and what becomes of each."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pytest

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.verify.compare.rows import values_equal
from oncelake.ingestion.verify.decode import protobuf as proof
from tests.support.decoding import decoded, opened
from tests.support.proof import find_problems
from tests.support.protobuf import Compiled
from tests.support.registry import Subject, framed
from tests.support.world import World, row


@pytest.fixture
def registered(registered: World) -> World:
    """A stream of Protobuf."""
    registered.declare(format="protobuf")
    return registered


ALL_TYPES = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other { int32 id = 1; message Inner { int64 id = 1; string name = 2; } }
message Row {
  enum Colour { RED = 0; GREEN = 1; }
  message Inner { sint32 x = 1; string left = 2; }
  int64 id = 1; bool yes = 2; float f = 3; double d = 4; string s = 5; optional string os = 6;
  bytes b = 7; Colour e = 8; uint64 u = 9; uint32 u32 = 10; sint64 z = 11; sfixed32 sf = 12;
  fixed64 f64 = 13; google.protobuf.Timestamp at = 14; google.protobuf.Int32Value w = 15;
  repeated string tags = 16; repeated int32 packed = 17; map<string, double> more = 18;
  Inner inner = 19; repeated Inner inners = 20; map<string, Inner> by_name = 21;
  oneof either { int32 left = 22; string right = 23; } Inner absent = 24;
}
"""
DDL = (
    "id BIGINT NOT NULL, yes BOOLEAN, f FLOAT, d DOUBLE, s STRING, os STRING, b BINARY, e STRING, "
    "u DECIMAL(20, 0), u32 BIGINT, z BIGINT, sf INT, f64 BIGINT, at TIMESTAMP, w INT, "
    "tags ARRAY<STRING>, packed ARRAY<BIGINT>, more MAP<STRING, DOUBLE>, inner STRUCT<x: INT>, "
    "inners ARRAY<STRUCT<x: INT, left: STRING>>, by_name MAP<STRING, STRUCT<x: BIGINT>>, "
    "left INT, right STRING, absent STRUCT<x: INT>, nowhere STRING"
)
NOON = dt.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=dt.UTC)


def test_every_type_arrives_as_it_was_written() -> None:
    """Each type of Protobuf becomes its declared column; what shows its absence is null."""
    proto = Compiled(ALL_TYPES)
    whole = proto.make("shop.Row", id=2, yes=True, f=0.1, d=float("nan"), s="é", os="", b=b"\0\xff")
    whole.e, whole.u, whole.u32, whole.z, whole.sf, whole.f64 = 1, 2**64 - 1, 2**32 - 1, -5, -6, 7
    whole.at.FromDatetime(NOON)
    whole.w.value, whole.right, whole.inner.x = 0, "r", -1
    whole.tags.extend(["a", ""])
    whole.packed.extend([1, -(2**31)])
    whole.more["k"] = 1.5
    whole.inners.add(x=3, left="y")
    whole.by_name["n"].x = 9
    late = proto.make("shop.Row", id=4)
    late.at.seconds, late.at.nanos = 1, 1
    schema = WriterSchema(id=1, type="PROTOBUF", text=ALL_TYPES)
    payloads = [
        *(b"\2\2" + proto.make("shop.Row", id=1).SerializeToString(),),
        b"\2\2" + whole.SerializeToString(),
        b"\4\0\0" + proto.make("shop.Other.Inner", id=5, name="nested").SerializeToString(),
        b"\2\2" + proto.make("shop.Row", id=3, f64=2**63).SerializeToString(),
        b"\2\2" + late.SerializeToString(),
    ]

    structs = decoded(
        opened("protobuf", DDL, writer_schemas=[schema]), [framed(1, p) for p in payloads]
    )

    columns = {column.name: column.type for column in parse_columns(DDL)}
    read = proof.opened(schema, columns, proof.by_indexes)
    for struct_, payload in zip(structs[:3], payloads, strict=False):
        assert values_equal(list(struct_["row"].values()), list(read(payload).values))
    empty, full, other = (each["row"] for each in structs[:3])
    assert [each["reason"] for each in structs] == [None] * 3 + ["type_mismatch"] * 2
    assert (empty["s"], empty["os"], empty["e"], empty["z"], empty["w"]) == (
        "",
        None,
        "RED",
        0,
        None,
    )
    assert (empty["tags"], empty["more"], empty["inner"], empty["left"]) == ([], {}, None, None)
    assert (full["u"], full["u32"], full["at"]) == (Decimal(2**64 - 1), 2**32 - 1, NOON)
    assert full["f"] == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert (full["w"], full["left"], full["right"], full["os"]) == (0, None, "r", "")
    assert (full["inner"], full["packed"], full["sf"]) == ({"x": -1}, [1, -(2**31)], -6)
    assert (full["more"], full["by_name"]) == ({"k": 1.5}, {"n": {"x": 9}})
    assert (other["id"], other["yes"], full["nowhere"]) == (5, None, None)


OLD = 'syntax = "proto3"; message Row { int32 id = 1; string name = 2; }'
NEW = 'syntax = "proto3"; message Row { int64 id = 1; optional string name = 2; int32 at = 5; }'


@pytest.mark.kafka
@pytest.mark.spark
def test_messages_evolve_and_hostile_ones_are_rejected(registered: World, subject: Subject) -> None:
    """Each message is read by its own schema, compiled or text; what is none is quarantined."""
    registered.declare(record=["Row", "Renamed"])
    old, new = Compiled(OLD), Compiled(NEW)
    good = subject.protobuf(old.make("Row", id=1, name="a"))
    good += subject.protobuf(new.make("Row", id=2, at=7))
    number = subject.register(NEW.replace("Row", "Renamed"), "PROTOBUF")
    avro = subject.register('{"type": "record", "name": "R", "fields": []}')
    body = new.make("Row", id=3, name="c", at=1).SerializeToString()
    text = Compiled('syntax = "proto3"; message Row { string id = 1; }')
    hostile: dict[bytes, str] = {
        b"\x08\x01": "not_framed",
        b"\0\0": "short_header",
        framed(2**31 + 9, b"\0" + body): "unknown_schema_id",
        framed(avro, b"\0" + body): "wrong_schema_type",
        framed(number, b""): "malformed_protobuf",
        framed(number, b"\x02\x08" + body): "malformed_protobuf",
        framed(number, b"\x01" + body): "malformed_protobuf",
        framed(number, b"\0" + body[:-1]): "malformed_protobuf",
        framed(number, b"\0" + b"\x12\x02\xff\xfe"): "malformed_protobuf",
        framed(number, b"\0\x12\x7fa"): "malformed_protobuf",
        framed(number, b"\0\x07"): "malformed_protobuf",
        framed(number, b"\0\x08" + b"\xff" * 10): "malformed_protobuf",
        subject.protobuf(text.make("Row", id="1"))[0]: "type_mismatch",
        subject.protobuf(new.make("Row", id=2**31))[0]: "type_mismatch",
    }
    taken = [
        framed(number, b"\0" + body),
        framed(number, b"\x02\0" + b"\x08\x04" + b"\x10\x05" + b"\x08\x05" + b"\x48\x01"),
    ]
    registered.send(*good, *hostile, *taken)
    registered.run()

    assert registered.rows() == [row(1, "a"), row(2, None, 7), row(3, "c", 1), row(5, None, 0)]
    found: list[tuple[Any, Any]] = [(e["value"], e["reason"]) for e in registered.quarantined()]
    assert found == list(hostile.items())
    assert registered.ledger[-1].counts["extra_fields.#9"] == 1
    assert find_problems(registered) == ()
