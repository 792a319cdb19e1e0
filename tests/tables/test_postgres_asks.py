"""What a team's own table of PostgreSQL asks, and fills, holds from Kafka to the proof."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from oncelake.ingestion.errors import RefusedError
from tests.support.proof import find_problems, prove
from tests.support.world import World, row

pytestmark = [
    pytest.mark.spark,
    pytest.mark.parametrize("sink", ["postgres"]),
]


def execute(world: World, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement on the table, as somebody else."""
    assert world.settings.postgres is not None
    url = world.settings.postgres.get_secret_value()
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.format(table=f'public."{world.name}"').encode())
        return cursor.fetchall() if cursor.description else []


def test_what_a_table_fills_stays_its_own(world: World) -> None:
    """Identity, default and generated columns are set on insert and kept on update, unproven."""
    execute(
        world,
        """CREATE TABLE {table} (
            number bigint GENERATED ALWAYS AS IDENTITY, made timestamptz NOT NULL DEFAULT now(),
            doc jsonb, id int PRIMARY KEY, name text UNIQUE, at int,
            loud text GENERATED ALWAYS AS (upper(name)) STORED, _topic text, _partition int,
            _offset bigint, _timestamp timestamptz, _epoch int, _seq bigint)""",
    )
    world.send(row(1, "a"), row(2, "b"), row(3, "c"))
    world.run()
    execute(world, "UPDATE {table} SET doc = '[1]' WHERE id = 1")
    filled = "SELECT id, number, made, doc FROM {table} ORDER BY id"
    before = execute(world, filled)
    world.send(row(1, "b"), row(2, "a"), row(3, "d", 5))

    world.run()

    assert world.rows() == [row(1, "b"), row(2, "a"), row(3, "d", 5)]
    assert execute(world, filled) == before
    assert execute(world, "SELECT loud FROM {table} ORDER BY id") == [("B",), ("A",), ("D",)]
    assert find_problems(world) == ()


def test_a_record_that_clashes_is_left_out_as_advised(world: World) -> None:
    """Refused with exit 3, since a second run would say the same; the advice ends it, proven."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    execute(world, "ALTER TABLE {table} ADD CONSTRAINT one UNIQUE (name)")
    world.send(row(3, "c"), row(4, "a"))

    with pytest.raises(RefusedError, match=r'-0 offset 3: .*"one" \(name\), as .* offset 0') as no:
        world.run()

    assert no.value.exit_code == 3
    advised = re.search(r"`where: (.*?)`", no.value.remedy)
    assert advised
    world.declare(where=advised[1])
    world.run()
    assert world.rows() == [row(1, "a"), row(2, "b"), row(3, "c")]
    assert prove(world).holds


def test_a_key_that_is_too_long_becomes_a_digest_as_advised(world: World) -> None:
    """It waits in quarantine, and so does its delete; a new table by the remedy has the row."""
    longest, longer = "x" * 2_000, "y" * 2_001
    world.declare(schema="id STRING NOT NULL, name STRING")
    world.send({"id": longest, "name": "a"}, {"id": longer, "name": "b"})
    world.run()

    assert [each["reason"] for each in world.quarantined()] == ["key_too_long"]
    assert [each["name"] for each in world.rows()] == ["a"]
    assert find_problems(world) == ()
    world.declare(
        schema="key STRING NOT NULL, id STRING, name STRING",
        value_schema="id STRING, name STRING",
        select={"key": "sha2(id, 256)"},
        keys=["key"],
        tombstones="ignore",
    )
    world.rebuild()
    assert sorted(each["name"] for each in world.rows()) == ["a", "b"]
    assert prove(world).holds
