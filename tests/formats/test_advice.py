"""Advice about records in quarantine is followed here: the record that it is of becomes a row."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.operations.quarantine.remedies import REMEDIES
from oncelake.ingestion.settings import Settings
from tests.formats.test_schema_in_header import AVRO, JSON
from tests.support.both_readers import Sent, classified, declared, judged
from tests.support.protobuf import Compiled
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry, small_registry

SETTINGS = Settings()
_FOUND = re.compile(r"^(?:schema id \d+: )?x: expected (.+), found ([A-Z_]+(?:\(\d+, \d+\))?)")


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    """A registry without schemas."""
    with small_registry() as found:
        yield found


def outcome(spec: StreamSpec, sent: Sent, settings: Settings = SETTINGS) -> dict[str, Any]:
    """Return what the engine makes of a record, and make sure that the proof agrees."""
    (row,) = judged(spec, settings, [sent])
    proof = classified(spec, settings, [sent])
    assert len(proof.bad) == (row["_disposition"] == "quarantined")
    assert len(proof.changes) == (row["_disposition"] in ("row", "delete"))
    return row


class Misfit(NamedTuple):
    """A value of JSON, the type of a column that does not take it, and why."""

    type: str
    value: str
    reason: str
    found: str

    def __str__(self) -> str:
        return f"{self.value[:20]} in {self.type}"


OF_JSON = [
    Misfit("INT", '"twelve"', "wrong_type", "STRING"),
    Misfit("INT", "2147483648", "wrong_type", "BIGINT"),
    Misfit("BIGINT", "9223372036854775808", "wrong_type", "DECIMAL(38, 0)"),
    Misfit("BIGINT", "9" * 40, "wrong_type", "DOUBLE"),
    Misfit("INT", "1.5", "wrong_type", "DECIMAL(38, 1)"),
    Misfit("INT", "1.0", "wrong_type", "DECIMAL(38, 0)"),
    Misfit("INT", "1e-60", "wrong_type", "DOUBLE"),
    Misfit("INT", "true", "wrong_type", "BOOLEAN"),
    Misfit("INT", "[1]", "wrong_type", "VARIANT"),
    Misfit("STRING", '{"a": 1}', "wrong_type", "VARIANT"),
    Misfit("STRUCT<a: INT>", "1", "wrong_type", "BIGINT"),
    Misfit("ARRAY<INT>", '"1"', "wrong_type", "STRING"),
    Misfit("STRING", "1", "wrong_type", "BIGINT"),
    Misfit("STRING", "1.50", "wrong_type", "DECIMAL(38, 1)"),
    Misfit("BOOLEAN", "1", "wrong_type", "BIGINT"),
    Misfit("DOUBLE", '"1,5"', "wrong_type", "STRING"),
    Misfit("DECIMAL(5, 2)", "1.239", "inexact_number", "DECIMAL(38, 3)"),
    Misfit("DECIMAL(5, 2)", "1e-5", "inexact_number", "DECIMAL(38, 5)"),
    Misfit("DECIMAL(5, 2)", "1e-40", "inexact_number", "DOUBLE"),
    Misfit("DECIMAL(5, 2)", "12345.5", "out_of_range", "DECIMAL(38, 1)"),
    Misfit("DECIMAL(5, 2)", "1e3", "out_of_range", "DECIMAL(38, 0)"),
    Misfit("DECIMAL(38, 0)", "1e38", "out_of_range", "DOUBLE"),
    Misfit("VARCHAR(2)", '"abc"', "too_long", "STRING"),
    Misfit("BINARY", '"a,b"', "bad_base64", "STRING"),
    Misfit("DATE", '"1.2.2024"', "bad_time", "STRING"),
    Misfit("TIMESTAMP", "1e10", "bad_time", "DECIMAL(38, 0)"),
]


@pytest.mark.parametrize("case", OF_JSON, ids=str)
def test_the_type_that_the_detail_finds_takes_the_value(case: Misfit) -> None:
    """The detail names what was declared and what came; a column of that is filled."""
    sent = Sent(f'{{"id": 1, "x": {case.value}}}'.encode())
    bad = outcome(declared(schema=f"id BIGINT, x {case.type}"), sent)

    told = _FOUND.match(bad["_detail"])

    assert told is not None, bad["_detail"]
    assert (bad["_reason"], told[2]) == (case.reason, case.found)
    (row,) = judged(declared(schema=f"id BIGINT, x {told[2]}"), SETTINGS, [sent])
    assert (row["_disposition"], row["x"] is None) == ("row", False)


PROTO = """
syntax = "proto3"; import "google/protobuf/timestamp.proto";
message Row {
  int64 id = 1; string text = 2; uint64 big = 3; bool yes = 4; double real = 5; bytes raw = 6;
  google.protobuf.Timestamp at = 7; Colour colour = 8;
}
enum Colour { RED = 0; }
"""
VALUES: dict[str, tuple[Any, str, str]] = {
    "text": ("abc", "INT", "STRING"),
    "big": (2**64 - 1, "BIGINT", "DECIMAL(38, 0)"),
    "yes": (True, "STRING", "BOOLEAN"),
    "real": (0.1, "FLOAT", "DOUBLE"),
    "raw": (b"\xff", "STRING", "BINARY"),
    "colour": (7, "STRING", "BIGINT"),
}


@pytest.mark.parametrize("field", VALUES)
def test_it_does_so_for_protobuf(registry: SmallRegistry, field: str) -> None:
    """A value whose type the schema says is taken by the column that the detail names."""
    value, declared_type, found = VALUES[field]
    number = registry.add(PROTO.replace(f" {field} =", " x ="), "PROTOBUF")
    message = Compiled(PROTO).make("Row", id=1, **{field: value})
    sent = Sent(framed(number, b"\0" + message.SerializeToString()))
    spec = declared(format="protobuf", schema=f"id BIGINT, x {declared_type}")
    bad = outcome(spec, sent, registry.settings)

    named = bad["_detail"].partition(", found ")[2].partition(": ")[0]

    assert (bad["_reason"], named) == ("type_mismatch", found)
    spec = declared(format="protobuf", schema=f"id BIGINT, x {named}")
    assert outcome(spec, sent, registry.settings)["x"] is not None


AVRO_VALUES: list[tuple[Any, bytes, str, str]] = [
    ("string", b"\x06abc", "INT", "STRING"),
    ("long", b"\x80\x80\x80\x80\x10", "INT", "BIGINT"),
    ("boolean", b"\x01", "STRING", "BOOLEAN"),
    ("float", b"\x00\x00\x80\x3f", "STRING", "FLOAT"),
    ("double", b"\x9a\x99\x99\x99\x99\x99\xb9\x3f", "FLOAT", "DOUBLE"),
    ("bytes", b"\x02\xff", "STRING", "BINARY"),
    ({"type": "int", "logicalType": "date"}, b"\x02", "TIMESTAMP", "DATE"),
    ({"type": "long", "logicalType": "timestamp-millis"}, b"\x02", "DATE", "TIMESTAMP"),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, b"\2", "DATE", "TIMESTAMP_NTZ"),
    ({"type": "long", "logicalType": "timestamp-nanos"}, b"\x02", "TIMESTAMP", "BIGINT"),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
        b"\x04\x04\xd2",
        "DECIMAL(5, 2)",
        "DECIMAL(38, 3)",
    ),
]


@pytest.mark.parametrize(("type_", "raw", "wrong", "found"), AVRO_VALUES, ids=str)
def test_it_does_so_for_avro(
    registry: SmallRegistry, type_: Any, raw: bytes, wrong: str, found: str
) -> None:
    """Every type of Avro that a column refuses is named as one that takes it."""
    fields = [{"name": "id", "type": "long"}, {"name": "x", "type": type_}]
    number = registry.add({**AVRO, "fields": fields})
    sent = Sent(framed(number, b"\x02" + raw))
    spec = declared(format="avro", schema=f"id BIGINT, x {wrong}")
    told = _FOUND.match(outcome(spec, sent, registry.settings)["_detail"])

    assert told is not None
    assert told[2] == found
    spec = declared(format="avro", schema=f"id BIGINT, x {told[2]}")
    assert outcome(spec, sent, registry.settings)["x"] is not None


@pytest.mark.parametrize(
    ("format_", "wrong", "raw", "found"),
    [
        ("csv", "INT", b"1,abc", "STRING"),
        ("csv", "DECIMAL(5, 2)", b"1,4.0E-4", "DECIMAL(38, 4)"),
        ("csv", "BOOLEAN", b"1,yes", "STRING"),
        ("debezium", "INT", b'{"op": "c", "after": {"id": 1, "x": "a"}}', "STRING"),
        ("debezium", "INT", b'{"op": "c", "after": {"id": 1, "x": 3000000000}}', "BIGINT"),
        ("debezium", "STRING", b'{"op": "c", "after": {"id": 1, "x": true}}', "BOOLEAN"),
    ],
    ids=str,
)
def test_it_does_so_for_other_formats(format_: str, wrong: str, raw: bytes, found: str) -> None:
    """CSV and Debezium say likewise what came."""
    spec = declared(format=format_, schema=f"id BIGINT, x {wrong}")
    told = _FOUND.match(outcome(spec, Sent(raw))["_detail"])

    assert told is not None
    assert told[2] == found
    better = declared(format=format_, schema=f"id BIGINT, x {told[2]}")
    assert outcome(better, Sent(raw))["x"] is not None


@pytest.mark.parametrize("value", ['"NaN"', "1e400"], ids=["text", "number"])
def test_what_is_not_finite_is_kept_as_text(value: str) -> None:
    """A lenient STRING takes a number that no DOUBLE holds, and text that spells none."""
    sent = Sent(f'{{"id": 1, "x": {value}}}'.encode())
    bad = outcome(declared(schema="id BIGINT, x DOUBLE"), sent)

    assert bad["_reason"] == "not_finite"
    assert "STRING, with `types: {column: lenient}`" in REMEDIES["not_finite"]
    spec = declared(schema="id BIGINT, x STRING", types={"x": "lenient"})
    assert outcome(spec, sent)["x"] == value.strip('"')


def test_a_number_in_quotes_is_first_of_all_a_number() -> None:
    """What was found is a text: to declare that would make a column of numbers one of texts."""
    assert REMEDIES["wrong_type"].startswith("for a number in quotes, ")
    assert "`types: {column: lenient}`" in REMEDIES["wrong_type"].partition("; else declare")[0]


def test_a_null_in_a_struct_is_taken_without_not_null(registry: SmallRegistry) -> None:
    """The remedy names NOT NULL, and without it the record is a row."""
    fields = [{"name": "id", "type": "long"}, {"name": "x", "type": {**AVRO, "name": "X"}}]
    number = registry.add({**AVRO, "fields": fields})
    sent = Sent(framed(number, b"\x02\x02\x06abc"))
    spec = declared(format="avro", schema="id BIGINT, x STRUCT<id: INT, lost: INT NOT NULL>")
    bad = outcome(spec, sent, registry.settings)

    assert bad["_detail"].endswith("x.lost: null, and NOT NULL")
    assert "for a null in a STRUCT, remove NOT NULL" in REMEDIES["type_mismatch"]
    spec = declared(format="avro", schema="id BIGINT, x STRUCT<id: INT, lost: INT>")
    assert outcome(spec, sent, registry.settings)["x"] == {"id": 1, "lost": None}


ID_IN_CASES = {
    "another case alone": ('{"ID": 1, "name": "a"}', "wrong_case"),
    "both, the declared first": ('{"id": 1, "ID": 2, "name": "a"}', None),
    "both, the declared last": ('{"ID": 2, "id": 1, "name": "a"}', None),
    "the declared is null": ('{"id": null, "ID": 2}', "missing_key"),
    "within": ('{"id": 1, "name": "a", "who": {"X": 2}}', "wrong_case"),
    "within, both": ('{"id": 1, "name": "a", "who": {"x": 1, "X": 2}}', None),
    "in one of two": ('{"id": 1, "many": [{"x": 1, "X": 1}, {"X": 2}]}', "wrong_case"),
    "in each of two": ('{"id": 1, "many": [{"x": 1, "X": 1}, {"X": 2, "x": 2}]}', None),
}


@pytest.mark.parametrize(("text", "reason"), ID_IN_CASES.values(), ids=ID_IN_CASES)
def test_a_name_in_another_case_is_refused_only_where_it_replaces_the_declared_one(
    text: str, reason: str | None
) -> None:
    """Beside the declared name it is one more field; in its place it would be lost."""
    ddl = "id BIGINT, name STRING, who STRUCT<x: INT>, many ARRAY<STRUCT<x: INT>>"
    spec = declared(schema=ddl)
    both = Sent(b'{"id": 1, "ID": 9, "who": {"x": 1, "X": 2}, "many": [{"x": 1, "X": 1}]}')
    # Of names that come often a reader learns that they are none of the declared ones.
    sent = [both] * 80 + [Sent(text.encode())] + [both] * 80

    rows = judged(spec, SETTINGS, sent)
    proof = classified(spec, SETTINGS, sent)

    refused = {row["_offset"]: row["_reason"] for row in rows if row["_reason"]}
    assert refused == ({80: reason} if reason else {})
    assert [record.offset for record, _ in proof.bad] == list(refused)
    assert {row["id"] for row in rows if not row["_reason"]} == {1}


def test_a_name_as_the_records_write_it_loads_wherever_the_file_has_it() -> None:
    """The first way that the remedy names: in `schema`, and in `keys`."""
    sent = Sent(b'{"ID": 1, "name": "a"}')

    assert outcome(declared(), sent)["_reason"] == "wrong_case"
    assert "in `schema` and wherever else the file has it (`keys`" in REMEDIES["wrong_case"]
    renamed = declared(schema="ID BIGINT, name STRING", keys=["ID"])
    assert outcome(renamed, sent)["ID"] == 1


CONNECT = {
    "schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}]},
    "payload": {"id": 1, "name": "a"},
}
CHANGE = {**CONNECT, "payload": {"op": "c", "after": {"id": 1, "name": "a"}}}


@pytest.mark.parametrize("schemas", [False, True])
def test_debezium_sends_no_row_of_connect_to_a_format_that_sends_it_back(schemas: bool) -> None:
    """The detail leads to the page that reads it, and to the option where it is a change."""
    spec = declared(format={"type": "debezium", "schemas": schemas})
    row = outcome(spec, Sent(json.dumps(CONNECT).encode()))
    change = outcome(spec, Sent(json.dumps(CHANGE).encode()))
    plain = outcome(spec, Sent(b'{"id": 1}'))

    assert row["_reason"] == "malformed_debezium"
    if not schemas:
        assert "see docs/json.md, Kafka Connect" in row["_detail"]
        assert "which the option `schemas: true` reads" in change["_detail"]
        assert "unwrapped are `json`" in plain["_detail"]
    else:
        assert change["_disposition"] == "row"


@pytest.mark.parametrize(
    ("format_", "reason"), [("json", "malformed_json"), ("debezium", "malformed_debezium")]
)
def test_a_byte_order_mark_is_called_by_its_name(format_: str, reason: str) -> None:
    """Without it the same bytes are a row; the detail says what is in the way."""
    value = {"id": 1} if format_ == "json" else {"op": "c", "after": {"id": 1}}
    text = json.dumps(value).encode()
    bad = outcome(declared(format=format_), Sent(b"\xef\xbb\xbf" + text))

    assert bad["_reason"] == reason
    assert "begins with a byte order mark" in bad["_detail"]
    assert outcome(declared(format=format_), Sent(text))["_disposition"] == "row"


def test_an_id_of_eight_bytes_is_called_so(registry: SmallRegistry) -> None:
    """The detail has the number that was meant, and with four bytes of it the record is a row."""
    number = registry.add(AVRO)
    payload = b"\x02\x06abc"
    spec = declared(format="avro")
    eight = outcome_of_unknown(spec, Sent(b"\0" + number.to_bytes(8) + payload), registry)
    four = outcome_of_unknown(spec, Sent(framed(99, payload)), registry)

    named = re.search(r"as an id of eight bytes, .* it is (\d+)$", eight["_detail"])

    assert (eight["_reason"], four["_reason"]) == ("unknown_schema_id", "unknown_schema_id")
    assert "eight bytes" not in four["_detail"]
    assert "docs/formats.md, Ids of eight bytes" in REMEDIES["unknown_schema_id"]
    assert named is not None
    again = Sent(framed(int(named[1]), payload))
    assert outcome(spec, again, registry.settings)["name"] == "abc"


def outcome_of_unknown(spec: StreamSpec, sent: Sent, registry: SmallRegistry) -> dict[str, Any]:
    """Return what the engine makes of a record that the proof cannot read today."""
    assert len(classified(spec, registry.settings, [sent]).unread) == 1
    (row,) = judged(spec, registry.settings, [sent])
    return row


def test_json_with_its_id_in_a_header_is_read_as_json(registry: SmallRegistry) -> None:
    """The remedy's second way: there is no frame, and the document says all."""
    registry.add(JSON, "JSON")
    sent = Sent(b'{"id": 1, "name": "a"}', headers=(("apicurio.value.globalId", b"1"),))

    assert outcome(declared(format="json_schema"), sent, registry.settings)["_reason"] == (
        "not_framed"
    )
    assert "declared as `format: json`" in REMEDIES["not_framed"]
    assert outcome(declared(format="json"), sent)["_disposition"] == "row"


def test_what_no_schema_reads_is_kept_raw(registry: SmallRegistry) -> None:
    """The last way of several remedies: one BINARY column takes every record."""
    sent = Sent(framed(registry.add("no proto", "PROTOBUF"), b"\0\x08\x01"))
    bad = outcome(declared(format="protobuf"), sent, registry.settings)

    assert bad["_reason"] == "unusable_schema"
    assert "`format: raw` with one BINARY column" in REMEDIES["unusable_schema"]
    raw = {"name": "s", "topic": "t", "format": "raw", "schema": "value BINARY", "mode": "append"}
    assert outcome(StreamSpec.model_validate(raw), sent)["value"] == sent.value


@pytest.mark.parametrize("text", ["4.0E-4", "4e-4", "0.4E-3", "400e-6", "4.0E-0004"])
@pytest.mark.parametrize("how", ["json", "lenient", "debezium", "text", "csv"])
def test_an_exponent_is_a_way_to_write_a_number(text: str, how: str) -> None:
    """Wherever a DECIMAL comes as a number or as text, 4.0E-4 is 0.0004."""
    fields: dict[str, Any] = {"schema": "id BIGINT, x DECIMAL(12, 6)", "format": how}
    raw = f'{{"id": 1, "x": {text}}}'
    if how == "lenient":
        fields |= {"format": "json", "types": {"x": "lenient"}}
        raw = f'{{"id": 1, "x": "{text}"}}'
    if how in ("debezium", "text"):
        fields["format"] = {"type": "debezium", "decimals": "string"}
        quoted = text if how == "debezium" else f'"{text}"'
        raw = f'{{"op": "c", "after": {{"id": 1, "x": {quoted}}}}}'
    if how == "csv":
        raw = f"1,{text}"

    assert str(outcome(declared(**fields), Sent(raw.encode()))["x"]) == "0.000400"


def test_a_decimal_of_bytes_is_not_read_as_a_number() -> None:
    """Base64 stays base64: an exponent is for numbers that are written out."""
    spec = declared(schema="id BIGINT, x DECIMAL(12, 6)", format="debezium")
    text = base64.b64encode((400).to_bytes(2)).decode()
    sent = Sent(json.dumps({"op": "c", "after": {"id": 1, "x": text}}).encode())

    assert str(outcome(spec, sent)["x"]) == "0.000400"
