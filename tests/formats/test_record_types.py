"""Several record types in one topic: the one that is meant is named, or the batch is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from oncelake.ingestion.declaration.files.yaml_reader import read_tree
from oncelake.ingestion.declaration.spec import RECORD_TYPES, StreamSpec
from oncelake.ingestion.errors import SeveralRecordTypesError
from oncelake.ingestion.pipeline.counts import count_records
from oncelake.ingestion.pipeline.schema.record_types import learn_record_types
from tests.support.both_readers import Sent, batch_of, classified, declared, engine_of, judged
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.protobuf import Compiled
from tests.support.registry import Subject, framed
from tests.support.small_registry import SmallRegistry, small_registry
from tests.support.world import World
from tests.verify.factories import Folded
from tests.verify.factories import record as proof_record

USER, ORDER = "shop.UserCreated", "shop.OrderPlaced"
# No schema has it that can be used.
UNUSABLE = {"type": "enum", "name": "E", "symbols": ["a", "a"]}
TREE = "shop.Tree"
PROTO = """
syntax = "proto3"; package shop;
message UserCreated { int64 id = 1; string name = 2; message Nested { int64 id = 1; } }
message OrderPlaced { int64 id = 1; string total = 2; }
"""


class Topic(NamedTuple):
    """A topic of users and orders: its format, and a record of each type by its id."""

    format: Mapping[str, Any]
    users: str
    orders: str
    send: Any

    def user(self, id: int) -> Sent:
        """Return a user."""
        return Sent(self.send("user", id))

    def order(self, id: int) -> Sent:
        """Return an order."""
        return Sent(self.send("order", id))


def avro_schema(name: str, field: str, type_: Any = "string") -> dict[str, Any]:
    """A record type of package ``shop``."""
    fields = [{"name": "id", "type": "long"}, {"name": field, "type": type_}]
    return {"type": "record", "name": name, "namespace": "shop", "fields": fields}


def avro(registry: SmallRegistry) -> Topic:
    """Avro: a schema a type; the order's total is no text, but an enum of one symbol twice."""
    user = registry.add(avro_schema("UserCreated", "name"))
    order = registry.add(avro_schema("OrderPlaced", "name", UNUSABLE))

    def send(what: str, id: int) -> bytes:
        zigzag = bytes([2 * id])
        return framed(user, zigzag + b"\x02a") if what == "user" else framed(order, zigzag + b"\0")

    return Topic({"type": "avro"}, USER, ORDER, send)


def protobuf(registry: SmallRegistry) -> Topic:
    """Protobuf: one file, and an index a type."""
    number, compiled = registry.add(PROTO, "PROTOBUF"), Compiled(PROTO)

    def send(what: str, id: int) -> bytes:
        if what == "user":
            body = b"\0" + compiled.make(USER, id=id, name="a").SerializeToString()
        else:
            body = b"\2\2" + compiled.make(ORDER, id=id, total="9").SerializeToString()
        return framed(number, body)

    return Topic({"type": "protobuf"}, USER, ORDER, send)


def json_schema(registry: SmallRegistry) -> Topic:
    """JSON Schema: a title a type, and a title is any text."""
    user = registry.add({"title": "A user: created"}, "JSON")
    order = registry.add({"title": "An order"}, "JSON")

    def send(what: str, id: int) -> bytes:
        body = {"id": id, "name": "a"} if what == "user" else {"id": id, "total": 9}
        return framed(user if what == "user" else order, json.dumps(body).encode())

    return Topic({"type": "json_schema"}, "A user: created", "An order", send)


def debezium(registry: SmallRegistry) -> Topic:
    """Debezium in Avro: two tables whose changes were routed into one topic."""

    def envelope(table: str, field: str) -> dict[str, Any]:
        row = {**avro_schema("Value", field), "namespace": f"shop.{table}"}
        fields = [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", f"shop.{table}.Value"]},
            {"name": "op", "type": "string"},
        ]
        return {"type": "record", "name": f"shop.{table}.Envelope", "fields": fields}

    user, order = registry.add(envelope("users", "name")), registry.add(envelope("orders", "total"))

    def send(what: str, id: int) -> bytes:
        return framed(user if what == "user" else order, b"\0\2" + bytes([2 * id]) + b"\x02a\x02c")

    format_ = {"type": "debezium", "encoding": "avro"}
    return Topic(format_, "shop.users.Envelope", "shop.orders.Envelope", send)


TOPICS = [avro, protobuf, json_schema, debezium]


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    """A registry without schemas."""
    with small_registry() as found:
        yield found


@pytest.fixture(params=TOPICS, ids=lambda make: make.__name__)
def topic(request: pytest.FixtureRequest, registry: SmallRegistry) -> Topic:
    """A topic of each format."""
    found: Topic = request.param(registry)
    return found


def learnt(
    spec: StreamSpec,
    registry: SmallRegistry,
    *records: Sent,
    known: Mapping[str, str] | None = None,
) -> Any:
    """Return what the commit of a batch would remember of record types."""
    declaration = {RECORD_TYPES: known} if known else {}
    with engine_of(batch_of(spec, registry.settings, records)) as engine:
        found = learn_record_types(count_records(engine), spec, declaration)
    return (found or {}).get(RECORD_TYPES)


def test_the_record_type_that_is_named_is_read_and_others_are_filtered(
    registry: SmallRegistry, topic: Topic
) -> None:
    """Engine and proof take the same records, one by one and many at once; none is bad."""
    spec = declared(format=topic.format, record=topic.users)
    records = [topic.user(1), topic.order(1), *[topic.user(2)] * 40, *[topic.order(3)] * 40]

    rows = judged(spec, registry.settings, records)
    proof = classified(spec, registry.settings, records)

    users = [0, *range(2, 42)]
    assert [row["_offset"] for row in rows if row["_disposition"] == "row"] == users
    assert {row["_disposition"] for row in rows} == {"row", "filtered"}
    assert ([change.offset for change in proof.changes], proof.counts["filtered"]) == (users, 41)
    assert (proof.bad, proof.types) == ([], {})
    assert {row["name"] for row in rows if row["_disposition"] == "row"} == {"a"}


def test_a_batch_of_several_types_is_refused_and_the_advice_helps(
    registry: SmallRegistry, topic: Topic
) -> None:
    """The refusal names both types, and the line of YAML in it makes a declaration that loads."""
    if topic.format["type"] == "avro":
        registry.schemas[2]["schema"] = json.dumps(avro_schema("OrderPlaced", "total"))
    spec = declared(format=topic.format)
    records = [topic.user(1), topic.user(2), topic.order(1)]

    with pytest.raises(SeveralRecordTypesError) as refused:
        learnt(spec, registry, *records)

    said = str(refused.value)
    assert f"{topic.users} (2 rows); {topic.orders} (1 row)" in said
    advised = read_tree(said.partition("Next: ")[2].split("`")[1]).content
    rows = judged(declared(format=topic.format, **advised), registry.settings, records)
    assert [row["_disposition"] for row in rows] == ["row", "row", "filtered"]


def test_the_refusal_does_not_depend_on_how_batches_are_cut(
    registry: SmallRegistry, topic: Topic
) -> None:
    """A batch of one type is refused by a table that another type has filled."""
    if topic.format["type"] == "avro":
        registry.schemas[2]["schema"] = json.dumps(avro_schema("OrderPlaced", "total"))
    spec = declared(format=topic.format)
    first = learnt(spec, registry, topic.user(1))

    with pytest.raises(SeveralRecordTypesError, match="in the table already"):
        learnt(spec, registry, topic.order(1), known=first)

    assert first == {"t": topic.users}
    assert learnt(spec, registry, topic.user(5), known=first) == first
    assert learnt(spec, registry, topic.order(1), known={"other": topic.users}) == {
        "other": topic.users,
        "t": topic.orders,
    }


def test_several_types_that_are_meant_are_all_read(registry: SmallRegistry, topic: Topic) -> None:
    """A list names the types of one table, as after a producer has renamed its own."""
    if topic.format["type"] == "avro":
        registry.schemas[2]["schema"] = json.dumps(avro_schema("OrderPlaced", "total"))
    both = declared(format=topic.format, record=[topic.users, topic.orders])
    records = [topic.user(1), topic.order(2)]

    rows = judged(both, registry.settings, records)

    assert [row["_disposition"] for row in rows] == ["row", "row"]
    assert learnt(both, registry, *records) is None
    assert [change.offset for change in classified(both, registry.settings, records).changes] == [
        0,
        1,
    ]


def test_schemas_that_evolve_keep_their_type(registry: SmallRegistry) -> None:
    """Two schemas of one full name, however that is written, are one type."""
    old = registry.add({**avro_schema("UserCreated", "name"), "doc": "old"})
    named = {**avro_schema("x", "name"), "name": "shop.UserCreated"}
    del named["namespace"]
    new = registry.add(named)
    records = [Sent(framed(number, b"\x02\x02a")) for number in (old, new)]

    assert learnt(declared(format="avro"), registry, *records) == {"t": USER}


def test_what_is_not_applied_has_no_say(registry: SmallRegistry) -> None:
    """A record that goes to quarantine, or was read before, refuses no batch."""
    topic = avro(registry)
    missing = registry.add(avro_schema("OrderPlaced", "total"))
    spec = declared(format="avro", schema="id BIGINT, name STRING NOT NULL")
    records = [topic.user(1), topic.order(2), Sent(framed(missing, b"\x04\x02a"))]

    reasons = [row["_reason"] for row in judged(spec, registry.settings, records)]

    assert reasons == [None, "unusable_schema", "missing_required"]
    assert learnt(spec, registry, *records) == {"t": USER}


@pytest.mark.parametrize(
    ("format_", "schema", "type_", "reason"),
    [
        ("avro", '["null", "long"]', "AVRO", "type_mismatch"),
        ("avro", "no JSON", "AVRO", "unusable_schema"),
        ("protobuf", "no proto", "PROTOBUF", "unusable_schema"),
        ("json_schema", "true", "JSON", "unusable_schema"),
        ("json_schema", '{"type": "object"}', "JSON", "unusable_schema"),
    ],
    ids=["a union", "no schema", "no file", "no object", "no title"],
)
def test_a_record_without_a_type_is_not_dropped_unseen(
    registry: SmallRegistry, format_: str, schema: str, type_: str, reason: str
) -> None:
    """Where `record` names a type, what has none goes to quarantine, and is not filtered."""
    number = registry.add(schema, type_)
    spec = declared(format=format_, record=USER)
    sent = Sent(framed(number, b"\0" if format_ != "json_schema" else b'{"id": 1}'))

    (row,) = judged(spec, registry.settings, [sent])
    proof = classified(spec, registry.settings, [sent])

    assert (row["_disposition"], row["_reason"]) == ("quarantined", reason)
    assert (len(proof.bad), proof.counts["filtered"]) == (1, 0)


def test_a_nested_message_is_a_type_of_its_own(registry: SmallRegistry) -> None:
    """The index of a nested message leads to its full name."""
    number = registry.add(PROTO, "PROTOBUF")
    nested = Sent(framed(number, b"\4\0\0\x08\x07"))

    assert learnt(declared(format="protobuf"), registry, nested) == {"t": "shop.UserCreated.Nested"}
    spec = declared(format="protobuf", record="shop.UserCreated.Nested")
    assert [row["id"] for row in judged(spec, registry.settings, [nested])] == [7]


def test_the_proof_finds_a_second_type_that_was_applied(registry: SmallRegistry) -> None:
    """Whatever the engine let through, the proof names the record of another type, once."""
    topic = protobuf(registry)
    records = [
        proof_record(offset, each.value)
        for offset, each in enumerate([topic.user(1), topic.order(1), topic.order(2)])
    ]
    spec = declared(format="protobuf")

    folded = Folded(records[:1], records[1:], spec=spec, settings=registry.settings)
    named = Folded(
        records,
        spec=declared(format="protobuf", record=USER),
        settings=registry.settings,
    )

    assert [recount.clashes for recount in named.recounts] == [[]]
    first, second = (recount.clashes for recount in folded.recounts)
    assert first == []
    assert [str(each) for each in second] == [
        f"t-0 offset 1 · batch 2: a record of type {ORDER} was applied beside those of {USER}, and "
        "`record` names neither"
    ]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"record": USER}, "only schemas of a registry name types"),
        ({"format": "debezium", "record": USER}, "only schemas of a registry name types"),
        ({"format": "avro", "record": 5}, "record"),
        ({"format": "avro", "record": ""}, "record"),
    ],
    ids=["json", "debezium in JSON", "a number", "empty"],
)
def test_a_record_type_is_for_values_of_the_registry(fields: Any, problem: str) -> None:
    """Where no schema could name a type, the option is refused when the file is loaded."""
    with pytest.raises(ValueError, match=problem):
        declared(**fields)


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_a_table_of_users_is_never_filled_by_orders(
    registered: World, subject: Subject, engine: str
) -> None:
    """A run is refused by what an earlier one has read; once the type is named, all is proven."""
    registered.settings = registered.settings.model_copy(
        update={"merge_engine": "spark" if engine == "spark" else "auto"}
    )
    registered.declare(format="avro", schema="id INT, name STRING", keys=["id"], sequence_by=[])
    users = subject.avro(
        avro_schema("UserCreated", "name"), *({"id": n, "name": "u"} for n in (1, 2))
    )
    orders = subject.avro(avro_schema("OrderPlaced", "total"), {"id": 1, "total": "9"})
    registered.send(*users)
    registered.run()
    registered.send(*orders)

    with pytest.raises(
        SeveralRecordTypesError, match=r"shop\.UserCreated \(in the table already\)"
    ):
        registered.run()

    assert registered.ledger[-1].seq == 1
    registered.declare(record="shop.UserCreated")
    registered.producer.produce(
        registered.topic, value=users[0], headers=[("__value_schema_id", b"\1")], partition=0
    )
    registered.run()
    assert registered.ledger[-1].counts["filtered"] == 1
    assert [each["reason"] for each in registered.quarantined()] == ["not_framed"]
    assert registered.redrive().still_bad == {"not_framed": 1}
    assert find_problems(registered) == ()
    registered.declare(where="id > 0", select={"name": "upper(name)"})
    registered.send(*orders, *users[1:])
    registered.run()
    assert registered.rows() == [{"id": 1, "name": "u"}, {"id": 2, "name": "U"}]
    assert registered.ledger[-1].counts["filtered"] == 1
    registered.rebuild()
    assert registered.rows() == [{"id": 1, "name": "U"}, {"id": 2, "name": "U"}]
    assert prove(registered).holds
