"""``oncelake init``: six topics on a real broker, and a file for each that can be understood."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql.types import VariantType, VariantVal

from oncelake.ingestion.cli.commands.init import with_json
from oncelake.ingestion.declaration.ddl import parse_type
from oncelake.ingestion.declaration.files.loader import find_stream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.formats.variant import with_variants
from tests.cli.shell import answer, oncelake
from tests.support.debezium import postgres
from tests.support.long import only_long
from tests.support.proof import find_problems
from tests.support.protobuf import Compiled
from tests.support.registry import Subject
from tests.support.world import World, transactional

# A Kafka key, a value, and the partition that the producer chose.
Record = tuple[bytes | None, bytes | None, int]
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {
            "name": "total",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        },
        {"name": "placed_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


NAMED = {"type": "record", "name": "Named", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(autouse=True)
def _project(registered: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the commands of this process the settings of the test's world."""
    registered.set_environment(monkeypatch)


def send(world: World, records: Iterable[Record]) -> None:
    """Produce records as they are."""
    for key, value, partition in records:
        world.producer.produce(world.topic, value=value, key=key, partition=partition)
    assert world.producer.flush(30) == 0


def as_json(value: Any) -> bytes:
    """Write a value as JSON."""
    return json.dumps(value).encode()


def flat(_: Subject) -> list[Record]:
    """Orders with Kafka keys that are JSON objects, each twice, and three bad records."""
    records: list[Record] = [
        (
            as_json({"id": id}),
            as_json(
                {
                    "id": id,
                    "status": state,
                    "total": 10 * id + 0.25,
                    "born": "2024-02-29",
                    "is_paid": state == "paid",
                    "ratio": 1 / (id + 2),
                    "note": None,
                    "created_at": f"2024-03-01T10:{id:02}:00Z",
                    "updated_at": f"2024-03-01T1{1 + moment}:{id:02}:00Z",
                }
            ),
            id % 2,
        )
        for moment, state in enumerate(("open", "paid"))
        for id in range(30)
    ]
    bad = b"{not JSON", as_json({"id": "three", "updated_at": "2024-03-01"}), as_json({"total": 1})
    return [*records, *((as_json({"id": 3}), each, 1) for each in bad)]


def nested(_: Subject) -> list[Record]:
    """Carts with a bare Kafka key, objects, lists, a map and a field of several types."""
    return [
        (
            f"c-{id}".encode(),
            as_json(
                {
                    "cart": f"c-{id}",
                    "buyer": {"name": "x", "age": 30 + id, "gone": None},
                    "lines": [{"sku": "a", "price": 1.5}, {"sku": "b", "price": id}],
                    "prices": {f"sku-{id}-{n}": 1.25 for n in range(3)},
                    "extra": id if id % 2 else "text",
                    "odd name": 1,
                    "_own": 1,
                }
            ),
            id % 2,
        )
        for id in range(20)
    ]


def with_deletes(_: Subject) -> list[Record]:
    """Customers of which some are deleted by a word, and others by a null value."""
    records: list[Record] = []
    for id in range(20):
        key = str(id).encode()
        for moment, op in enumerate(("insert", "delete" if id % 5 == 1 else "update")):
            at = f"2024-03-01T1{moment}:00:00Z"
            records.append((key, as_json({"id": id, "op": op, "updated_at": at}), id % 2))
        if id % 5 == 0:
            records.append((key, None, id % 2))
    return records


def avro(subject: Subject) -> list[Record]:
    """Orders in Avro, with keys in Avro."""
    orders = [
        {
            "id": id,
            "customer": None,
            "total": Decimal(id),
            "placed_at": 1709210000000,
            "tags": ["x"],
        }
        for id in range(20)
    ]
    values = subject.avro(ORDER, *orders)
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    serialize = AvroSerializer(subject.client, json.dumps(key))
    context = SerializationContext(subject.name.rpartition("-")[0], MessageField.KEY)
    keys = [serialize({"id": each["id"]}, context) for each in orders]
    return [(key, value, at % 2) for at, (key, value) in enumerate(zip(keys, values, strict=True))]


def debezium(_: Subject) -> list[Record]:
    """Changes of a table of PostgreSQL with schemas; a delete is followed by a null value."""
    connector = postgres(schemas=True)
    records: list[Record] = []
    for id in range(1, 21):
        row = {
            "id": id,
            "name": f"n{id}",
            "born": 19_000,
            "micros": 1709210000123456,
            "total": "ew==",
        }
        schema = {"type": "struct", "fields": [{"type": "int64", "optional": False, "field": "id"}]}
        key = as_json({"schema": schema, "payload": {"id": id}})
        records.append((key, connector.event("c", None, row, lsn=1000 + id), id % 2))
        if id % 4 == 1:
            records.append((key, connector.event("d", {"id": id}, None, lsn=2000 + id), id % 2))
            records.append((key, None, id % 2))
    return records


@dataclass(frozen=True, kw_only=True)
class Case:
    """A topic, what must be proposed for it, and how many rows its table has in the end."""

    records: Callable[[Subject], list[Record]]
    schema: str
    fields: dict[str, Any]
    rows: int
    quarantined: int = 0


CASES = {
    "json flat": Case(
        records=flat,
        schema="id BIGINT NOT NULL, status STRING, total DECIMAL(18, 2), born DATE, "
        "is_paid BOOLEAN, ratio DOUBLE, created_at TIMESTAMP, updated_at TIMESTAMP NOT NULL",
        fields={"keys": ("id",), "sequence_by": ("updated_at",)},
        rows=30,
        quarantined=3,
    ),
    "json nested": Case(
        records=nested,
        schema="cart STRING NOT NULL, buyer STRUCT<name: STRING, age: BIGINT>, "
        "lines ARRAY<STRUCT<sku: STRING, price: DECIMAL(18, 2)>>, "
        "prices MAP<STRING, DECIMAL(18, 2)>, extra VARIANT, odd_name BIGINT, _own BIGINT",
        fields={"keys": ("cart",), "sequence_by": ()},
        rows=20,
    ),
    "json with deletes": Case(
        records=with_deletes,
        schema="id BIGINT NOT NULL, op STRING, updated_at TIMESTAMP",
        fields={"keys": ("id",), "sequence_by": (), "apply_as_deletes": "op IN ('delete')"},
        rows=12,
    ),
    "avro": Case(
        records=avro,
        schema="id BIGINT NOT NULL, customer STRING, total DECIMAL(12, 2), "
        "placed_at TIMESTAMP, tags ARRAY<STRING>",
        fields={"keys": ("id",), "sequence_by": ()},
        rows=20,
    ),
    "debezium": Case(
        records=debezium,
        schema="id BIGINT NOT NULL, name STRING, total DECIMAL(12, 2), any_number STRING, "
        "born DATE, millis TIMESTAMP_NTZ, micros TIMESTAMP_NTZ, zoned TIMESTAMP, ratio DOUBLE, "
        "blob BINARY, tags ARRAY<STRING>",
        fields={"keys": ("id",), "sequence_by": ()},
        rows=15,
    ),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=id, marks=only_long if id == "json nested" else ())
        for id, case in CASES.items()
    ],
)
def test_a_proposed_file_validates_and_runs_at_once(
    registered: World, subject: Subject, case: Case
) -> None:
    """What init writes is a declaration whose run applies the topic, and the proof agrees."""
    world = registered
    send(world, case.records(subject))

    told = answer(oncelake("init", world.topic, "--json"))

    validated = oncelake("validate", world.topic)
    assert (validated.exit_code, validated.output) == (0, "1 stream, all valid\n")
    spec = find_stream(world.settings.streams, world.topic)
    assert ", ".join(column.as_ddl().replace("`", "") for column in spec.columns) == case.schema
    assert {name: getattr(spec, name) for name in case.fields} == case.fields
    assert (len(told["quarantined"]), len(told["rows"])) == (case.quarantined, 10)
    if case is CASES["debezium"]:
        assert {"id": 17} in told["rows"], "a delete leaves nothing but its key"
    world.declared = spec.model_dump(by_alias=True, exclude_unset=True, exclude={"name"})
    world.run()
    assert len(world.rows()) == case.rows
    assert find_problems(world) == ()


@pytest.mark.kafka
@pytest.mark.spark
def test_a_family_of_protobuf_has_its_columns_and_keys(registered: World, subject: Subject) -> None:
    """One file, the columns of the registry, and the keys of the Kafka keys, null values too."""
    world = registered
    of_value, of_key = (
        Compiled(f'syntax = "proto3"; message {name} {{ {fields} }}')
        for name, fields in (("User", "int32 id = 1; string name = 2;"), ("Key", "int32 id = 1;"))
    )
    serialize = ProtobufSerializer(type(of_key.make("Key")), subject.client)
    context = SerializationContext(world.topic, MessageField.KEY)
    keys = [serialize(of_key.make("Key", id=id), context) for id in (1, 2)]
    values = subject.protobuf(*(of_value.make("User", id=id, name="a") for id in (1, 2)))
    send(world, [(keys[0], values[0], 0), (keys[1], values[1], 0), (keys[1], None, 0)])
    pattern = f"{world.topic[:-1]}(.)"

    told = answer(oncelake("init", "--pattern", pattern, "--stream", "users", "--json"))

    name = f"users_{world.topic[-1]}"
    spec = find_stream(world.settings.streams, name)
    assert (told["topics"], told["written"]) == ([world.topic], True)
    assert told["discovered"]["added"] == [world.topic]
    assert (spec.format.type, spec.key_format.type, spec.keys) == ("protobuf", "protobuf", ("id",))
    tried = answer(oncelake("try", name, "--json"))
    assert tried["dispositions"] == {"row": 2, "delete": 1}


def test_a_family_with_plain_json_keys_is_one_that_loads(
    registered: World, subject: Subject
) -> None:
    """No schema names their columns, so that nothing could be taken from one."""
    world = registered
    (value,) = subject.avro(NAMED, {"id": 1})
    send(world, [(as_json({"id": 1}), value, 0)])
    pattern = f"{world.topic[:-1]}(.)"

    told = answer(oncelake("init", "--pattern", pattern, "--stream", "users", "--json"))

    assert "[id]`" in told["yaml"]
    spec = find_stream(world.settings.streams, f"users_{world.topic[-1]}")
    assert (spec.mode, [each.name for each in spec.columns]) == ("append", ["id"])


def test_garbage_gets_one_sentence(registered: World) -> None:
    """Bytes that are nothing known exit with 2, and the remedy that is offered is a stream."""
    dice = random.Random(1)
    send(registered, [(None, b"\xff" + dice.randbytes(30), 0) for _ in range(40)])

    result = oncelake("init", registered.topic)

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "bytes that are no text" in line
    fields = dict(
        each.split(": ") for each in line[line.index("{") + 1 : line.index("}")].split(", ")
    )
    assert fields["format"] == "raw"
    StreamSpec.model_validate({**fields, "name": "bytes"})
    assert not list(registered.settings.streams.glob("*"))


@pytest.mark.parametrize(
    ("sink", "case"),
    [("postgres", "json nested"), ("kafka", "json flat")],
    ids=["postgres", "kafka"],
)
def test_a_sink_is_proposed_what_it_can_keep(
    registered: World, subject: Subject, sink: str, case: str
) -> None:
    """A type that it cannot hold is the text of its JSON; an order that it cannot keep, none."""
    world = registered
    send(world, CASES[case].records(subject))

    told = answer(oncelake("init", world.topic, "--sink", sink, "--json"))

    assert oncelake("validate", world.topic).exit_code == 0
    spec = find_stream(world.settings.streams, world.topic)
    assert (spec.sink.name, spec.sequence_by) == (sink, ())
    assert not {"ARRAY", "STRUCT", "MAP"} & {column.type.word for column in spec.columns}
    assert (f"`sink: {sink}` keeps no STRUCT, but" in told["yaml"]) is (case == "json nested")
    assert [each.name for each in spec.columns if each.type.word == "VARIANT"] == (
        ["buyer", "lines", "prices", "extra"] if sink == "postgres" else []
    )


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_rows_show_the_json_of_a_variant(registered: World, sink: str) -> None:
    """At any depth, and not its bytes, wherever the rows are to be kept."""
    mixed = [1.5, "a", {"b": [None]}]
    records = [(None, as_json({"id": n, "v": v, "l": mixed}), 0) for n, v in enumerate(mixed)]
    send(registered, records)

    told = answer(oncelake("init", registered.topic, "--sink", sink, "--json"))

    assert [json.loads(row["v"]) for row in told["rows"]] == mixed
    assert [json.loads(each) for each in told["rows"][0]["l"]] == mixed


def test_a_variant_is_shown_wherever_it_comes_from() -> None:
    """As Arrow has it, in a map of pairs, and as Spark's engine hands it over; as deep as any."""
    deep = "[" * 900 + "]" * 900
    (variant,) = with_variants(pa.array([deep]), VariantType()).to_pylist()
    of_arrow = [("a", variant), ("b", None)]

    shown = with_json(of_arrow, parse_type("MAP<STRING, VARIANT>"))

    assert shown == {"a": deep, "b": None}
    assert with_json(VariantVal(**variant), parse_type("VARIANT")) == deep


def test_names_that_postgresql_cannot_have_get_others(registered: World) -> None:
    """Those of its own columns, and those that it would cut short; a table's is refused."""
    long = "n" * 70
    send(registered, [(b"1", as_json({"id": 1, "xmin": 2, long: 3}), 0)])

    refused = oncelake("init", registered.topic, "--sink", "postgres", "--stream", long)
    result = oncelake("init", registered.topic, "--sink", "postgres", "--stream", "short")

    assert (refused.exit_code, result.exit_code) == (2, 0), result.output
    assert f"Next: --stream {long[:54]}" in refused.stderr
    spec = find_stream(registered.settings.streams, "short")
    assert spec.select == {"xmin_2": "`xmin`", long[:58]: f"`{long}`"}


def test_a_file_that_is_there_is_never_overwritten(registered: World) -> None:
    """The second time the file is named, exit 2; another name, or only printing, is possible."""
    world = registered
    send(world, [(None, as_json({"id": 1}), 0)])
    path = world.settings.streams / f"{world.topic}.yaml"
    assert oncelake("init", world.topic).exit_code == 0
    path.write_text("mine")

    again = oncelake("init", world.topic)

    assert again.exit_code == 2
    assert path.name in again.stderr
    assert path.read_text() == "mine"
    printed = oncelake("init", world.topic, "--dry-run").stdout
    assert oncelake("init", world.topic, "--stream", "other").exit_code == 0
    assert path.with_name("other.yaml").read_text() == printed
    assert answer(oncelake("init", world.topic, "--dry-run", "--json"))["written"] is False


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        pytest.param("{topic}", "it holds no record", id="empty"),
        pytest.param("{topic}x", "did you mean `{topic}`?", id="misspelt"),
    ],
)
def test_a_topic_without_records_gets_one_sentence(
    registered: World, topic: str, says: str
) -> None:
    """Empty or missing, the topic is named, and nothing is written; exit 2."""
    result = oncelake("init", topic.format(topic=registered.topic), "--json")

    assert result.exit_code == 2
    assert says.format(topic=registered.topic) in answer(result)["error"]["message"]
    assert not registered.settings.streams.exists()


def test_the_sample_is_the_last_records_that_were_committed(registered: World) -> None:
    """No more than were asked for, of every partition, and none of an aborted transaction."""
    world = registered
    send(world, [(None, as_json({"id": n}), n % 2) for n in range(100)])
    producer = transactional(world)
    producer.begin_transaction()
    producer.produce(world.topic, value=b"never", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    world.wait_for_end(52)

    told = answer(oncelake("init", world.topic, "--sample", "10", "--json"))

    # Two of partition 0's five offsets are the aborted record and its marker.
    assert sorted(row["id"] for row in told["rows"]) == [91, 93, 94, 95, 96, 97, 98, 99]


def test_a_registry_that_does_not_answer_is_another_exit(
    registered: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with the topic: the same command may succeed later; exit 5."""
    monkeypatch.setenv("ONCELAKE_SCHEMA_REGISTRY", "http://127.0.0.1:9")
    send(registered, [(None, b"\0\0\0\0\7abc", 0)])

    assert oncelake("init", registered.topic).exit_code == 5
