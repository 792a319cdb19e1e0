"""What was found for a declaration is read with it, and never taken for another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oncelake.ingestion.declaration.files.loader import find_stream, load_streams
from oncelake.ingestion.declaration.files.topics import FoundTopic, read_topics, write_topics
from oncelake.ingestion.errors import InvalidSpecError

FILE = """\
topic_pattern: 'shop\\.(\\w+)\\.(.*)'
table_per_topic: true
format: {type: debezium, encoding: avro}
schema: registry
"""
ORDERS = FoundTopic(
    name="shop.public.orders",
    id="x",
    first_seen="2026-11-27T00:00:00+00:00",
    schema="id INT, total DECIMAL(10, 2), `odd name` STRING",
    keys=("id",),
    left_out={"either": "no column type holds all of its values"},
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of a database, and what was found of it."""
    path = tmp_path / "shop.yaml"
    path.write_text(FILE)
    write_topics(path, [ORDERS, replace(ORDERS, name="shop.public.empty", schema="", keys=())])
    return path


def test_what_was_found_is_read_as_it_was_written(file: Path) -> None:
    """Each topic is a line, sorted, without what says nothing; no other file is left."""
    assert ORDERS in read_topics(file)
    lines = file.with_name("shop.topics.yaml").read_text().splitlines()
    assert [line[:32] for line in lines if line.startswith("- ")] == [
        '- {"name": "shop.public.empty", ',
        '- {"name": "shop.public.orders",',
    ]
    assert {each.name for each in file.parent.iterdir()} == {"shop.yaml", "shop.topics.yaml"}


def test_a_topic_that_kafka_lists_and_does_not_describe_is_read_again(file: Path) -> None:
    """Its line has no id, as where it was deleted between two questions."""
    hidden = replace(ORDERS, id="")

    write_topics(file, [hidden])

    assert read_topics(file) == [hidden]


def test_a_topic_without_columns_takes_no_other_down(file: Path) -> None:
    """The groups of the pattern name the streams; the key's columns are required, by default."""
    file.write_text(FILE + "exclude: odd name\n")

    empty, orders = load_streams(file.parent)

    assert (empty.name, orders.name) == ("shop_public_empty", "shop_public_orders")
    assert "oncelake discover shop, once it holds records" in str(empty.error)
    spec = orders.require_spec()
    assert spec.ddl == "`id` INT NOT NULL, `total` DECIMAL(10, 2)"
    assert spec.keys == ("id",)
    assert not spec.follows_schema


@pytest.mark.parametrize(
    ("more", "says"),
    [
        pytest.param("table: same\n", "say by `table`", id="one name for two"),
        pytest.param("columns: {id: NOTHING}\n", "columns: ", id="no type"),
        pytest.param("keys: [nope]\n", "nope", id="no such key"),
        pytest.param("schema_from: {kind: registry}\n", "write `schema: registry`", id="ours"),
        pytest.param("select: {id: id}\n", "computed columns need `schema` as DDL", id="select"),
        pytest.param(
            "exclude: [total]\non_new_field: quarantine\n", "each record with such", id="exclude"
        ),
    ],
)
def test_what_contradicts_is_refused_by_line(file: Path, more: str, says: str) -> None:
    """The text names the file, and what to write instead."""
    file.write_text(FILE + more)

    errors = [str(each.error) for each in load_streams(file.parent) if each.error]

    assert any(says in error and "shop.yaml" in error for error in errors), errors


def test_columns_are_overridden_singly(file: Path) -> None:
    """A type, a NOT NULL, and a column that the schema does not have."""
    file.write_text(FILE + "columns: {total: DOUBLE, lsn: BIGINT NOT NULL}\nexclude: odd name\n")

    spec = find_stream(file.parent, "shop_public_orders")

    assert spec.ddl == "`id` INT NOT NULL, `total` DOUBLE, `lsn` BIGINT NOT NULL"


def test_a_file_that_was_edited_by_hand_is_refused(file: Path) -> None:
    """By its line, with the way out."""
    found = file.with_name("shop.topics.yaml")
    found.write_text(found.read_text().replace('"id": "x"', "id: x"))

    (stream,) = load_streams(file.parent)

    assert "shop.topics.yaml:4: not as it was written" in str(stream.error)
    assert "oncelake discover shop" in str(stream.error)
    with pytest.raises(InvalidSpecError):
        read_topics(file)


def test_what_a_newer_version_says_more_is_passed_over() -> None:
    """An older one beside it has the streams all the same."""
    line = '- {"name": "shop.orders", "first_seen": "2026-01-01", "more": 1}'

    found = FoundTopic.read(line)

    assert found == FoundTopic(name="shop.orders", first_seen="2026-01-01")


def test_a_column_without_a_registry_is_not_excluded(tmp_path: Path) -> None:
    """What is said of a schema that comes with the records needs one."""
    (tmp_path / "orders.yaml").write_text(
        "topic: orders\nschema: id INT NOT NULL\nkeys: id\nexclude: [a]\ncolumns: {b: INT}\n"
    )

    (stream,) = load_streams(tmp_path)

    assert "exclude: the file has the columns itself" in str(stream.error)
    assert "columns: the file has the columns itself" in str(stream.error)
