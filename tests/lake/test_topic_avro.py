"""A row that is written as Avro is read again as it was, here and by others."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from avro.io import BinaryDecoder, DatumReader
from avro.schema import parse
from confluent_kafka.schema_registry import SchemaRegistryClient

from oncelake.ingestion.declaration.ddl import parse_columns, system_columns
from oncelake.ingestion.declaration.sinks import KafkaSink
from oncelake.ingestion.errors import DependencyError, RefusedError, TableSettingsError
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.kafka.avro import AvroRows
from oncelake.ingestion.sinks.kafka.notes import TopicSchema
from oncelake.ingestion.sinks.kafka.table import TopicTable, open_table
from oncelake.ingestion.sinks.kafka.writer import TopicPlace
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.arrow_types import arrow_schema
from oncelake.ingestion.tables.table import TableDefinition
from oncelake.testing import begin, commit, note, rows_in
from oncelake.testing.tables import with_columns
from tests.support.registry import Subject
from tests.support.world import changed

pytestmark = pytest.mark.kafka
COLUMNS = (*parse_columns("id INT NOT NULL, name STRING"), *system_columns())
SILENT = "http://127.0.0.1:1"


@pytest.fixture
def name() -> str:
    """The name of a topic of the test's own, which is not there yet."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def settings(registry_address: str, tmp_path: Path) -> Settings:
    """Where the registry is."""
    return Settings(schema_registry=registry_address, kafka_timeout_seconds=5, state=tmp_path)


@pytest.fixture
def table(name: str, settings: Settings, kafka_address: str) -> TopicTable:
    """The topic of a stream."""
    return opened(name, changed(settings, kafka=kafka_address))


@pytest.fixture
def subject(name: str, registry_address: str) -> Iterator[Subject]:
    """The subject of its values."""
    with Subject(registry_address, f"{name}-value") as made:
        yield made


def opened(name: str, settings: Settings, format: Any = "avro") -> TopicTable:
    """Open a topic."""
    sink = KafkaSink(topic=name, format=format)
    return open_table("orders", sink, settings, Location.of("/no"))


def rows_of(name: str, settings: Settings, ddl: str, *keys: str) -> AvroRows:
    """Return the format of a topic with these columns, whose schemas are registered."""
    place = TopicPlace(stream="orders", topic=name, settings=settings)
    schema = TopicSchema(stream="orders", columns=parse_columns(ddl), keys=keys, format="avro")
    return AvroRows(place=place, schema=AvroRows(place=place, schema=schema).registered())


def read_by_apache(client: SchemaRegistryClient, record: Any) -> Any:
    """Read a record by Apache's library."""
    text = client.get_schema(int.from_bytes(record[1:5])).schema_str or ""
    return DatumReader(parse(text)).read(BinaryDecoder(BytesIO(record[5:])))


TYPES = {
    "b": ("BOOLEAN", True),
    "t": ("TINYINT", -128),
    "s": ("SMALLINT", 2**15 - 1),
    "f": ("FLOAT", 0.10000000149011612),
    "infinite": ("FLOAT", -math.inf),
    "d": ("DOUBLE", -5e-324),
    "v": ("VARCHAR(9)", "é世😀\u0000"),
    "m": ("DECIMAL(38, 10)", Decimal("-" + "9" * 28 + "." + "9" * 10)),
    "zero": ("DECIMAL(3, 3)", Decimal("0.000")),
    "day": ("DATE", dt.date(1, 1, 1)),
    "at": ("TIMESTAMP", dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)),
    "logicalType": ("TIMESTAMP_NTZ", dt.datetime(1, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001
    "a": ("ARRAY<DECIMAL(3, 1)>", [Decimal("1.5"), None]),
    # Names that would be one name if they were only put together.
    "x": ("STRUCT<y_z: STRUCT<at: TIMESTAMP>>", {"y_z": {"at": None}}),
    "x_y": (
        "STRUCT<z: ARRAY<ARRAY<STRUCT<at: DATE, b: BINARY>>>>",
        {"z": [None, [None, {"at": dt.date(9999, 12, 31), "b": b"\xff"}]]},
    ),
    "p": ("MAP<STRING, STRUCT<n: DOUBLE>>", [("-type", {"n": 1.5}), ("", None)]),
}
DDL = ", ".join(f"{name} {type_}" for name, (type_, _) in TYPES.items())


@pytest.mark.filterwarnings("ignore:Unknown local-timestamp-micros")
def test_every_type_comes_back_and_others_read_it(
    name: str, settings: Settings, subject: Subject
) -> None:
    """Extremes and nulls lose nothing, and Apache's reader finds what was written."""
    rows = rows_of(name, settings, f"id BIGINT NOT NULL, {DDL}", "id")
    full = {"id": 2**63 - 1, **{each: value for each, (_, value) in TYPES.items()}}
    table = pa.Table.from_pylist([full, {"id": -(2**63)}], arrow_schema(rows.schema.columns))

    [records] = rows.records(table, are_gone=False)
    [gone] = rows.records(table.select(["id"]), are_gone=True)

    values = pa.array([record["value"] for record in records])
    assert rows.decode(values, rows.schema.columns).to_pylist() == table.to_pylist()
    assert gone == [{"key": record["key"], "value": None} for record in records]
    assert read_by_apache(subject.client, records[1]["key"]) == {"id": -(2**63)}
    found = read_by_apache(subject.client, records[0]["value"])
    plain = ("a", "at", "b", "d", "day", "f", "id", "infinite", "m", "s", "t", "v", "x", "zero")
    assert {each: found[each] for each in plain} == {each: full[each] for each in plain}
    assert found["x_y"] == {"z": [None, [None, {"at": dt.date(9999, 12, 31), "b": b"\xff"}]]}
    assert (found["logicalType"], found["p"]) == (
        (dt.datetime(1, 1, 1) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) + 1,  # noqa: DTZ001
        {"-type": {"n": 1.5}, "": None},
    )


def test_no_number_is_a_number_again(name: str, settings: Settings) -> None:
    """NaN, which equals nothing, is Avro's own."""
    rows = rows_of(name, settings, "v DOUBLE, w FLOAT")
    table = pa.table({"v": [math.nan], "w": pa.array([math.nan], pa.float32())})

    [[record]] = rows.records(table, are_gone=False)

    assert record["key"] is None
    [found] = rows.decode(pa.array([record["value"]]), rows.schema.columns).to_pylist()
    assert all(map(math.isnan, found.values()))


def test_what_is_no_row_is_refused(name: str, settings: Settings) -> None:
    """A record that is cut short, too long, or of another schema is an error."""
    rows = rows_of(name, settings, "a INT, b STRING")
    [[record]] = rows.records(pa.table({"a": [1], "b": ["x"]}), are_gone=False)
    other = rows_of(f"{name}.other", settings, "a INT")
    [[of_other]] = other.records(pa.table({"a": [1]}), are_gone=False)
    value: Any = record["value"]

    for bad in (b"", b"hello", value[:-1], value + b"\0", b"\1" + value[1:], of_other["value"]):
        with pytest.raises(ValueError, match="no Avro record of these columns") as raised:
            rows.decode(pa.array([value, bad]), rows.schema.columns)
        assert raised.value.__cause__ is None


def test_a_schema_that_the_registry_has_lost_is_named(name: str, settings: Settings) -> None:
    """It is no record of somebody else's, and nothing is written by a schema that is unknown."""
    rows = rows_of(name, settings, "a INT")
    lost = replace(rows, schema=replace(rows.schema, schema_ids={"value": [2**31 - 1]}))

    for use in (
        lambda: next(lost.records(pa.table({"a": [1]}), are_gone=False)),
        lambda: lost.decode(pa.array([b""]), lost.schema.columns),
    ):
        with pytest.raises(DependencyError, match=f"does not know schema id {2**31 - 1}"):
            use()


def test_a_new_column_is_a_compatible_schema(table: TopicTable, subject: Subject) -> None:
    """Who reads by the older schema, or by the newer one, can read both; ids are noted."""
    subject.client.set_compatibility(subject.name, "FULL_TRANSITIVE")
    begin(lambda: table)
    commit(table, 1, inserted={1: "a"})
    [new] = parse_columns("price DECIMAL(5, 2) NOT NULL")

    table.reshape(with_columns(table, [replace(new, nullable=True)]), note(2))

    schema = table.log().schema
    assert schema is not None
    assert [len(schema.schema_ids[part]) for part in ("key", "value")] == [1, 2]
    assert len(subject.client.get_versions(subject.name)) == 2
    [batch] = table.scan(["price", "name"])
    assert batch.to_pylist() == [{"price": None, "name": "a"}]


def test_a_registry_that_refuses_the_schema_stops_it(table: TopicTable, subject: Subject) -> None:
    """Nothing is made, and the message names the subject."""
    subject.register(json.dumps({"type": "record", "name": "x", "fields": []}))
    subject.client.set_compatibility(subject.name, "FULL")

    with pytest.raises(RefusedError, match=f"does not take the schema of subject {subject.name}"):
        begin(lambda: table)

    assert not table.log().exists


def test_a_registry_that_does_not_answer_stops_it(
    table: TopicTable, name: str, settings: Settings, kafka_address: str
) -> None:
    """Neither a topic is made without it, nor a batch written; a rerun goes on."""
    silent = changed(settings, kafka=kafka_address, schema_registry=SILENT)
    with pytest.raises(DependencyError, match=f"the schema registry at {SILENT} does not answer"):
        begin(lambda: opened(name, silent))
    assert not table.log().exists
    begin(lambda: table)

    with pytest.raises(DependencyError, match="does not answer"):
        commit(opened(name, silent), 1, inserted={1: "a"})

    commit(table, 1, inserted={1: "b"})
    assert rows_in(table) == {1: "b"}


def test_another_format_is_refused(
    table: TopicTable, name: str, settings: Settings, kafka_address: str
) -> None:
    """A topic keeps the format it was made with; what is there is read as it was written."""
    begin(lambda: table)
    commit(table, 1, inserted={1: "a"})
    other = opened(name, changed(settings, kafka=kafka_address), "json")

    error = other.check(other.log())

    assert "has rows as avro, not json" in str(error)
    with pytest.raises(TableSettingsError, match="write `format: avro` again, or write to another"):
        other.create(TableDefinition(columns=COLUMNS, keys=("id",)))
    assert rows_in(other) == {1: "a"}
    other.commit_note(note(2))
