"""An empty table that others have made, with the user's columns alone, becomes a stream's.

Each way that the refusal names is followed to its end.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType

from oncelake.ingestion.errors import SchemaChangedError
from oncelake.ingestion.recovery.schema_diff import plan_schema_change
from tests.cli.shell import oncelake
from tests.support.proof import find_problems
from tests.support.world import World, row

SINKS = ["delta", "iceberg", "postgres"]


def make_table(world: World) -> None:
    """Make the table by the sink's own tools."""
    sink = world.spec.sink.name
    if sink == "postgres":
        execute(world, f'CREATE TABLE "{world.name}" (id int PRIMARY KEY, name text, at int)')
    elif sink == "iceberg":
        table: Any = world.paths.table
        fields = [("id", IntegerType()), ("name", StringType()), ("at", IntegerType())]
        schema = Schema(*(NestedField(n, *each) for n, each in enumerate(fields, 1)))
        with table._entry.session() as catalog:
            catalog.create_namespace_if_not_exists(table._entry.identifier[:-1])
            catalog.create_table(
                table._entry.identifier, schema, location=table._entry.new_location()
            )
    else:
        columns = {"id": pa.int32(), "name": pa.string(), "at": pa.int32()}
        write_deltalake(world.paths.data.path, pa.schema(columns).empty_table())


def execute(world: World, statement: str) -> None:
    """Execute a statement of somebody else in PostgreSQL."""
    address = world.settings.postgres
    assert address is not None
    with psycopg.connect(address.get_secret_value()) as connection:
        connection.execute(statement.encode())


def refused(world: World) -> SchemaChangedError:
    """Return why the first run does not take the table."""
    make_table(world)
    world.send(row(1, "a"))
    with pytest.raises(SchemaChangedError) as error:
        world.run()
    return error.value


@pytest.mark.parametrize("sink", SINKS)
def test_an_empty_table_without_our_columns_gets_them_as_the_refusal_says(world: World) -> None:
    """By `evolve`, which may be taken away again afterwards."""
    error = refused(world)
    world.declare(schema_change="evolve")
    first = world.run()
    world.declare(schema_change="freeze")
    world.send(row(1, "b"), row(2, "c"))

    second = world.run()

    assert "_topic STRING is new" in error.problem
    assert "`schema_change: evolve` in" in error.remedy
    assert "execute them yourself" in error.remedy
    assert (first.is_balanced, second.is_balanced) == (True, True)
    assert world.rows() == [row(1, "b"), row(2, "c")]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", SINKS)
def test_nobody_is_sent_to_alter_a_table_that_no_run_has_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what it needs, and leads back to the plan, which does not lead to it."""
    error = refused(world)
    world.write_declaration()
    world.set_environment(monkeypatch)

    plan = oncelake("plan", world.name)
    asked, agreed = oncelake("alter", world.name), oncelake("alter", world.name, "--yes")

    assert plan.exit_code == 3
    assert "oncelake alter" not in plan.output + str(error)
    assert "`schema_change: evolve` lets the next run do so" in plan.output
    for answer in (asked, agreed):
        assert answer.exit_code == 2
        assert "no commit in its log is of this stream" in answer.output
        assert f"Next: oncelake plan {world.name}" in " ".join(answer.output.split())


@pytest.mark.parametrize("sink", ["postgres"])
def test_an_empty_table_takes_the_statements_of_the_plan_by_hand(world: World) -> None:
    """Then the run needs no `evolve`."""
    refused(world)
    for statement in plan_schema_change(world.spec, world.paths).statements:
        execute(world, statement)

    assert world.run().is_balanced
    assert world.rows() == [row(1, "a")]
    assert find_problems(world) == ()
