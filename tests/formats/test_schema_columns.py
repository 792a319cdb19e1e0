"""The types of columns for the fields of schemas that come with the records."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pytest

from oncelake.ingestion.declaration.parts import FormatSpec
from oncelake.ingestion.formats import protobuf
from oncelake.ingestion.formats.decoder import BadBytesError
from oncelake.ingestion.formats.registry.columns import avro_types, column_types, connect_types
from oncelake.ingestion.kafka.schema_registry import WriterSchema


def test_the_types_of_avro_are_its_schemas() -> None:
    """Logical types and names of Kafka Connect count; what no other column holds is a VARIANT."""
    plain = {
        "id": "long",
        "n": ["null", "int"],
        "either": ["null", "int", "string"],
        "when": {"type": "long", "oncelakeLogicalType": "timestamp-micros"},
        "nanos": {"type": "long", "oncelakeLogicalType": "timestamp-nanos"},
        "price": {"type": "bytes", "oncelakeLogicalType": "decimal", "precision": 9, "scale": 2},
        "huge": {"type": "bytes", "oncelakeLogicalType": "decimal", "precision": 60, "scale": 2},
        "at": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"},
        "tags": {"type": "array", "items": ["null", "string"]},
        "more": {"type": "map", "values": "double"},
        "inner": {"type": "record", "name": "I", "fields": [{"name": "x", "type": "float"}]},
        "kind": {"type": "enum", "name": "E", "symbols": ["A"]},
    }
    fields = [{"name": name, "type": type_} for name, type_ in plain.items()]

    found = avro_types({"type": "record", "name": "R", "fields": fields})

    assert {name: str(each) for name, each in found.items() if each} == {
        "id": "BIGINT",
        "n": "INT",
        "either": "VARIANT",
        "when": "TIMESTAMP",
        "nanos": "BIGINT",
        "price": "DECIMAL(9, 2)",
        "huge": "VARIANT",
        "at": "TIMESTAMP_NTZ",
        "tags": "ARRAY<STRING>",
        "more": "MAP<STRING, DOUBLE>",
        "inner": "STRUCT<x: FLOAT>",
        "kind": "STRING",
    }


@pytest.mark.parametrize(
    ("word", "logical", "column"),
    [
        ("string", "date", "STRING"),
        ("long", "date", "BIGINT"),
        ("int", "timestamp-millis", "INT"),
        ("string", "decimal", "STRING"),
        ("bytes", "uuid", "BINARY"),
    ],
)
def test_a_logical_type_of_another_type_says_nothing(word: str, logical: str, column: str) -> None:
    """The values are those of the type, as Avro has it, and the column holds them."""
    type_ = {"type": word, "oncelakeLogicalType": logical, "precision": 4, "scale": 2}
    fields = [{"name": "x", "type": type_}]

    found = avro_types({"type": "record", "name": "R", "fields": fields})

    assert str(found["x"]) == column


def test_the_types_of_connect_are_its_schemas() -> None:
    """Kafka Connect's words, and maps with other keys than text, which no column holds."""
    text = {"type": "string"}
    of_fields = [
        {"field": "a", "type": "int16"},
        {"field": "b", "type": "float64"},
        {"field": "c", "type": "map", "keys": text, "values": {"type": "int64"}},
        {"field": "d", "type": "map", "keys": {"type": "int32"}, "values": text},
        {"field": "e", "type": "struct", "fields": [{"field": "x", "type": "bytes"}]},
    ]

    found = connect_types(of_fields)

    assert [each and str(each) for each in found.values()] == [
        *("SMALLINT", "DOUBLE", "MAP<STRING, BIGINT>", None, "STRUCT<x: BINARY>")
    ]


@pytest.mark.parametrize("word", ["array", "map", "struct"])
def test_a_schema_of_connect_that_lacks_its_parts_has_no_type(word: str) -> None:
    """A field without a name is none, and a type without its parts is left out."""
    found = connect_types(
        [{"type": "string"}, {"field": "a", "type": word, "fields": [{"type": "string"}]}]
    )

    assert [(name, each) for name, each in found.items()] == [("a", None)]


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order {
  enum State { NEW = 0; PAID = 1; }
  uint64 id = 1;
  uint32 count = 2;
  sint32 delta = 3;
  State state = 4;
  google.protobuf.Timestamp at = 5;
  google.protobuf.Int64Value maybe = 6;
  repeated string tags = 7;
  map<string, double> more = 8;
  map<int32, string> odd = 9;
  bytes raw = 10;
  Line line = 11;
  Order parent = 12;
}
message Line { bool gift = 1; float price = 2; }
"""


def test_the_types_of_protobuf_hold_every_value() -> None:
    """Unsigned numbers get the next wider type; messages in themselves are VARIANTs."""
    schema = protobuf.prepared(WriterSchema(id=1, type="PROTOBUF", text=PROTO))

    found = column_types(schema, FormatSpec(type="protobuf"))
    of_line = column_types(schema, FormatSpec(type="protobuf"), ["shop.Line"])

    assert {name: each and str(each) for name, each in found.items()} == {
        "id": "DECIMAL(20, 0)",
        "count": "BIGINT",
        "delta": "INT",
        "state": "STRING",
        "at": "TIMESTAMP",
        "maybe": "BIGINT",
        "tags": "ARRAY<STRING>",
        "more": "MAP<STRING, DOUBLE>",
        "odd": "VARIANT",
        "raw": "BINARY",
        "line": "STRUCT<gift: BOOLEAN, price: FLOAT>",
        "parent": "VARIANT",
    }
    assert [*of_line] == ["gift", "price"]
    assert base64.b64decode(schema.text)


# As Kafka Connect's converter describes it, but for its scale.
DECIMAL = {
    "type": "number",
    "title": "org.apache.kafka.connect.data.Decimal",
    "connect.type": "bytes",
}


def test_the_types_of_json_schema_are_those_that_it_allows() -> None:
    """What may be of several types is a VARIANT; a reference is followed, but not in circles."""
    schema = {
        "title": "Visit",
        "definitions": {
            "page": {"type": "object", "properties": {"url": {"type": "string"}}},
            "tree": {"type": "object", "properties": {"child": {"$ref": "#/definitions/tree"}}},
        },
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": ["null", "string"], "format": "date-time"},
            "price": {"oneOf": [{"type": "null"}, {"type": "number"}]},
            "total": {
                "oneOf": [{"type": "null"}, {**DECIMAL, "connect.parameters": {"scale": "2"}}]
            },
            "rate": {
                **DECIMAL,
                "connect.parameters": {"scale": "4", "connect.decimal.precision": "9"},
            },
            "lost": DECIMAL,
            "odd": {**DECIMAL, "connect.parameters": {"scale": "x"}},
            "page": {"$ref": "#/definitions/page"},
            "tree": {"$ref": "#/definitions/tree"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "more": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "any": {},
            "either": {"type": ["string", "integer"]},
        },
    }
    written = WriterSchema(id=1, type="JSON", text=json.dumps(schema))

    found = column_types(written, FormatSpec(type="json_schema"))

    assert {name: str(each) for name, each in found.items()} == {
        "id": "BIGINT",
        "at": "TIMESTAMP",
        "price": "DOUBLE",
        "total": "DECIMAL(38, 2)",
        "rate": "DECIMAL(9, 4)",
        "lost": "DOUBLE",
        "odd": "DOUBLE",
        "page": "STRUCT<url: STRING>",
        "tree": "STRUCT<child: VARIANT>",
        "tags": "ARRAY<STRING>",
        "more": "MAP<STRING, BOOLEAN>",
        "any": "VARIANT",
        "either": "VARIANT",
    }
    assert column_types(written, FormatSpec(type="json_schema"), ["Other"]) == {}


def in_protobuf(levels: int) -> WriterSchema:
    """Return messages of which each has the next one twice."""
    messages = (f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(levels))
    text = f'syntax = "proto3"; {" ".join(messages)} message M{levels} {{ int32 x = 1; }}'
    return protobuf.prepared(WriterSchema(id=1, type="PROTOBUF", text=text))


def in_json(levels: int) -> WriterSchema:
    """Return objects of which each has the next one twice."""
    names = {f"m{n}": {"$ref": f"#/$defs/m{n + 1}"} for n in range(levels)}
    twice = {
        n: {"type": "object", "properties": {"a": next_, "b": next_}} for n, next_ in names.items()
    }
    of_last = {"type": "object", "properties": {"x": {"type": "integer"}}}
    schema = {**twice["m0"], "$defs": {**twice, f"m{levels}": of_last}}
    return WriterSchema(id=1, type="JSON", text=json.dumps(schema))


@pytest.mark.parametrize(
    ("written", "format_"), [(in_protobuf, "protobuf"), (in_json, "json_schema")]
)
def test_a_schema_that_grows_without_end_is_refused(
    written: Callable[[int], WriterSchema], format_: str
) -> None:
    """Each level doubles its types."""
    few = column_types(written(3), FormatSpec(type=format_))

    assert len(str(few["a"])) > 80
    with pytest.raises(BadBytesError, match="more than 10,000 types"):
        column_types(written(40), FormatSpec(type=format_))
