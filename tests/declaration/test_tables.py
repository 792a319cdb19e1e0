"""One file, a stream for each of the tables that its topic fills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oncelake.ingestion.cli.commands.streams import chosen
from oncelake.ingestion.declaration.files.loader import load_streams, reload_stream
from oncelake.ingestion.declaration.files.topics import FoundTopic, read_topics, write_topics
from oncelake.ingestion.declaration.spec import StreamSpec, meaning
from oncelake.ingestion.recovery.topics import changed_identity
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables.commit_metadata import UNKNOWN

EVENTS = """\
topic: events
route_by: type
sensor_seconds: 30
tables:
  placed: {schema: id BIGINT NOT NULL, keys: [id]}
  payment:
    when: [paid, refunded]
    schema: n INT
    mode: append
    sensor_seconds: 90
otherwise: ignore
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A streams' folder with one such file."""
    (tmp_path / "events.yaml").write_text(EVENTS)
    return tmp_path


def specs_in(folder: Path) -> list[StreamSpec]:
    """Return the streams, which are sound."""
    return [each.require_spec() for each in load_streams(folder)]


def test_every_table_is_a_stream_with_the_defaults_of_the_file(folder: Path) -> None:
    """Its own fields win; its route, and those of its siblings, are part of what it means."""
    payment, placed = specs_in(folder)

    assert [payment.name, placed.name] == ["events_payment", "events_placed"]
    assert [payment.sensor_seconds, placed.sensor_seconds] == [90, 30]
    assert payment.route is not None
    assert (payment.route.own, payment.route.others) == (("paid", "refunded"), ("placed",))
    again = StreamSpec.model_validate(
        {**meaning(payment), "name": "x", "topic": "t", "schema": "n INT", "mode": "append"}
    )
    assert again.route == payment.route


def test_the_name_of_the_file_stands_for_all_of_its_tables(folder: Path) -> None:
    """A command takes it; each stream is read again by its own name."""
    settings = Settings(streams=folder)

    both = chosen(["events"], settings)

    assert [each.name for each in both] == ["events_payment", "events_placed"]
    assert chosen(["events_placed", "events"], settings) == [both[1], both[0]]
    assert reload_stream(both[0]) == both[0]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "otherwise: ignore",
            "otherwise: placd",
            "11: otherwise: is no table; did you mean `placed`",
        ),
        ("    schema: n INT", "    schemma: n INT", "8: schemma: unknown key"),
        ("[paid, refunded]", "[placed]", '7: tables.payment.when: "placed" is of table placed'),
        ("[paid, refunded]", "[1]", "4: tables: a route is a text, a number or a boolean"),
        ("[paid, refunded]", "[1.5]", "7: tables.payment.when: write a text, a whole number"),
        ("[paid, refunded]", "[]", "7: tables.payment.when: write at least one route"),
        ("    when: [paid, refunded]", "    topic: other", "7: tables.payment.topic: is for all"),
        ("route_by: type\n", "", "1: route_by: missing"),
        ("route_by: type", "route_by: a b", "2: route_by: write a field of the value"),
        ("route_by: type", "route_by: _schema", "2: route_by: only schemas of a registry"),
        ("route_by: type", "route_by: x\nformat: csv", "2: route_by: csv has no field"),
        ("route_by: type", "route_by: x\nroute: {by: x}", "3: route: unknown key"),
        ("topic: events", "topics: [a]\ntable_per_topic: true", "2: table_per_topic: a file has"),
        ("topic: events", "topic: e\nsink: {postgres: {table: s.x}}", "2: sink: events_placed and"),
        (
            "topic: events",
            "topic: e\nsink: {delta: {catalog: {hive: {table: s.x}}}}",
            "2: sink: events_placed and events_payment would share s.x",
        ),
        (
            "topic: events",
            "topic: e\nsink: {delta: {catalog: {unity: {table: A.s.X}}}}",
            "2: sink: events_placed and events_payment would share a.s.x",
        ),
        ("  payment:", "  pay__ment:", "tables.pay__ment: a table's name holds no `__`"),
        ("    mode: append", "    mode: appnd", "9: mode: there is no"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_mistake_is_told_with_its_line(folder: Path, old: str, new: str, says: str) -> None:
    """Whether it stands in a table or beside them; the other files are left alone."""
    file = folder / "events.yaml"
    file.write_text(EVENTS.replace(old, new))
    (folder / "other.yaml").write_text("topic: t\nschema: id INT\nkeys: id\n")

    streams = {each.name: each for each in load_streams(folder)}

    assert says in str(streams["events"].error)
    assert streams["other"].spec is not None


@pytest.mark.parametrize(("one", "other"), [("1", "true"), ("[0]", "[false, 2]")])
def test_a_boolean_beside_a_number_is_another_route(folder: Path, one: str, other: str) -> None:
    """Though Python calls them equal: only that they are of two kinds is told."""
    tables = f"  a: {{when: {one}, schema: n INT}}\n  b: {{when: {other}, schema: n INT}}\n"
    (folder / "events.yaml").write_text(f"topic: e\nroute_by: x\nmode: append\ntables:\n{tables}")

    error = str(load_streams(folder)[0].error)

    assert "4: tables: a route is a text, a number or a boolean: write all `when` alike" in error
    assert "is of table" not in error


def test_a_table_takes_the_name_of_no_other_file(folder: Path) -> None:
    """Two streams would share a table."""
    (folder / "events_placed.yaml").write_text("topic: t\nschema: id INT\nkeys: id\n")

    streams = {each.name: each for each in load_streams(folder)}

    assert "'events_placed', and so is events_placed.yaml; call one otherwise" in str(
        streams["events"].error
    )
    assert streams["events_placed"].spec is not None


def test_messages_name_the_file_that_declares_the_stream(folder: Path) -> None:
    """A person edits that one; there is none of the stream's own name."""
    (folder / "shop.yaml").write_text(
        "topic_pattern: 'shop\\.(.*)'\ntable_per_topic: true\nschema: id INT\nkeys: id\n"
    )
    found = FoundTopic(name="shop.orders", id="x", first_seen="2026")
    write_topics(folder / "shop.yaml", [found])
    _, of_table, of_topic = specs_in(folder)
    written = replace(UNKNOWN, cluster_id="c", rule="append")

    said = [changed_identity(each, written) for each in (of_table, of_topic)]

    assert [each and each.remedy.split(",")[0] for each in said] == [
        "restore events.yaml",
        "restore shop.yaml",
    ]


REGISTERED = """\
topics: [a, b]
format: avro
route_by: {by}
schema: registry
tables:
  placed: {{keys: [id]}}
  payment: {{when: paid, keys: [id]}}
  views: {{schema: page STRING, mode: append}}
"""


@pytest.mark.parametrize(
    ("by", "records"),
    [("_schema", ("placed",)), ("kind", ("shop.Placed",)), ("header:kind", ("shop.Placed",))],
)
def test_what_was_found_of_a_kind_completes_its_table_alone(
    folder: Path, by: str, records: tuple[str, ...]
) -> None:
    """Where one topic lacks the kind, too; a kind that nobody knows keeps no sibling back."""
    file = folder / "events.yaml"
    file.write_text(REGISTERED.format(by=by))
    found = FoundTopic(name="a", id="x", first_seen="2026", table="placed", record="shop.Placed")
    write_topics(file, [replace(found, schema="id INT")], table="placed")
    write_topics(file, [replace(found, table="payment", record="")], table="payment")
    of_both = [replace(found, schema="id INT"), replace(found, name="b", record="")]

    write_topics(file, of_both, table="placed")

    assert [(each.name, each.table) for each in read_topics(file)] == [
        *(("a", "payment"), ("a", "placed"), ("b", "placed"))
    ]
    payment, placed, views = load_streams(folder)
    assert "no columns are known of topic 'a'" in str(payment.error)
    spec = placed.require_spec()
    assert (spec.ddl, spec.file) == ("`id` INT NOT NULL", "events.yaml")
    assert spec.schema_from is not None
    assert spec.schema_from.records == records
    assert spec.route is not None
    assert [name for name, _ in spec.route.tables] == [
        *("events_placed", "events_payment", "events_views")
    ]
    assert views.require_spec().schema_from is None


def test_no_table_has_its_schemas_in_the_records(folder: Path) -> None:
    """Nothing tells which of them are of its kind."""
    (folder / "events.yaml").write_text(
        EVENTS.replace("schema: n INT", "schema: embedded").replace(
            "topic: events", "topic: events\nformat: {type: debezium, schemas: true}"
        )
    )

    (stream,) = load_streams(folder)

    assert "9: schema: nothing tells which schemas are of this table" in str(stream.error)


def test_two_files_declare_no_stream_of_one_name(folder: Path) -> None:
    """The second of them is refused, with the file of the first."""
    (folder / "events_b.yaml").write_text(
        "topics: [b, c]\ntable_per_topic: true\nschema: id INT\nkeys: id\n"
    )
    (folder / "events.yaml").write_text(EVENTS.replace("placed:", "b_c:"))

    streams = {each.name: each for each in load_streams(folder)}

    assert streams["events_b_c"].spec is not None
    assert "'events_b_c', and so is events.yaml" in str(streams["events_b"].error)


TWO_MISTAKES = """\
topic: events
route_by: type
keys: id
tables:
  placed:
    schema: id INT NOT NULL
    verifyy: true
  payment:
    schema: id INTT NOT NULL
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        pytest.param("", "", "", id="in the tables alone"),
        pytest.param("route_by: type", "route_by: a b", "2: route_by: write a field", id="route"),
        pytest.param("route_by: type\n", "", "1: route_by: missing", id="no route"),
        pytest.param("route_by: type", "route_by: _schema", "2: route_by: only schemas", id="by"),
        pytest.param("keys: id", "keys: id\notherwise: x", "otherwise: is no table", id="rest"),
        pytest.param("keys: id", "keys: id\nformat: jsn", "4: format: ", id="format"),
        pytest.param("  payment:", "  p__t: {}\n  payment:", "p__t: a table's name", id="name"),
    ],
)  # fmt: skip
def test_all_mistakes_of_a_file_are_told_at_once(
    folder: Path, old: str, new: str, says: str
) -> None:
    """One in the file hides none in its tables, nor one of a table that of another; each once."""
    (folder / "events.yaml").write_text(TWO_MISTAKES.replace(old, new))

    (broken,) = (each for each in load_streams(folder) if each.name == "events")

    lines = str(broken.error).splitlines()
    assert says in str(broken.error)
    assert len([line for line in lines if "verifyy: unknown key" in line]) == 1
    assert len([line for line in lines if "schema: " in line and "INTT" in line]) == 1
    assert len(lines) == len({*lines}) == (3 if says else 2)


def test_a_table_without_its_columns_hides_no_mistake_of_another(folder: Path) -> None:
    """Its columns come from a registry; what is wrong with it, and with others, is told."""
    text = TWO_MISTAKES.replace("    schema: id INT NOT NULL", "    schema: registry\n    mode: 1")
    (folder / "events.yaml").write_text(
        text.replace("topic: events", "topic: events\nformat: avro")
    )

    (broken,) = (each for each in load_streams(folder) if each.name == "events")

    assert "8: mode: " in str(broken.error)
    assert "INTT" in str(broken.error)
