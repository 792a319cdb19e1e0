"""Columns that headers and the Kafka key give: the same to engine and proof, in every format."""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from oncelake.ingestion.declaration.rules.notices import notices_of
from oncelake.ingestion.declaration.spec import meaning
from oncelake.ingestion.operations.quarantine.remedies import REMEDIES
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.fold.transform import NOT_INDEPENDENT
from tests.support.both_readers import Headers, Sent, classified, declared, judged
from tests.support.debezium import MISSING
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry, small_registry
from tests.support.world import World

TENANTS = {
    "schema": "id BIGINT, name STRING, tenant STRING",
    "from_headers": {"tenant": "x-tenant"},
}
PROTO = 'syntax = "proto3"; message Row { string name = 1; }'
NAME = {"type": "record", "name": "Row", "fields": [{"name": "name", "type": "string"}]}
ROW = {**NAME, "name": "Change"}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW]},
        {"name": "after", "type": ["null", "Change"]},
        {"name": "op", "type": "string"},
    ],
}
# A format, what its registry has, and the value of the name "ann".
VALUES: dict[str, tuple[Any, tuple[Any, str] | None, bytes]] = {
    "json": ("json", None, b'{"name": "ann", "id": 99, "n": 98}'),
    "csv": ("csv", None, b"ann"),
    "string": ("string", None, b"ann"),
    "avro": ("avro", (NAME, "AVRO"), b"\x06ann"),
    "protobuf": ("protobuf", (PROTO, "PROTOBUF"), b"\x00\x0a\x03ann"),
    "json_schema": ("json_schema", ({"title": "Row"}, "JSON"), b'{"name": "ann"}'),
    "debezium": ("debezium", None, b'{"op": "c", "after": {"name": "ann"}}'),
    "debezium of Avro": (
        {"type": "debezium", "encoding": "avro"},
        (ENVELOPE, "AVRO"),
        b"\x00\x02\x06ann\x02c",
    ),
}
# A column, the bytes of its header, and its value; nothing where it can hold none.
HEADERS: dict[str, list[tuple[bytes, Any]]] = {
    "STRING": [(b"", ""), (b"\xc3\xa9", "é"), (b"\xff", None)],
    "VARCHAR(2)": [(b"ab", "ab"), (b"abc", None)],
    "BINARY": [(b"\xff", b"\xff")],
    "BOOLEAN": [(b"true", True), (b"1", None)],
    "INT": [(b"-7", -7), (b"2147483648", None), (b"1.5", None), (b"", None), (b" 1", None)],
    "DOUBLE": [(b"1.5", 1.5), (b"1e400", None)],
    "DECIMAL(5, 2)": [(b"1.50", Decimal("1.50")), (b"1.505", None)],
    "DATE": [(b"2024-02-29", dt.date(2024, 2, 29)), (b"2023-02-29", None)],
    "TIMESTAMP": [
        (b"2024-02-29T12:00:00+01:00", dt.datetime(2024, 2, 29, 11, tzinfo=dt.UTC)),
        (b"noon", None),
    ],
}


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    """A registry without schemas."""
    with small_registry() as found:
        yield found


def outcomes(settings: Settings, records: list[Sent], **fields: Any) -> list[Any]:
    """Return each record's row, or its reason and detail, once the proof agrees with the engine."""
    spec = declared(**fields)
    rows = judged(spec, settings, records)
    proven = classified(spec, settings, records)
    width = len(spec.columns)
    changes = {c.offset: c.row and c.row[:width] for c in proven.changes}
    bad = {record.offset for record, _ in (*proven.bad, *proven.unread)}
    found = []
    for row in rows:
        values, offset = tuple(row[name] for name in spec.types), row["_offset"]
        if row["_disposition"] == "quarantined":
            assert offset in bad
            found.append(f"{row['_reason']}: {row['_detail']}")
        elif row["_disposition"] in ("row", "delete"):
            assert changes[offset] == (values if row["_disposition"] == "row" else None)
            found.append(values if row["_disposition"] == "row" else ("delete", *values))
        else:
            assert offset not in bad
            found.append(row["_disposition"])
    return found


@pytest.mark.parametrize("name", VALUES)
def test_every_format_takes_columns_of_headers(registry: SmallRegistry, name: str) -> None:
    """Beside the value's columns, and whatever the value has under their names."""
    format_, registered, payload = VALUES[name]
    if registered:
        payload = framed(registry.add(*registered), payload)
    headers: Headers = (("n", b"1"), ("id", b"2"), ("n", b"3"))
    fields = {
        "schema": "n INT, name STRING, id BIGINT",
        "format": format_,
        "from_headers": {"n": "n", "id": "id"},
    }
    records = [Sent(payload, headers=headers), Sent(payload, headers=headers[1:2])] * 40

    found = outcomes(registry.settings, records, **fields)

    assert found == [(3, "ann", 2), (None, "ann", 2)] * 40


@pytest.mark.parametrize("name", [name for name in VALUES if not name.startswith("debezium")])
def test_every_format_takes_columns_of_the_key(registry: SmallRegistry, name: str) -> None:
    """In every record, and not of null values alone; a null value deletes by the same key."""
    format_, registered, payload = VALUES[name]
    if registered:
        payload = framed(registry.add(*registered), payload)
    fields = {"schema": "name STRING, id BIGINT", "format": format_, "from_key": "id"}
    records = [Sent(payload, b"7"), Sent(payload, b'{"id": 8}'), Sent(None, b"7")]

    found = outcomes(registry.settings, records, **fields)

    assert found == [("ann", 7), ("ann", 8), ("delete", None, 7)]


@pytest.mark.parametrize("type_", HEADERS)
def test_a_header_is_taken_as_a_field_of_csv(type_: str) -> None:
    """What its column cannot hold is quarantined, with a reason that names the header."""
    cases = HEADERS[type_]
    records = [Sent(b'{"id": 1}', headers=(("h", raw),)) for raw, _ in cases]
    fields = {"schema": f"id BIGINT, it {type_}", "from_headers": {"it": "h"}}

    found = outcomes(Settings(), records, **fields)

    for (raw, value), outcome in zip(cases, found, strict=True):
        if value is None:
            assert str(outcome).startswith("bad_header: header h: "), raw
        else:
            assert outcome == (1, value)


UUID = b"123e4567-e89b-12d3-a456-426614174000"


@pytest.mark.parametrize(
    ("format_", "type_", "good", "value", "bad"),
    [
        ("short", "SMALLINT", b"12", 12594, b"1234"),
        ("int", "INT", b"1234", 825373492, b"12345"),
        ("int", "BIGINT", b"\xff\xff\xff\xff", -1, b""),
        ("long", "BIGINT", b"12345678", 3544952156018063160, b"1234"),
        ("uuid", "STRING", UUID, UUID.decode(), UUID.upper()),
    ],
)
def test_a_header_that_java_wrote_is_read_by_its_declared_format(
    format_: str, type_: str, good: bytes, value: Any, bad: bytes
) -> None:
    """Other bytes are quarantined; a null value has it in key and order, too."""
    records = [
        *(Sent(b'{"id": 1}', headers=(("h", raw),)) for raw in (good, bad)),
        *(Sent(b'{"id": 1}', headers=each) for each in ((("h", None),), ())),
        *(Sent(None, b"1", (("h", raw),)) for raw in (good, bad)),
    ]
    fields = {"schema": f"id BIGINT, it {type_}", "from_headers": {"it": "h"}}
    as_order = {"keys": ["id"], "sequence_by": ["it"]}

    found = outcomes(Settings(), records, **fields, header_format={"it": format_}, **as_order)

    assert found[0] == (1, value)
    assert str(found[1]).startswith(f"bad_header: header h: no {format_}: ")
    assert found[2:4] == ["missing_order: null: it"] * 2
    assert found[4] == ("delete", 1, value)
    assert f"bad_header: header h: no {format_}: " in str(found[5])


def test_a_header_of_four_bytes_is_text_until_its_format_is_declared() -> None:
    """Of several columns each has its own, and two may take one header."""
    sent = [Sent(b'{"id": 1}', headers=(("h", b"1234"), ("t", b"5")))]
    fields = {
        "schema": "id BIGINT, a INT, b INT, c INT",
        "from_headers": {"a": "h", "b": "h", "c": "t"},
    }

    assert outcomes(Settings(), sent, **fields) == [(1, 1234, 1234, 5)]
    declared_b = {**fields, "header_format": {"b": "int"}}
    assert outcomes(Settings(), sent, **declared_b) == [(1, 1234, 825373492, 5)]


def test_a_header_in_quarantine_is_sent_in_again_by_its_format(world: World) -> None:
    """The remedy names the field, and the proof knows both declarations."""
    world.declare(
        schema="id INT, version INT",
        from_headers={"version": "v"},
        quarantine_rate={"fail_above": 1},
    )
    headers = [("v", (5).to_bytes(4))]
    world.producer.produce(world.topic, b'{"id": 1}', partition=0, headers=headers)
    assert world.producer.flush(30) == 0
    world.run()
    (waits,) = world.quarantined()
    world.declare(header_format={"version": "int"})

    world.redrive()

    assert waits["reason"] == "bad_header"
    assert "`header_format`" in REMEDIES["bad_header"]
    assert world.rows() == [{"id": 1, "version": 5}]
    assert find_problems(world) == ()


def test_the_last_header_counts_and_none_is_null() -> None:
    """Of several of one name the last; a header without a value is null, too."""
    value = b'{"id": 1, "name": "a", "tenant": "of the value"}'
    found = outcomes(
        Settings(),
        [
            Sent(value, headers=(("x-tenant", b"a"), ("other", b"c"), ("x-tenant", b"b"))),
            Sent(value, headers=(("x-tenant", b"a"), ("x-tenant", None))),
            Sent(value, headers=(("X-Tenant", b"a"),)),
            Sent(value),
        ],
        **TENANTS,
    )

    assert found == [(1, "a", "b"), *[(1, "a", None)] * 3]


def test_the_values_own_field_is_an_extra_field() -> None:
    """It is in no column, so that it is counted or rejected as any other."""
    sent = Sent(b'{"id": 1, "tenant": 5}', headers=(("x-tenant", b"t"),))

    counted = judged(declared(**TENANTS), Settings(), [sent])
    rejected = outcomes(Settings(), [sent], **TENANTS, extra_fields="reject")

    assert [(row["tenant"], row["_extra"]) for row in counted] == [("t", ["tenant"])]
    assert rejected == ["unknown_field: tenant"]


def test_headers_identify_rows_and_order_them() -> None:
    """A null value, which has headers, deletes the row of its tenant, in its place."""
    fields = {
        "schema": "tenant STRING, id INT, name STRING, version INT",
        "from_headers": {"tenant": "tenant", "version": "version"},
        "keys": ["tenant", "id"],
        "sequence_by": ["version"],
    }
    value = b'{"id": 1, "name": "a"}'
    sent: Headers = (("tenant", b"t"), ("version", b"3"))
    found = outcomes(
        Settings(),
        [
            Sent(value, headers=sent),
            Sent(value, headers=sent[1:]),
            Sent(value, headers=sent[:1]),
            Sent(None, b"1", sent),
            Sent(None, b"1", sent[:1]),
            Sent(None, b"1", (("tenant", b"t"), ("version", b"x"))),
            Sent(None, None, sent),
        ],
        **fields,
    )

    assert found[0] == ("t", 1, "a", 3)
    assert found[1:3] == ["missing_key: null: tenant", "missing_order: null: version"]
    assert found[3] == ("delete", "t", 1, None, 3)
    assert found[4] == "missing_order: null: version"
    assert str(found[5]).startswith("tombstone_without_key: bad_header: header version: ")
    assert str(found[6]).startswith("tombstone_without_key: ")


@pytest.mark.parametrize("deletes", ["hard", "soft"])
@pytest.mark.parametrize(
    "given",
    [
        {"from_headers": {"tenant": "t", "seen": "n"}},
        {"from_headers": {"tenant": "t", "seen": "n"}, "sequence_by": ["seen"]},
        {"from_key": ["id", "tenant"]},
    ],
    ids=["headers", "order", "key"],
)
def test_a_null_value_has_only_key_and_order_of_them(
    world: World, deletes: str, given: dict[str, Any]
) -> None:
    """Another column is not asked, so that no header of it keeps the delete from its row."""
    world.declare(schema="id INT, tenant STRING, seen INT", deletes=deletes, **given)

    def send(value: bytes | None, *headers: tuple[str, bytes]) -> None:
        key = b'{"id": 1, "tenant": "u"}'
        world.producer.produce(world.topic, value, key, headers=list(headers))
        world.run()

    send(b"{}" if "from_key" in given else b'{"id": 1}', ("t", b"u"), ("n", b"1"))
    send(None, ("t", b"\xff"), ("n", b"2"))
    send(None, ("t", b"v"), ("n", b"3"))

    seen = 3 if "sequence_by" in given else None
    left = [{"id": 1, "tenant": None, "seen": seen}] if deletes == "soft" else []
    assert world.rows() == left
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    ("key_format", "schema", "key", "row"),
    [
        ("long", "name STRING, id BIGINT", struct.pack(">q", 5), ("ann", 5)),
        ("string", "name STRING, id STRING", b"5", ("ann", "5")),
        ("json", "name STRING, id STRING", b"five", ("ann", "five")),
        ("csv", "name STRING, id INT, part STRING", b"a,5", ("ann", 5, "a")),
        ("json", "name STRING, id INT, part STRING", b'{"part": "a", "id": 5}', ("ann", 5, "a")),
    ],
)
def test_a_key_is_decoded_by_its_format(
    key_format: str, schema: str, key: bytes, row: tuple[Any, ...]
) -> None:
    """With its columns in its order; a key that is none is quarantined, and none is null."""
    of_key = ["part", "id"] if "part" in schema else ["id"]
    fields = {"schema": schema, "key_format": key_format, "from_key": of_key}
    records = [Sent(b'{"name": "ann"}', each) for each in (key, None, b"\xff")]

    good, without, bad = outcomes(Settings(), records, **fields, keys=of_key)

    assert good == row
    assert without.startswith("missing_key: null: ")
    assert bad.startswith("bad_key: ")


def test_a_key_of_the_registry_gives_columns(registry: SmallRegistry) -> None:
    """By the schema that the key itself names; an unknown one is bad, as of a value."""
    number = registry.add(NAME)
    fields = {"schema": "id INT, name STRING", "key_format": "avro", "from_key": ["name"]}
    sent = [Sent(b'{"id": 1}', framed(each, b"\x06ann")) for each in (number, 77)]

    good, bad = outcomes(registry.settings, sent, **fields, tombstones="ignore")

    assert good == (1, "ann")
    assert bad == "bad_key: unknown_schema_id: schema id 77: the registry does not know it"


def test_a_record_of_another_type_is_filtered_whatever_its_headers_are(
    registry: SmallRegistry,
) -> None:
    """Only records of the declared type are asked for their headers."""
    ours, other = registry.add(NAME), registry.add({**NAME, "name": "Other"})
    records = [
        Sent(framed(number, b"\x06ann"), headers=(("n", raw),))
        for number, raw in ((ours, b"1"), (other, b"x"), (ours, b"x"))
    ]
    fields = {"schema": "id INT, name STRING", "from_headers": {"id": "n"}, "record": "Row"}

    good, filtered, bad = outcomes(registry.settings, records, **fields, format="avro")

    assert (good, filtered) == ((1, "ann"), "filtered")
    assert bad.startswith("bad_header: header n: type_mismatch: ")


def test_an_update_that_ends_a_row_ends_it_for_the_same_header() -> None:
    """The row before has the tenant of the record, in which another key stands."""
    change = {"op": "u", "before": {"id": 1}, "after": {"id": 2, "name": "a"}}
    spec = declared(**TENANTS, format="debezium", keys=["tenant", "id"])
    sent = [Sent(json.dumps(change).encode(), headers=(("x-tenant", b"t"),))]

    rows = judged(spec, Settings(), sent)
    proven = classified(spec, Settings(), sent).changes

    assert [(row["_disposition"], row["tenant"], row["id"]) for row in rows] == [
        ("row", "t", 2),
        ("delete", "t", 1),
    ]
    assert sorted(change.key for change in proven) == ["['t', 1]", "['t', 2]"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"from_headers": {"tennant": "t"}}, "'tennant' is not a column of `schema`"),
        ({"from_headers": {"tags": "t"}}, "a header is one text"),
        ({"from_headers": {"name": ""}}, "at least 1 character"),
        ({"from_key": ["nam"]}, "'nam' is not a column of `schema`"),
        ({"from_key": ["name"], "from_headers": {"name": "n"}}, "`from_key` gives name, too"),
        ({"from_key": ["id"], "format": "debezium"}, "an envelope have the columns of their key"),
        ({"from_key": ["id", "name", "tags"]}, "no column is left for the value"),
        ({"from_key": ["id", "name"], "key_format": "long"}, "reads exactly one key column"),
        ({"from_key": ["name"], "tombstones": "delete"}, "nor `from_headers` gives id"),
        ({"from_headers": {"id": "h"}, "types": {"id": "lenient"}}, "comes from a header"),
        ({"header_format": {"id": "int"}}, "'id' is not a column of `from_headers`"),
        (
            {"from_headers": {"name": "h"}, "header_format": {"name": "int"}},
            "`int` fills INT or BIGINT, and name is STRING",
        ),
        ({"from_headers": {"name": "h"}, "header_format": {"name": "text"}}, "'short', 'int', 'lo"),
    ],
)
def test_what_headers_and_key_cannot_give_is_refused(fields: Any, message: str) -> None:
    """When the file is loaded, with what to write instead."""
    with pytest.raises(ValidationError, match=message):
        declared(schema="id BIGINT, name STRING, tags ARRAY<STRING>", **fields)


def test_a_null_value_without_a_key_is_told_when_the_file_is_loaded() -> None:
    """It goes to quarantine by default, for the reason that the notice names."""
    fields = {"schema": "id INT, part STRING, name STRING", "from_key": "part"}
    spec = declared(**fields, keys=["id", "part"])

    (notice,) = notices_of(spec)
    (found,) = judged(spec, Settings(), [Sent(None, b"a")])

    assert notice.startswith("a null value has no id, so that it deletes nothing: ")
    assert found["_reason"] == "tombstone_without_key"
    assert "as tombstone_without_key. Next" in notice
    assert len(classified(spec, Settings(), [Sent(None, b"a")]).bad) == 1


def test_the_note_of_a_commit_tells_where_columns_came_from() -> None:
    """Both fields decide what a record means."""
    assert meaning(declared(**TENANTS)) == {"from_headers": {"tenant": "x-tenant"}}
    assert meaning(declared(from_key="id")) == {"from_key": ["id"]}
    as_int = {"from_headers": {"name": "n"}, "header_format": {"name": "uuid"}}
    assert meaning(declared(**as_int)) == as_int


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["auto", *twins("spark")])
def test_columns_of_headers_and_key_arrive_in_the_table(world: World, engine: str) -> None:
    """In both engines, seen by `where` and `select`, in its order, with a proof."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(
        schema="tenant STRING NOT NULL, id BIGINT, name STRING, version INT",
        value_schema="first STRING, last STRING",
        select={"name": "first || last"},
        from_headers={"tenant": "x-tenant", "version": "v"},
        from_key=["id"],
        key_format="long",
        keys=["tenant", "id"],
        sequence_by=["version"],
        where="tenant <> 'test'",
    )
    sent: list[tuple[bytes | None, int, list[tuple[str, bytes]]]] = [
        (b'{"first": "a", "last": "b"}', 1, [("x-tenant", b"t"), ("v", b"2")]),
        (b'{"first": "old", "last": "b"}', 1, [("x-tenant", b"t"), ("v", b"1")]),
        (b'{"first": "c", "last": "d"}', 1, [("x-tenant", b"u"), ("v", b"1")]),
        (b'{"first": "e", "last": "f"}', 2, [("x-tenant", b"test"), ("v", b"1")]),
        (b'{"first": "g", "last": "h"}', 3, [("x-tenant", b"t"), ("v", b"one")]),
        (b'{"first": "i", "last": "j"}', 4, [("x-tenant", b"t"), ("v", b"5")]),
        (None, 4, [("x-tenant", b"t"), ("v", b"6")]),
        (None, 1, [("x-tenant", b"u"), ("v", b"0")]),
    ]
    for value, key, headers in sent:
        raw = struct.pack(">q", key)
        world.producer.produce(world.topic, value, raw, partition=0, headers=list(headers))
    assert world.producer.flush(30) == 0
    world.run()

    assert world.rows() == [
        {"tenant": "t", "id": 1, "name": "ab", "version": 2},
        {"tenant": "u", "id": 1, "name": "cd", "version": 1},
    ]
    (bad,) = world.quarantined()
    assert (bad["reason"], bad["detail"][:10]) == ("bad_header", "header v: ")
    verdict = prove(world)
    limits = (NOT_INDEPENDENT,) if engine == "spark" else ()
    assert (verdict.holds, verdict.limits) == (True, limits), verdict.differences


@pytest.mark.kafka
def test_a_key_in_quarantine_is_sent_in_again_with_its_headers(world: World) -> None:
    """Once the declaration has the format of the keys, their records are applied."""
    world.declare(
        schema="id INT, name STRING, tenant STRING",
        from_headers={"tenant": "t"},
        from_key="id",
        key_format="int",
        quarantine_rate={"fail_above": 1},
    )
    for id in (1, 2):
        key, headers = str(id).encode(), [("t", b"u")]
        world.producer.produce(world.topic, b'{"name": "a"}', key, partition=0, headers=headers)
    assert world.producer.flush(30) == 0
    world.run()
    waiting = [(row["reason"], row["detail"]) for row in world.quarantined()]

    world.declare(key_format="json")
    world.redrive()

    assert waiting == [("bad_key", "malformed_key: 1 byte, not 4")] * 2
    assert world.rows() == [{"id": id, "name": "a", "tenant": "u"} for id in (1, 2)]
    assert prove(world).holds


@pytest.mark.kafka
@pytest.mark.parametrize("engine", ["auto", *twins("spark")])
def test_a_row_of_debezium_moves_within_its_tenant(world: World, engine: str) -> None:
    """The header is a part of both keys, and what the update leaves out comes from the old row."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    world.declare(
        schema="tenant STRING, id INT, name STRING, text STRING",
        format="debezium",
        from_headers={"tenant": "t"},
        keys=["tenant", "id"],
    )
    old, new = {"id": 1, "name": "a", "text": "long"}, {"id": 2, "name": "b", "text": MISSING}
    changes = [
        ({"op": "c", "before": None, "after": old}, "t"),
        ({"op": "c", "before": None, "after": {**old, "text": "other"}}, "u"),
        ({"op": "u", "before": old, "after": new}, "t"),
    ]
    for change, tenant in changes:
        value, headers = json.dumps(change).encode(), [("t", tenant.encode())]
        world.producer.produce(world.topic, value, partition=0, headers=headers)
        assert world.producer.flush(30) == 0
        world.run()

    assert world.rows() == [
        {"tenant": "t", "id": 2, "name": "b", "text": "long"},
        {"tenant": "u", "id": 1, "name": "a", "text": "other"},
    ]
    assert prove(world).holds


@pytest.mark.spark
def test_each_element_has_the_columns_of_its_record(world: World) -> None:
    """Header and key are the record's, in each row that it gives."""
    world.declare(
        schema="tenant STRING, id INT, sku STRING",
        value_schema="items ARRAY<STRUCT<sku: STRING>>",
        explode="items",
        select={"sku": "items.sku"},
        from_headers={"tenant": "t"},
        from_key="id",
        keys=["id", "sku"],
    )
    value = b'{"items": [{"sku": "a"}, {"sku": "b"}]}'
    world.producer.produce(world.topic, value, b"7", partition=0, headers=[("t", b"u")])
    assert world.producer.flush(30) == 0
    world.run()

    assert world.rows() == [{"tenant": "u", "id": 7, "sku": sku} for sku in ("a", "b")]
    assert prove(world).holds


@pytest.mark.kafka
def test_a_column_of_a_header_may_be_added_later(world: World) -> None:
    """It is null in the rows that are there, whatever headers their records have."""
    sent = [("t", b"u")]

    def send(id: int) -> None:
        value = json.dumps({"id": id, "name": "a"}).encode()
        world.producer.produce(world.topic, value, partition=0, headers=sent)
        assert world.producer.flush(30) == 0
        world.run()

    world.declare(schema="id INT, name STRING")
    send(1)
    world.declare(schema="id INT, name STRING, tenant STRING", schema_change="evolve")
    world.declare(from_headers={"tenant": "t"})
    send(2)

    assert [row["tenant"] for row in world.rows()] == [None, "u"]
    verdict = prove(world)
    assert verdict.holds, (verdict.differences, verdict.obstacles)
