"""A field that a STRUCT of a record has, and its column has not: it grows, is counted, or waits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any, NamedTuple

import pytest
from fastavro import parse_schema, schemaless_writer

from oncelake.ingestion.errors import SchemaChangedError
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.both_readers import Sent, classified, declared, judged
from tests.support.proof import find_problems, prove
from tests.support.registry import framed
from tests.support.small_registry import SmallRegistry, small_registry
from tests.support.world import World
from tests.trials.failpoints import PlannedError, crashing_at

CITY: Mapping[str, Any] = {"city": "string", "geo": ["null", "int"]}
# A field behind the others, and one between them.
ZIP: Mapping[str, Any] = {"city": "string", "zip": ["null", "string"], "geo": ["null", "int"]}
NARROW = "STRUCT<city: STRING, geo: INT>"
WIDE = "STRUCT<city: STRING, zip: STRING, geo: INT>"


def ddl(place: str) -> str:
    """Return columns of which each has a place in it, at one depth or another."""
    return (
        f"id INT NOT NULL, addr {place}, items ARRAY<{place}>, m MAP<STRING, {place}>, "
        f"deep STRUCT<inner: {place}, n: INT>, many ARRAY<MAP<STRING, STRUCT<at: {place}>>>"
    )


def avro(place: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of a record of those columns."""

    def record(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        of = [{"name": field, "type": type_} for field, type_ in fields.items()]
        return {"type": "record", "name": name, "fields": of}

    def place_in(name: str) -> list[Any]:
        return ["null", record(name, place)]

    deep = record("Deep", {"inner": place_in("Inner"), "n": ["null", "int"]})
    at = {"type": "map", "values": record("At", {"at": place_in("Place")})}
    return record(
        "Order",
        {
            "id": "int",
            "addr": place_in("Addr"),
            "items": {"type": "array", "items": record("Item", place)},
            "m": {"type": "map", "values": record("Value", place)},
            "deep": ["null", deep],
            "many": {"type": "array", "items": at},
        },
    )


def row(id_: int, place: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row, or the record that says it."""
    return {
        "id": id_,
        "addr": place,
        "items": [place, place],
        "m": {"a": place},
        "deep": {"inner": place, "n": 1},
        "many": [{"b": {"at": place}}],
    }


OLD, NEW = {"city": "Rome", "geo": 1}, {"city": "Oslo", "zip": "89073", "geo": 2}
PATHS = ["addr.zip", "items[].zip", "m{}.zip", "deep.inner.zip", "many[]{}.at.zip"]


class Written:
    """A stream whose records a small registry has the schemas of."""

    def __init__(self, world: World, registry: SmallRegistry) -> None:
        """Take both."""
        self.world, self._registry = world, registry
        world.settings = world.settings.model_copy(update={"schema_registry": registry.address})

    def send(self, place: Mapping[str, Any], *rows: Mapping[str, Any]) -> None:
        """Write records by a schema that they bring along."""
        schema = avro(place)
        number = self._registry.add(schema)
        for each in rows:
            payload = BytesIO()
            schemaless_writer(payload, parse_schema(schema), each)
            self.world.send(framed(number, payload.getvalue()))

    def rows(self) -> list[dict[str, Any]]:
        """Read the rows, with maps as Python has them."""
        names = [column.name for column in self.world.spec.columns]
        found = self.world.paths.table.scan(names)
        every = [r for each in found for r in each.to_pylist(maps_as_pydicts="strict")]
        return sorted(every, key=lambda each: each["id"])


@pytest.fixture
def written(world: World) -> Iterator[Written]:
    """A stream of Avro."""
    with small_registry() as registry:
        world.declare(format="avro", schema=ddl(NARROW))
        yield Written(world, registry)


SINKS = [
    pytest.param({}, id="delta"),
    pytest.param({"deletion_vectors": True}, id="vectors"),
    pytest.param({"sink": {"iceberg": {}}}, id="iceberg"),
]
FOLLOWED: dict[str, Any] = {
    "schema_from": {"kind": "registry"},
    **dict.fromkeys(("schema_change", "on_new_field", "on_wider_type"), "evolve"),
}


@pytest.mark.parametrize("sink", SINKS)
def test_a_newer_schema_gives_a_struct_its_fields(written: Written, sink: dict[str, Any]) -> None:
    """Wherever it is, and in their order; the rows that are there have none of them."""
    world = written.world
    world.declare(**sink, **FOLLOWED)
    written.send(CITY, row(1, OLD))
    world.run()
    written.send(ZIP, row(2, NEW))
    written.send(CITY, row(3, OLD))

    world.run()

    world.declare(schema=ddl(WIDE))
    assert written.rows() == [
        row(1, {**OLD, "zip": None}),
        row(2, NEW),
        row(3, {**OLD, "zip": None}),
    ]
    assert [batch.kind for batch in world.ledger] == ["ingest", "schema", "ingest"]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", [*SINKS[::2]])
def test_a_field_that_is_not_followed_is_counted_by_its_path(
    written: Written, sink: dict[str, Any]
) -> None:
    """A column that a person types, who may name the field later: rows have it from then on."""
    world = written.world
    world.declare(**sink)
    written.send(ZIP, row(1, NEW))

    report = world.run()

    counted = {n: c for n, c in report.batches[0].counts.items() if n.startswith("extra_fields")}
    assert counted == {"extra_fields": 1, **{f"extra_fields.{path}": 1 for path in PATHS}}
    assert find_problems(world) == ()
    world.declare(schema=ddl(WIDE), schema_change="evolve")
    written.send(ZIP, row(2, NEW))
    report = world.run()
    assert written.rows() == [row(1, {**NEW, "zip": None}), row(2, NEW)]
    assert report.total("extra_fields") == 0
    assert find_problems(world) == ()


@pytest.mark.kafka
def test_a_field_that_its_sink_cannot_add_waits(written: Written) -> None:
    """A topic keeps the types that it began with; the record stays whole."""
    world = written.world
    world.declare(**FOLLOWED, sink={"kafka": {}})
    written.send(CITY, row(1, OLD))
    world.run()
    written.send(ZIP, row(2, NEW))

    world.run()

    assert [each["reason"] for each in world.quarantined()] == ["unknown_field"]
    assert written.rows() == [row(1, OLD)]
    assert find_problems(world) == ()


def test_a_field_that_its_column_does_not_get_waits(written: Written) -> None:
    """Where wider types are not followed, or by mode; a column that a person types counts it."""
    world = written.world
    world.declare(**{**FOLLOWED, "on_wider_type": "quarantine"}, columns={"addr": NARROW})
    written.send(CITY, row(1, OLD))
    written.send(ZIP, row(2, NEW))

    report = world.run()

    (waiting,) = world.quarantined()
    assert waiting["reason"] == "unknown_field"
    assert waiting["detail"].endswith(f"not in `schema`: {', '.join(PATHS[1:])}")
    assert report.total("inserted") == 1
    assert find_problems(world) == ()
    world.declare(on_wider_type="evolve")
    assert prove(world).differences == ()
    written.send(ZIP, row(3, NEW))
    world.run()
    assert world.redrive().redriven == 1
    others = [
        {**each, "addr": None} for each in (row(1, {**OLD, "zip": None}), row(2, NEW), row(3, NEW))
    ]
    assert [{**each, "addr": None} for each in written.rows()] == others
    assert find_problems(world) == ()


class Sample(NamedTuple):
    """One record of a format, with a field that the STRUCT of its column has not.

    Attributes:
        schema: What the registry has of it, and the schema's type.
    """

    raw: bytes
    schema: tuple[str, str] | None = None


PLACE = {"city": "Oslo", "zip": "89073"}
SHORT = "id INT NOT NULL, addr STRUCT<city: STRING>, items ARRAY<STRUCT<city: STRING>>"
ROW = {"id": 1, "addr": PLACE, "items": [PLACE]}
PLACE_IN_PROTO = "0d 0a044f736c6f 12053839303733"
PROTO = """syntax = "proto3";
message Row { int32 id = 1; P addr = 2; repeated P items = 3; map<string, P> other = 4; }
message P { string city = 1; string zip = 2; }
"""


def debezium(**more: Any) -> bytes:
    """Return an envelope of the row."""
    return json.dumps({"op": "c", "before": None, "after": ROW, **more}).encode()


def debezium_in_avro() -> Sample:
    """Return the same as Avro, as its own schema."""
    place = {
        "type": "record",
        "name": "P",
        "fields": [{"name": n, "type": "string"} for n in PLACE],
    }
    types = {"id": "int", "addr": ["null", place], "items": {"type": "array", "items": "P"}}
    fields = [{"name": name, "type": type_} for name, type_ in types.items()]
    value = {"type": "record", "name": "Value", "fields": fields}
    sides = {"op": "string", "before": ["null", value], "after": ["null", "Value"]}
    fields = [{"name": name, "type": type_} for name, type_ in sides.items()]
    schema = {"type": "record", "name": "Envelope", "fields": fields}
    payload = BytesIO()
    after = ("Value", {**ROW, "addr": ("P", PLACE)})
    schemaless_writer(payload, parse_schema(schema), {"op": "c", "before": None, "after": after})
    return Sample(framed(1, payload.getvalue()), (json.dumps(schema), "AVRO"))


def debezium_with_schema() -> bytes:
    """Return the same behind a schema of Kafka Connect's."""
    place = {"type": "struct", "fields": [{"field": n, "type": "string"} for n in PLACE]}
    fields = [{"field": "id", "type": "int32"}, {**place, "field": "addr"}]
    after = [*fields, {"field": "items", "type": "array", "items": place}]
    schema = {"fields": [{"field": "after", "fields": after}]}
    return json.dumps({"schema": schema, "payload": json.loads(debezium())}).encode()


SAMPLES = {
    "json_schema": Sample(framed(1, json.dumps(ROW).encode()), ("{}", "JSON")),
    "protobuf": Sample(
        framed(
            1,
            bytes.fromhex(
                "00 0801 120d 0a044f736c6f 12053839303733 1a0d 0a044f736c6f 12053839303733"
            ),
        ),
        (PROTO, "PROTOBUF"),
    ),
    "debezium": Sample(debezium()),
    "debezium avro": debezium_in_avro(),
    "debezium schemas": Sample(debezium_with_schema()),
}
FORMATS: dict[str, Any] = {
    "debezium avro": {"type": "debezium", "encoding": "avro"},
    "debezium schemas": {"type": "debezium", "schemas": True},
}


@pytest.mark.parametrize("extra", ["ignore", "reject"])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_names_what_a_struct_lacks(name: str, extra: str) -> None:
    """By its path; engine and proof, each by its own reader, put aside what is to be rejected."""
    sample = SAMPLES[name]
    spec = declared(format=FORMATS.get(name, name), schema=SHORT, extra_fields=extra)
    with small_registry() as registry:
        if sample.schema:
            registry.add(*sample.schema)
        (found,) = judged(spec, registry.settings, [Sent(sample.raw)])
        proof = classified(spec, registry.settings, [Sent(sample.raw)])

    others = ["other"] if name == "protobuf" else []
    if extra == "ignore":
        assert (found["_disposition"], found["addr"]) == ("row", {"city": "Oslo"})
        assert found["_extra"] == ["addr.zip", "items[].zip", *others]
        (change,) = proof.changes
        assert change.has_undeclared or name == "json_schema"
    else:
        assert (found["_disposition"], found["_reason"]) == ("quarantined", "unknown_field")
        assert [record.offset for record, _ in proof.bad] == [0]


def test_a_field_that_is_in_no_column_and_no_count_is_a_difference(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof knows a record's schema, and finds what the engine would have lost."""
    monkeypatch.setattr("oncelake.ingestion.formats.avro.undeclared", lambda *_: iter(()))
    monkeypatch.setattr("oncelake.ingestion.formats.avro.columns.undeclared", lambda *_: iter(()))
    written.send(ZIP, row(1, NEW))

    written.world.run()

    (difference,) = prove(written.world).differences
    assert difference.what == "extra_fields, at least, counted again"
    assert (difference.expected, difference.found) == ("1", "0")


@pytest.mark.parametrize("place", [Failpoint.ALTERED, Failpoint.SCHEMA_NOTED])
def test_an_iceberg_table_that_dies_while_it_grows_has_grown(
    written: Written, place: Failpoint
) -> None:
    """The next run finds the columns of the newer schema, notes them, and reads."""
    world = written.world
    world.declare(**FOLLOWED, sink={"iceberg": {}})
    written.send(CITY, row(1, OLD))
    world.run()
    written.send(ZIP, row(2, NEW))
    with crashing_at(place), pytest.raises(PlannedError):
        world.run()

    world.run()

    world.declare(schema=ddl(WIDE))
    assert written.rows() == [row(1, {**OLD, "zip": None}), row(2, NEW)]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("other", ["STRUCT<a: BIGINT, b: STRING>", "STRUCT<b: STRING>"])
def test_a_declaration_that_its_table_has_not_followed_changes_no_row(
    world: World, sink: dict[str, Any], other: str
) -> None:
    """The run is refused; the rows are those of the columns of then, and are proven."""
    world.declare(schema="id BIGINT NOT NULL, s STRUCT<a: BIGINT>, l ARRAY<STRUCT<a: INT>>", **sink)
    world.send({"id": 1, "s": {"a": 1}, "l": [{"a": 2}]})
    world.run()
    world.declare(schema=f"id BIGINT NOT NULL, s {other}, l ARRAY<{other}>")
    with pytest.raises(SchemaChangedError):
        world.run()

    verdict = prove(world)

    assert verdict.holds, verdict.differences
    assert verdict.limits == ()
