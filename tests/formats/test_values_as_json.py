"""What has no column type of its own is a VARIANT: the JSON of its value, and the proof's."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from io import BytesIO
from itertools import count, product
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from google.protobuf import struct_pb2
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.declaration.parts import FormatSpec
from oncelake.ingestion.formats import protobuf
from oncelake.ingestion.formats.registry.columns import column_types
from oncelake.ingestion.formats.variant import with_variants
from oncelake.ingestion.kafka.schema_registry import WriterSchema
from oncelake.ingestion.verify.compare.rows import values_equal
from oncelake.ingestion.verify.decode import avro as proof_avro
from oncelake.ingestion.verify.decode import protobuf as proof_protobuf
from oncelake.ingestion.verify.read.variant import with_texts
from tests.formats.test_avro_columns import made_up
from tests.support.decoding import decoded, opened, row_type
from tests.support.long import IS_LONG
from tests.support.protobuf import Compiled
from tests.support.registry import framed

OFTEN = settings(
    max_examples=400 if IS_LONG else 60,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def derived(schema: WriterSchema, format_: str) -> str:
    """Return the columns that a schema gives, as DDL."""
    types = column_types(protobuf.prepared(schema), FormatSpec(type=format_))
    return ", ".join(f"{name} {type_}" for name, type_ in types.items() if type_)


def both(
    schema: WriterSchema, ddl: str, payloads: Sequence[bytes], *, as_text: bool = False
) -> tuple[Any, Any]:
    """Read payloads as the engine does, by way of a table, and as the proof; null what is bad.

    The table has VARIANTs, or the texts of their JSON.
    """
    format_ = schema.type.lower()
    decode = opened(format_, ddl, writer_schemas=[schema])
    found = decode(pa.array([framed(1, each) for each in payloads], pa.binary()))
    rows = with_variants(found.field("row"), row_type(ddl), as_text=as_text)
    stored = with_texts(rows.to_pylist(maps_as_pydicts="strict"), rows.type)
    is_bad = found.field("reason").is_valid().to_pylist()
    words = {"VARIANT": "JSON"} if as_text else {}
    wanted = {column.name: column.type.with_words(words) for column in parse_columns(ddl)}
    if format_ == "avro":
        prove = proof_avro.opened(schema, wanted, is_key=False)
    else:
        finding = proof_protobuf.by_indexes
        prove = proof_protobuf.opened(schema, wanted, finding)
    engine = [None if bad else [*row.values()] for row, bad in zip(stored, is_bad, strict=True)]
    return engine, [proven(prove, each) for each in payloads]


def proven(prove: Any, payload: bytes) -> list[Any] | None:
    """Read a payload as the proof does; nothing where it refuses it."""
    try:
        return [*prove(payload).values]
    except (ValueError, OverflowError):
        return None


def avro_schema(name: str, **types: Any) -> dict[str, Any]:
    """Return a record type."""
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": n, "type": t} for n, t in types.items()],
    }


TREE = avro_schema("shop.Tree", n="int", children={"type": "array", "items": "shop.Tree"})
ANY = avro_schema(
    "shop.Row",
    id="long",
    either=["null", "int", "string", "double", {"type": "map", "values": ["null", "bytes"]}],
    numbers=["int", "long", "string"],
    huge={"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2},
    inner=avro_schema("In", a="int", b=["string", "boolean"]),
    many={"type": "array", "items": ["float", "string"]},
    tree=TREE,
    nothing="null",
    empty=avro_schema("Empty"),
)


def in_avro(schema: Any, *rows: Any) -> list[bytes]:
    """Write rows."""
    written = json.loads(json.dumps(schema).replace("logicalType", "wasLogical"))
    parsed, payloads = parse_schema(written), []
    for row in rows:
        stream = BytesIO()
        schemaless_writer(stream, parsed, row)
        payloads.append(stream.getvalue())
    return payloads


def unscaled(text: str) -> bytes:
    """Return the bytes of a decimal of two digits behind the point."""
    number = int(text.replace(".", ""))
    return number.to_bytes(number.bit_length() // 8 + 1, signed=True)


def test_the_columns_of_avro_hold_what_has_no_type() -> None:
    """A union of unlike types, a type in itself and a long decimal, at the innermost place."""
    schema = WriterSchema(id=1, type="AVRO", text=json.dumps(ANY))

    assert derived(schema, "avro") == (
        "id BIGINT, either VARIANT, numbers VARIANT, huge VARIANT, "
        "inner STRUCT<a: INT, b: VARIANT>, many ARRAY<VARIANT>, tree VARIANT, empty VARIANT"
    )


def test_avro_as_json() -> None:
    """The branch of a union is a name, bytes are base64, and a double has an exponent."""
    schema = WriterSchema(id=1, type="AVRO", text=json.dumps(ANY))
    tree = {"n": 1, "children": [{"n": 2, "children": []}]}
    most = "9" * 58 + ".25"
    plain = {"id": 7, "huge": unscaled(most), "inner": {"a": 1, "b": True}, "tree": tree}
    plain |= {"many": [0.5, "x"], "nothing": None, "empty": {}}
    rows = [
        {**plain, "either": {"k": b"\0\xff", "n": None}, "numbers": ("long", 5)},
        {**plain, "either": -0.0, "numbers": "é"},
        {**plain, "either": float("nan"), "numbers": ("int", 5), "many": [float("-inf")]},
    ]
    ddl = derived(schema, "avro")
    payloads = in_avro(ANY, *rows)

    structs = decoded(
        opened("avro", ddl, writer_schemas=[schema]), [framed(1, p) for p in payloads]
    )
    engine, proof = both(schema, ddl, payloads)
    in_text, proven_text = both(schema, ddl, payloads, as_text=True)

    assert in_text == proven_text
    found = [each["row"] for each in structs]
    assert [each["either"] for each in found] == [
        *('{"map":{"k":"AP8=","n":null}}', '{"double":-0.0e0}', '{"double":"NaN"}')
    ]
    assert [each["numbers"] for each in found] == ['{"long":5}', '{"string":"é"}', '{"int":5}']
    assert [each["many"] for each in found][1:] == [
        *(['{"float":0.5e0}', '{"string":"x"}'], ['{"float":"-Infinity"}'])
    ]
    assert found[0]["huge"] == f'"{most}"'
    assert found[0]["inner"] == {"a": 1, "b": '{"boolean":true}'}
    assert found[0]["tree"] == '{"n":1,"children":[{"n":2,"children":[]}]}'
    assert (found[0]["empty"], engine) == ("{}", proof)


def with_variant_at(ddl: str, chance: random.Random) -> str:
    """Put a VARIANT into the place of some part of a type."""
    starts = [
        at for at in range(len(ddl)) if at == 0 or ddl[at - 1] == "<" or ddl[at - 2 : at] == ": "
    ]
    at = chance.choice(starts)
    depth, end = 0, at
    while end < len(ddl) and (depth or ddl[end] not in ",>"):
        depth += (ddl[end] in "<(") - (ddl[end] in ">)")
        end += 1
    has_name = ddl[at:end].split("<")[0].endswith(":") or ":" in ddl[at:end].split("<")[0]
    is_key = ddl[max(0, at - 4) : at] == "MAP<"
    return ddl if has_name or is_key else f"{ddl[:at]}VARIANT{ddl[end:]}"


@OFTEN
@given(seed=st.integers(0, 2**32))
def test_any_avro_is_the_same_variant_for_engine_and_proof(seed: int) -> None:
    """Columns with a VARIANT somewhere, over types of any kind, and bytes with an error."""
    chance, numbers = random.Random(seed), count()
    parts = [made_up(chance, numbers) for _ in range(chance.randint(1, 3))]
    text = json.dumps(
        avro_schema("shop.Row", **{f"c{at}": each.type for at, each in enumerate(parts)})
    )
    schema = WriterSchema(id=1, type="AVRO", text=text)
    ddl = ", ".join(f"c{at} {with_variant_at(p.column, chance)}" for at, p in enumerate(parts))
    payloads = [b"".join(each.written() for each in parts) for _ in range(40)]
    payloads += [each[: chance.randrange(len(each) + 1)] for each in payloads[:10]]

    for columns, as_text in product((ddl, derived(schema, "avro") or ddl), (False, True)):
        engine, proof = both(schema, columns, payloads, as_text=as_text)

        assert values_equal(engine, proof)


EXPRESSION = avro_schema(
    "E",
    op={"type": "enum", "name": "Op", "symbols": ["ADD", "NEG"]},
    left=["null", "E", "long"],
    right=["null", avro_schema("Leaf", back=["null", "E"], note="string")],
)


def expression(chance: random.Random, levels: int) -> dict[str, Any]:
    """Make up an expression."""
    left = chance.choice([None, 5, expression(chance, levels - 1)]) if levels else 7
    back = expression(chance, levels - 1) if levels and chance.random() < 0.5 else None
    right = chance.choice([None, {"back": back, "note": "é"}])
    return {"op": chance.choice(["ADD", "NEG"]), "left": left, "right": right}


@OFTEN
@given(seed=st.integers(0, 2**32))
def test_a_type_in_itself_is_read_alike_at_any_depth_that_is_declared(seed: int) -> None:
    """Columns may name the first levels; the rest is a VARIANT. Bytes may be damaged."""
    chance = random.Random(seed)
    schema = WriterSchema(id=1, type="AVRO", text=json.dumps(EXPRESSION))
    payloads = in_avro(EXPRESSION, *(expression(chance, 5) for _ in range(30)))
    payloads += [each[: chance.randrange(len(each))] + chance.randbytes(3) for each in payloads]
    leaf = "STRUCT<back: STRUCT<op: STRING, left: VARIANT>, note: STRING>"

    for ddl in (derived(schema, "avro"), f"op STRING, right {leaf}", "left VARIANT", "op STRING"):
        engine, proof = both(schema, ddl, payloads)

        pairs = zip(engine, proof, strict=True)
        assert all(values_equal(e, p) or (e and p is None) for e, p in pairs)
        assert values_equal(engine[:30], proof[:30])
        assert None not in engine[:30]


@pytest.mark.parametrize("ddl", ["n INT", "children ARRAY<VARIANT>"])
def test_what_is_in_itself_too_often_is_refused(ddl: str) -> None:
    """Of a hundred levels, one of a list and one of a record, all are read, and of more none."""
    schema = WriterSchema(id=1, type="AVRO", text=json.dumps(TREE))

    def nested(times: int) -> bytes:
        return b"\2\2" * times + b"\2\0" + b"\0" * times

    engine, proof = both(schema, ddl, [nested(49), nested(50), nested(400), nested(50_000)])

    assert (engine[0], engine[1:]) == (proof[0], [None] * 3)
    assert (engine[0] is not None, proof[1:]) == (True, [None] * 3)


PROTO = """
syntax = "proto3";
import "google/protobuf/struct.proto";
import "google/protobuf/any.proto";
message Row {
  enum State { NEW = 0; PAID = 1; }
  int64 id = 1;
  Row parent = 2;
  map<int32, Inner> by_number = 3;
  map<bool, string> by_flag = 4;
  google.protobuf.Struct document = 5;
  google.protobuf.Value value = 6;
  repeated Row children = 7;
  optional string note = 8;
  oneof either { State state = 9; double ratio = 10; bytes raw = 11; }
  uint64 most = 12;
  Empty empty = 13;
  google.protobuf.Any any = 14;
  map<string, google.protobuf.ListValue> lists = 15;
  float single = 16;
}
message Inner { repeated State2 many = 1; map<string, bytes> more = 2; optional int32 x = 3; }
enum State2 { A = 0; B = 1; }
message Empty {}
"""
PROTO_SCHEMA = WriterSchema(id=1, type="PROTOBUF", text=PROTO)
COMPILED = Compiled(PROTO)


def test_the_columns_of_protobuf_hold_what_has_no_type() -> None:
    """A message in itself, keys that are no texts, and JSON's own messages are VARIANTs."""
    assert derived(PROTO_SCHEMA, "protobuf") == (
        "id BIGINT, parent VARIANT, by_number VARIANT, by_flag VARIANT, document VARIANT, "
        "value VARIANT, children ARRAY<VARIANT>, note STRING, state STRING, ratio DOUBLE, "
        "raw BINARY, most DECIMAL(20, 0), empty VARIANT, "
        "any STRUCT<type_url: STRING, value: BINARY>, lists MAP<STRING, VARIANT>, single FLOAT"
    )


def in_protobuf(**fields: Any) -> bytes:
    """Write one message."""
    return b"\0" + bytes(COMPILED.make("Row", **fields).SerializeToString())


def test_protobuf_as_json() -> None:
    """A message has the fields that it has; those of struct.proto are the JSON they stand for."""
    inner = {"by_number": {-5: {"many": [1, 7], "more": {"k": b"\xff"}}}, "raw": b"\0"}
    plain = {"id": 0, "by_number": {}, "by_flag": {}, "children": [], "most": 0}
    plain |= {"lists": {}, "single": None}
    document: dict[str, Any] = {"a": [1, None, {"b": True}], "c": "x"}
    found = struct_pb2.Struct()
    found.update(document)
    written = COMPILED.make("google.protobuf.Struct")
    written.ParseFromString(found.SerializeToString())
    payload = in_protobuf(
        parent={**inner, "most": 2**64 - 1},
        by_flag={True: "t", False: "f"},
        document=written,
        value={"null_value": 0},
        empty={},
        note="n",
    )
    ddl = derived(PROTO_SCHEMA, "protobuf")
    decode = opened("protobuf", ddl, writer_schemas=[PROTO_SCHEMA])

    (struct_,) = decoded(decode, [framed(1, payload)])
    engine, proof = both(PROTO_SCHEMA, ddl, [payload])

    row = struct_["row"]
    assert json.loads(row["parent"]) == {
        **plain, "by_number": {"-5": {"many": ["B", 7], "more": {"k": "/w=="}}}, "raw": "AA==",
        "most": 2**64 - 1, "single": 0.0,
    }  # fmt: skip
    assert json.loads(row["by_flag"]) == {"true": "t", "false": "f"}
    assert json.loads(row["document"]) == document
    assert (row["value"], row["empty"], engine) == ("null", "{}", proof)


@pytest.mark.parametrize(
    "value",
    [{}, {"number_value": float("nan")}, {"list_value": {"values": [{}]}}],
    ids=["nothing", "no number of JSON", "nothing in a list"],
)
def test_a_value_that_json_does_not_have_is_refused(value: Any) -> None:
    """By engine and proof, and as long as a column names it."""
    payload = in_protobuf(id=1, value=value)

    assert both(PROTO_SCHEMA, "id BIGINT, value VARIANT", [payload]) == ([None], [None])
    assert both(PROTO_SCHEMA, "id BIGINT", [payload]) == ([[1]], [[1]])


def message(chance: random.Random, levels: int) -> dict[str, Any]:
    """Make up a message."""
    reals = [0.1, -0.0, 1e300, float("inf"), struct.unpack("<d", b"abcdefgh")[0]]
    made: dict[str, Any] = {
        "id": chance.choice([0, -1, 2**63 - 1]),
        "by_number": {chance.randrange(-3, 3): {"many": [0, 1], "x": 1} for _ in range(2)},
        "by_flag": {True: "é"},
        "single": chance.choice([0.0, 1.5, struct.unpack("<f", b"abcd")[0]]),
        **chance.choice(
            [
                {},
                {"state": chance.choice([0, 1, 9])},
                {"ratio": chance.choice(reals)},
                {"raw": b"\0"},
            ]
        ),
    }
    if levels and chance.random() < 0.7:
        made["parent"] = message(chance, levels - 1)
        made["children"] = [message(chance, levels - 2) for _ in range(levels > 1)]
    if chance.random() < 0.5:
        made["document"] = {"fields": {"a": {"number_value": chance.choice(reals[:3])}}}
    return made


@settings(OFTEN, max_examples=OFTEN.max_examples // 3)
@given(seed=st.integers(0, 2**32))
def test_any_protobuf_is_the_same_variant_for_engine_and_proof(seed: int) -> None:
    """Columns of any depth over messages, some of which end too early."""
    chance = random.Random(seed)
    payloads = [in_protobuf(**message(chance, 4)) for _ in range(20)]
    payloads += [each[: chance.randrange(1, len(each))] for each in payloads]
    deep = "id BIGINT, parent STRUCT<id: BIGINT, parent: VARIANT, children: ARRAY<VARIANT>>"

    for ddl, as_text in product((derived(PROTO_SCHEMA, "protobuf"), deep), (False, True)):
        engine, proof = both(PROTO_SCHEMA, ddl, payloads, as_text=as_text)

        assert values_equal(engine, proof)
        assert None not in engine[:20] or "state" in ddl


@pytest.mark.parametrize("times", [90, 120])
def test_messages_in_themselves_have_a_bound(times: int) -> None:
    """The hundred levels of Protobuf itself are read; of more the record is malformed."""
    payload = in_protobuf(id=1)[1:]
    for _ in range(times):
        made = COMPILED.make("Row")
        size = len(payload)
        assert size < 2**14
        payload = made.DESCRIPTOR.fields_by_name["parent"].number * 8 + 2, *varint(size), *payload
        payload = bytes(payload)

    engine, proof = both(PROTO_SCHEMA, "id BIGINT, parent VARIANT", [b"\0" + payload])

    assert engine == proof
    assert (engine == [None]) == (times > 100)


def varint(number: int) -> bytes:
    """Write a number of up to 14 bits."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])
