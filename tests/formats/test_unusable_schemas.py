"""A schema by which nothing can be read: its record says why, and no other record waits for it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from oncelake.ingestion.errors import DependencyError
from tests.support.both_readers import Sent, classified, declared, judged
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry, small_registry

INNER = {"type": "record", "name": "Inner", "namespace": "x", "fields": []}
OUTER = {
    "type": "record",
    "name": "Outer",
    "fields": [{"name": "id", "type": "long"}, {"name": "inner", "type": "x.Inner"}],
}
PLAIN = {"type": "record", "name": "Outer", "fields": [{"name": "id", "type": "long"}]}
PROTO = 'syntax = "proto3"; import "x/inner.proto"; message Outer { int64 id = 1; x.Inner i = 2; }'
PROTO_INNER = 'syntax = "proto3"; package x; message Inner { int64 y = 1; }'


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    """A registry without schemas."""
    with small_registry() as found:
        yield found


AVRO_PARTS = (json.dumps(INNER), json.dumps(OUTER), "x.Inner", b"\x02")
PROTO_PARTS = (PROTO_INNER, PROTO, "x/inner.proto", b"\x00\x08\x01")
FORMATS = [("avro", "AVRO", AVRO_PARTS), ("protobuf", "PROTOBUF", PROTO_PARTS)]


@pytest.mark.parametrize(("format_", "type_", "parts"), FORMATS, ids=["avro", "protobuf"])
def test_a_reference_that_is_gone_spoils_only_its_own_records(
    registry: SmallRegistry, format_: str, type_: str, parts: tuple[str, str, str, bytes]
) -> None:
    """The detail names id, subject and version; once they are registered again, it is a row."""
    inner, outer, name, payload = parts
    at = ("inner-value", 3)
    bad = registry.add(outer, type_, references=[(name, *at)])
    plain = json.dumps(PLAIN) if type_ == "AVRO" else 'syntax="proto3"; message Outer {int64 id=1;}'
    good = registry.add(plain, type_)
    spec, records = declared(format=format_), [Sent(framed(n, payload)) for n in (bad, good)]

    before = judged(spec, registry.settings, records)
    proof = classified(spec, registry.settings, records)

    registry.add(inner, type_, at=at)
    after = judged(spec, registry.settings, records)
    assert [row["_reason"] for row in before] == ["unknown_schema_id", None]
    assert before[0]["_detail"] == (
        f"schema id {bad}: it refers to {name}, version 3 of subject inner-value, which the "
        "registry does not have"
    )
    assert (proof.bad, [record.offset for record, _ in proof.unread]) == ([], [0])
    assert [row["id"] for row in after] == [1, 1]
    assert len(classified(spec, registry.settings, records).changes) == 2


def test_a_reference_of_a_reference_may_be_gone(registry: SmallRegistry) -> None:
    """However deep it is, it is named; a chain without it is read."""
    middle = 'syntax = "proto3"; package x; import "x/deep.proto"; message Inner { x.Deep d = 1; }'
    registry.add(middle, "PROTOBUF", references=[("x/deep.proto", "deep", 1)], at=("inner", 1))
    number = registry.add(PROTO, "PROTOBUF", references=[("x/inner.proto", "inner", 1)])

    (row,) = judged(
        declared(format="protobuf"), registry.settings, [Sent(framed(number, b"\0\x08\1"))]
    )

    assert "x/deep.proto, version 1 of subject deep" in row["_detail"]


def test_versions_that_are_deleted_but_not_for_good_are_read(registry: SmallRegistry) -> None:
    """A subject that was cleaned up still says what its records mean."""
    registry.add(INNER, at=("inner", 1))
    registry.hidden.add(("inner", 1))
    number = registry.add(OUTER, references=[("x.Inner", "inner", 1)])
    records = [Sent(framed(number, b"\x02"))]

    (row,) = judged(declared(format="avro"), registry.settings, records)

    assert (row["id"], row["_disposition"]) == (1, "row")
    assert len(classified(declared(format="avro"), registry.settings, records).changes) == 1


def test_a_json_schema_needs_nothing_of_what_it_refers_to(registry: SmallRegistry) -> None:
    """Its records are not validated against it, so a reference that is gone spoils none."""
    number = registry.add({"$ref": "other.json"}, "JSON", references=[("other.json", "gone", 1)])
    records = [Sent(framed(number, b'{"id": 1}'))]

    (row,) = judged(declared(format="json_schema"), registry.settings, records)

    assert row["_disposition"] == "row"
    assert len(classified(declared(format="json_schema"), registry.settings, records).changes) == 1


def test_a_registry_that_fails_at_a_reference_may_be_asked_again(registry: SmallRegistry) -> None:
    """Only a plain answer that there is none makes a record bad; any other ends the run."""
    answer = registry.answer

    def failing(path: str) -> tuple[int, dict[str, object]]:
        return (
            (500, {"error_code": 50001, "message": "x"}) if "/versions/" in path else answer(path)
        )

    registry.answer = failing  # type: ignore[method-assign]
    number = registry.add(OUTER, references=[("x.Inner", "inner", 1)])

    with pytest.raises(DependencyError, match="does not answer as expected"):
        judged(declared(format="avro"), registry.settings, [Sent(framed(number, b"\x02"))])


REFUSED = {
    "syntax": ("message Outer { int64 id = 1 }", 'the schema:1:49: Expected ";".'),
    "unknown type": ("message Outer { strin id = 1; }", 'the schema:1:36: "strin" is not defined.'),
    "missing import": (
        'import "a/b.proto"; message Outer { int64 id = 1; }',
        "a/b.proto: File not found.",
    ),
    "twice": (
        "message Outer { int64 id = 1; int64 id = 2; }",
        '"id" is already defined in "Outer"',
    ),
    "itself": ('import "oncelake_main.proto"; message Outer {}', "recursively imports itself"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_what_protoc_refuses_is_said_in_its_own_words(
    registry: SmallRegistry, text: str, said: str
) -> None:
    """The detail has the place and the reason, and nothing of this machine."""
    number = registry.add(f'syntax = "proto3"; {text}', "PROTOBUF")
    records = [Sent(framed(number, b"\0\x08\x01"))]

    (row,) = judged(declared(format="protobuf"), registry.settings, records)

    assert row["_reason"] == "unusable_schema"
    assert row["_detail"].startswith(f"schema id {number}: protoc refuses it: ")
    assert said in row["_detail"]
    assert "/tmp" not in row["_detail"]
    assert len(classified(declared(format="protobuf"), registry.settings, records).bad) == 1


def test_what_protoc_says_of_a_reference_names_its_file(registry: SmallRegistry) -> None:
    """The file that is wrong may be one that the schema refers to; a long answer is cut."""
    wrong = (
        'syntax = "proto3"; package x; message Inner { '
        + "".join(f"nope y{n} = {n}; " for n in range(1, 50))
        + " }"
    )
    registry.add(wrong, "PROTOBUF", at=("inner", 1))
    number = registry.add(PROTO, "PROTOBUF", references=[("x/inner.proto", "inner", 1)])

    (row,) = judged(
        declared(format="protobuf"), registry.settings, [Sent(framed(number, b"\0\x08\1"))]
    )

    assert 'x/inner.proto:1:47: "nope" is not defined.' in row["_detail"]
    assert len(row["_detail"]) < 500


KNOWN = """
syntax = "proto3";
import "google/type/date.proto"; import "google/type/money.proto";
import "google/type/postal_address.proto"; import "google/protobuf/timestamp.proto";
import "confluent/meta.proto"; import "confluent/type/decimal.proto";
message Outer {
  int64 id = 1 [(confluent.field_meta).doc = "the id"];
  google.type.Date day = 2; google.type.Money paid = 3; google.type.PostalAddress home = 4;
  google.protobuf.Timestamp at = 5; confluent.type.Decimal total = 6;
}
"""


def test_the_files_that_registries_know_are_known(registry: SmallRegistry) -> None:
    """Google's common types and Confluent's own need no reference, as serializers send none."""
    number = registry.add(KNOWN, "PROTOBUF")
    ddl = "id BIGINT, day STRUCT<year: INT, month: INT>, total STRUCT<scale: INT>"
    payload = b"\0\x08\x01\x12\x05\x08\xe8\x0f\x10\x02\x32\x02\x18\x03"
    spec, records = declared(format="protobuf", schema=ddl), [Sent(framed(number, payload))]

    (row,) = judged(spec, registry.settings, records)
    proof = classified(spec, registry.settings, records)

    expected = [1, {"year": 2024, "month": 2}, {"scale": 3}]
    assert [row[name] for name in ("id", "day", "total")] == expected
    assert [list(change.row[:3]) for change in proof.changes if change.row] == [expected]


def test_compiled_schemas_may_use_them_too(registry: SmallRegistry) -> None:
    """A serializer that sends compiled files leaves such files out."""
    import base64

    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.type import date_pb2

    file = FileDescriptorProto(name="outer.proto", syntax="proto3")
    file.dependency.append("google/type/date.proto")
    message = file.message_type.add(name="Outer")
    message.field.add(name="id", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    message.field.add(
        name="day", number=2, type="TYPE_MESSAGE", type_name=".google.type.Date",
        label="LABEL_OPTIONAL",
    )  # fmt: skip
    number = registry.add(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")
    payload = b"\0\x08\x01\x12" + bytes([3]) + date_pb2.Date(year=2024).SerializeToString()
    spec = declared(format="protobuf", schema="id BIGINT, day STRUCT<year: INT>")
    records = [Sent(framed(number, payload))]

    (row,) = judged(spec, registry.settings, records)

    assert row["day"] == {"year": 2024}
    assert len(classified(spec, registry.settings, records).changes) == 1


def test_a_file_that_the_schema_brings_along_is_taken_for_the_known_one(
    registry: SmallRegistry,
) -> None:
    """Whoever registers such a file means that one."""
    own = 'syntax = "proto3"; package google.type; message Date { int64 id = 1; int32 era = 2; }'
    registry.add(own, "PROTOBUF", at=("date", 1))
    text = 'syntax = "proto3"; import "google/type/date.proto"; message Outer { int64 id = 1; '
    number = registry.add(
        text + "google.type.Date day = 2; }",
        "PROTOBUF",
        references=[("google/type/date.proto", "date", 1)],
    )
    spec = declared(format="protobuf", schema="id BIGINT, day STRUCT<era: INT>")
    records = [Sent(framed(number, b"\0\x08\x01\x12\x02\x10\x07"))]

    (row,) = judged(spec, registry.settings, records)

    assert row["day"] == {"era": 7}
    assert len(classified(spec, registry.settings, records).changes) == 1
