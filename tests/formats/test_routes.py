"""One topic, several streams: engine and proof agree, by their own code, whose each record is."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from oncelake.ingestion.declaration.files.loader import load_streams
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.settings import Settings
from tests.formats.test_record_types import TOPICS, Topic, avro_schema
from tests.support.both_readers import Sent, classified, judged
from tests.support.long import IS_LONG
from tests.support.protobuf import Compiled
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry, small_registry

# No Kafka and no Spark: what a batch's records become, once in the worker, once in the proof.
SHOP: dict[str, Any] = {
    "topic": "t",
    "route_by": "type",
    "tables": {
        "orders": {"schema": "id BIGINT NOT NULL, total INT", "keys": ["id"]},
        "payments": {
            "when": ["paid", "refunded"],
            "schema": "payment_id BIGINT NOT NULL",
            "keys": ["payment_id"],
        },
        "clicks": {"schema": "page STRING", "mode": "append"},
    },
}


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    """A registry without schemas."""
    with small_registry() as found:
        yield found


@pytest.fixture
def declare(tmp_path: Any) -> Any:
    """Return the streams of a file, by their tables."""

    def declare(**fields: Any) -> dict[str, StreamSpec]:
        (tmp_path / "shop.yaml").write_text(json.dumps({**SHOP, **fields}))
        streams = load_streams(tmp_path)
        return {each.name.removeprefix("shop_"): each.require_spec() for each in streams}

    return declare


class Whose(NamedTuple):
    """What each stream's engine says of each record, in the order of offsets.

    Attributes:
        left: The records that delete a row, since it is another stream's, by table.
    """

    dispositions: Mapping[str, list[str]]
    left: Mapping[str, list[int]]

    def places(self, *dispositions: str) -> dict[str, list[int]]:
        """Return the offsets of some dispositions, by table."""
        return {
            table: [at for at, each in enumerate(found) if each in dispositions]
            for table, found in self.dispositions.items()
            if {*found} & {*dispositions}
        }


def both(streams: Mapping[str, StreamSpec], settings: Settings, *records: Sent) -> Whose:
    """Judge records by all streams, and make sure that the proof says the same."""
    found, left = {}, {}
    for table, spec in streams.items():
        rows = judged(spec, settings, records)
        proof, said = classified(spec, settings, records), Counter(r["_disposition"] for r in rows)
        changes = [row["_offset"] for row in rows if row["_disposition"] in {"row", "delete"}]
        bad = [row["_offset"] for row in rows if row["_disposition"] == "quarantined"]
        assert [change.offset for change in proof.changes] == changes
        assert sorted(record.offset for record, _ in (*proof.bad, *proof.unread)) == bad
        assert (proof.counts["routed_elsewhere"], proof.counts["unrouted"]) == (
            said["routed_elsewhere"],
            said["unrouted"],
        )
        assert proof.counts["ignored"] == said["ignored"]
        assert proof.counts["tombstones_shared"] == sum(bool(row.get("_is_shared")) for row in rows)
        own = [row for row in rows if row.get("_left_to") is None]
        found[table] = [row["_disposition"] for row in own]
        left[table] = [row["_offset"] for row in rows if row not in own]
        assert [change.offset for change in proof.changes if change.is_left] == left[table]
    return Whose(found, left)


def sent(key: str | None = None, /, **fields: Any) -> Sent:
    """A record of JSON."""
    return Sent(json.dumps(fields).encode(), key and key.encode())


ODD = [
    *(b"", b"not JSON", b"[]", b"null", b'{"id": 1}', b'{"type": null}', b'{"type": 7}'),
    *(b'{"type": "other"}', b'{"type": "orders", "type": "paid"}', b'{"Type": "orders"}'),
    *(b'{"type": ["orders"]}', b'{"type": {"orders": 1}}', b'{"type": "orders"} x', b"\xff"),
]


def test_each_record_is_in_one_place_and_its_fields_are_asked_of_its_table_alone(
    declare: Any,
) -> None:
    """What is bad for one table is another's record; what has no route is in one quarantine."""
    records = [
        sent(type="orders", id=1, total=2),
        sent(type="paid", payment_id=1),
        sent(type="refunded", payment_id=2, id="text"),
        sent(type="clicks", page="/", id=[]),
        sent(type="orders", id="no number"),
        sent(type="clicks", page=1),
        *map(Sent, ODD),
    ] * 3

    whose = both(declare(), Settings(), *records)

    count = len(records) // 3
    unrouted = [*range(6, count)]
    assert whose.places("row") == {
        "orders": [0, count, 2 * count],
        "payments": [1, 2, count + 1, count + 2, 2 * count + 1, 2 * count + 2],
        "clicks": [3, count + 3, 2 * count + 3],
    }
    bad = whose.places("quarantined")
    assert [at for at in bad["orders"] if at < count] == [4, *unrouted]
    assert [at for at in bad["clicks"] if at < count] == [5]
    assert whose.places("unrouted") == {}


@pytest.mark.parametrize("seed", range(20 if IS_LONG else 2))
def test_whatever_is_done_to_a_record_engine_and_proof_agree_whose_it_is(
    declare: Any, seed: int
) -> None:
    """Of sound records a byte or two are changed, added or left out."""
    dice = random.Random(seed)
    sound = [
        b'{"type": "orders", "id": 12, "total": 3, "more": {"type": "paid"}, "a": [":", null]}',
        b'{"payment_id": 7, "type":"refunded", "\\u0074ype2": "\\ud83d\\ude00", "n": 1.50}',
        b'{"type": "clicks", "page": "/\xc3\xa9", "id": {"x": [{"type": 1}]}}',
    ]

    def harmed() -> Sent:
        raw = bytearray(dice.choice(sound))
        for _ in range(dice.randint(0, 2)):
            at, byte = dice.randrange(len(raw)), dice.choice(b'{}[]",:\\ tyoe01-.\xff\0u')
            raw[at : at + dice.randint(0, 1)] = bytes([byte]) * dice.randint(0, 1)
        return Sent(bytes(raw))

    whose = both(declare(), Settings(), *(harmed() for _ in range(400)))

    assert {*whose.places("row")} == {"orders", "payments", "clicks"}


@pytest.mark.parametrize(
    ("otherwise", "places"),
    [
        ("ignore", {"unrouted": {"orders": [1, 2], "payments": [1, 2], "clicks": [1, 2]}}),
        ("clicks", {"row": {"orders": [0], "clicks": [1]}, "quarantined": {"clicks": [2]}}),
        ("quarantine", {"row": {"orders": [0]}, "quarantined": {"orders": [1, 2]}}),
    ],
)
def test_the_file_says_who_takes_what_has_no_route(
    declare: Any, otherwise: str, places: dict[str, Any]
) -> None:
    """Nobody, and it is counted; one table, which judges it as its own; or one quarantine."""
    records = [sent(type="orders", id=1), sent(type="views", page="/"), Sent(b"not JSON")]

    whose = both(declare(otherwise=otherwise), Settings(), *records)

    assert {name: whose.places(name) for name in places} == places


def test_a_tombstone_goes_to_every_table_that_deletes_by_it(declare: Any) -> None:
    """A key that none of a table's columns has changes nothing there, and is not bad."""
    tombstones = [Sent(None, b'{"id": 1}'), Sent(None, b'{"payment_id": 2}'), Sent(None, b"3")]
    streams = declare()

    whose = both(streams, Settings(), *tombstones, Sent(None, b"\xff"), Sent(None))

    assert whose.places("delete") == {"orders": [0, 2], "payments": [1, 2]}
    assert whose.places("ignored") == {"orders": [1, 3, 4], "payments": [0, 3, 4]}
    assert whose.places("routed_elsewhere") == {"clicks": [0, 1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        pytest.param({"tombstones": "ignore"}, {"ignored": {"orders": [0]}}, id="ignored"),
        pytest.param(
            {"tombstones": "quarantine"}, {"quarantined": {"orders": [0]}}, id="quarantined"
        ),
        pytest.param(
            {"tombstones": "quarantine", "otherwise": "ignore"},
            {"unrouted": {"orders": [0], "payments": [0], "clicks": [0]}},
            id="of no route",
        ),
    ],
)
def test_a_tombstone_that_deletes_nowhere_is_in_one_place(
    declare: Any, fields: dict[str, Any], places: dict[str, Any]
) -> None:
    """The first table that ignores tombstones counts it; else it is a record of no route."""
    whose = both(declare(**fields), Settings(), Sent(None, b"1"))

    assert {name: whose.places(name) for name in places} == places


@pytest.mark.parametrize(
    ("field", "when", "value"),
    [
        ("meta.kind", "a", {"meta": {"kind": "a"}}),
        ("n", 7, {"n": 7}),
        ("is_order", True, {"is_order": True}),
    ],
)
def test_a_route_lies_inside_or_is_no_text(
    declare: Any, field: str, when: Any, value: dict[str, Any]
) -> None:
    """Dots go inside, and numbers and booleans are routes, too."""
    other: Any = {"a": "b", 7: 8, True: False}[when]
    tables = {name: dict(SHOP["tables"][name]) for name in ("orders", "payments")}
    tables["orders"]["when"], tables["payments"]["when"] = when, other

    whose = both(
        declare(route_by=field, tables=tables), Settings(), sent(id=1, **value), sent(id=1)
    )

    assert whose.places("row") == {"orders": [0]}
    assert whose.places("quarantined") == {"orders": [1]}


def test_a_header_routes_records_and_tombstones_of_any_format(declare: Any) -> None:
    """The last of its name counts; what is no text is no route."""
    first, last = ("kind", b"orders"), ("kind", b"paid")
    records = [
        Sent(b'{"id": 1}', None, (first,)),
        Sent(None, b"2", (first,)),
        Sent(b'{"payment_id": 1}', None, (first, ("x", b"y"), last)),
        Sent(b'{"id": 1}', None, (("kind", b"\xff"),)),
        Sent(b'{"id": 1}', None, (("kind", None),)),
        Sent(b'{"id": 1}'),
    ]

    whose = both(declare(route_by="header:kind"), Settings(), *records)

    assert whose.places("row", "delete") == {"orders": [0, 1], "payments": [2]}
    assert whose.places("quarantined") == {"orders": [3, 4, 5]}


@pytest.mark.parametrize(
    ("format_", "type_", "value"),
    [("string", "STRING", b"\xff"), ("raw", "BINARY", b"\xff"), ("csv", "STRING", b"a,b")],
)
def test_a_header_routes_values_that_have_no_field(
    declare: Any, format_: str, type_: str, value: bytes
) -> None:
    """The bytes are read by the table that gets them, and by no other."""
    table = {"schema": f"line {type_}", "mode": "append"}
    tables = {"lines": table, "others": table}
    records = [
        Sent(b"one", None, (("kind", b"lines"),)),
        Sent(value, None, (("kind", b"others"),)),
        Sent(value, None, ()),
    ]

    streams = declare(route_by="header:kind", format=format_, tables=tables)
    whose = both(streams, Settings(), *records)

    is_bad = format_ != "raw"
    assert whose.places("row").get("lines") == [0]
    assert whose.places("row").get("others") == (None if is_bad else [1])
    bad = {"lines": [2], **({"others": [1]} if is_bad else {})}
    assert whose.places("quarantined") == bad


@pytest.fixture(params=TOPICS, ids=lambda make: make.__name__)
def topic(request: pytest.FixtureRequest, registry: SmallRegistry) -> Topic:
    """A topic of each format that has a registry."""
    found: Topic = request.param(registry)
    return found


def test_the_name_of_the_schema_routes_each_format(
    declare: Any, registry: SmallRegistry, topic: Topic
) -> None:
    """Many at once and one by one; none is no route, and an unknown one may be any table's."""
    if topic.format["type"] == "avro":
        registry.schemas[2]["schema"] = json.dumps(avro_schema("OrderPlaced", "total"))
    columns = {"schema": "id BIGINT", "keys": ["id"]}
    tables = {
        "users": {"when": topic.users, "schema": "id BIGINT, name STRING", "keys": ["id"]},
        "orders": {"when": topic.orders, **columns},
    }
    streams = declare(format=topic.format, route_by="_schema", tables=tables)
    odd = [Sent(framed(99, b"x")), Sent(b"\0\0"), Sent(b"text")]
    records = [topic.user(1), topic.order(2), *odd, *[topic.user(3)] * 40]

    whose = both(streams, registry.settings, *records)

    assert whose.places("row") == {"users": [0, *range(5, 45)], "orders": [1]}
    assert whose.places("quarantined") == {"users": [2, 3, 4], "orders": [2]}


def test_a_field_of_avro_and_of_protobuf_routes(declare: Any, registry: SmallRegistry) -> None:
    """An enum by its symbol, and a text; a schema without the field gives no route."""
    kind = {"type": "enum", "name": "Kind", "symbols": ["orders", "paid"]}
    fields = [{"name": "id", "type": "long"}, {"name": "type", "type": kind}]
    avro = registry.add({"type": "record", "name": "Event", "fields": fields})
    bare = registry.add({"type": "record", "name": "Bare", "fields": fields[:1]})
    text = 'syntax = "proto3"; message Event { int64 id = 1; string type = 2; }'
    proto, message = registry.add(text, "PROTOBUF"), Compiled(text)
    tables = {
        "orders": {"schema": "id BIGINT", "keys": ["id"]},
        "payments": {"when": "paid", "schema": "id BIGINT", "keys": ["id"]},
    }

    in_avro = both(
        declare(format="avro", tables=tables),
        registry.settings,
        *[Sent(framed(avro, b"\2\0")), Sent(framed(avro, b"\4\2"))] * 40,
        Sent(framed(bare, b"\2")),
    )
    in_protobuf = both(
        declare(format="protobuf", tables=tables),
        registry.settings,
        *(
            Sent(framed(proto, b"\0" + message.make("Event", **each).SerializeToString()))
            for each in ({"id": 1, "type": "orders"}, {"id": 2, "type": "paid"}, {"id": 3})
        ),
    )

    assert in_avro.places("row")["payments"] == [*range(1, 80, 2)]
    assert in_avro.places("quarantined") == {"orders": [80]}
    assert in_protobuf.places("row") == {"orders": [0], "payments": [1]}
    assert in_protobuf.places("quarantined") == {"orders": [2]}


def test_a_change_of_debezium_goes_by_its_row(declare: Any) -> None:
    """A delete goes by the row before it, and the null value that repeats it to one table."""
    orders = {"schema": "id BIGINT", "keys": ["id"]}
    tables = {"orders": orders, "payments": {**orders, "when": "paid"}}
    after = {"id": 1, "type": "paid"}
    records = [
        sent(op="c", before=None, after=after),
        sent(op="d", before=after, after=None),
        Sent(None, b'{"id": 1}'),
        sent(op="c", before=None, after={"id": 1}),
    ]

    whose = both(declare(format="debezium", tables=tables), Settings(), *records)

    assert whose.places("row", "delete") == {"payments": [0, 1]}
    assert whose.left == {"orders": [0, 1], "payments": [3]}
    assert whose.places("ignored") == {"orders": [2]}
    assert whose.places("quarantined") == {"orders": [3]}
