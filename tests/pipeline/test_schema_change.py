"""A changed declaration is planned, then made to fit by a commit of its own, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.errors import SchemaChangedError
from oncelake.ingestion.recovery.schema_diff import plan_schema_change
from tests.support.proof import find_problems, prove
from tests.support.world import COLUMNS, World, row

MORE = f"{COLUMNS}, city STRING COMMENT 'It''s where', lines ARRAY<STRUCT<n: INT NOT NULL>>"


@pytest.fixture(scope="module")
def planned(module_world: World) -> World:
    """A table that plans are made for, and none is carried out."""
    module_world.send(row(1, "a", 1))
    module_world.run()
    return module_world


@pytest.fixture
def written(world: World) -> World:
    """A table of three columns, with a row that says more than they hold."""
    world.send({**row(1, "a", 1), "city": "Rome"})
    world.run()
    return world


@pytest.mark.kafka
def test_a_column_more_is_a_commit_of_its_own_before_anything_is_read(written: World) -> None:
    """The rows that are there have none, the new ones have it, and both are proven."""
    written.declare(schema=MORE, schema_change="evolve")
    written.send({**row(2, "b", 2), "city": "Oslo", "lines": [{"n": 1}]})

    report = written.run()

    assert [(batch.seq, batch.kind) for batch in written.ledger] == [
        (1, "ingest"),
        (2, "schema"),
        (3, "ingest"),
    ]
    assert "the table was changed before anything was read: city: STRING is new" in report.notices
    assert [(each["id"], each["city"], each["lines"]) for each in written.rows()] == [
        (1, None, None),
        (2, "Oslo", [{"n": 1}]),
    ]
    assert find_problems(written) == ()


def test_a_column_that_was_required_may_be_null_from_now_on(world: World) -> None:
    """Its NOT NULL goes before the first record without it is read."""
    world.declare(schema="id INT NOT NULL, name STRING NOT NULL, at INT")
    world.send(row(1, "a", 1))
    world.run()
    world.declare(schema=COLUMNS, schema_change="evolve")
    world.send({"id": 2, "at": 2})

    report = world.run()

    assert "name: may be null from now on" in "; ".join(report.notices)
    assert [(each["id"], each["name"]) for each in world.rows()] == [(1, "a"), (2, None)]
    assert find_problems(world) == ()


def test_a_run_changes_no_column_that_needs_nothing(world: World) -> None:
    """What an owner of the table has said of a column stays until `oncelake alter`."""
    world.send(row(1, "a", 1))
    world.run()
    said = "id INT NOT NULL, name STRING COMMENT 'ours', at INT, city STRING"
    world.declare(schema=said, schema_change="evolve")
    world.send(row(2, "b", 2))

    world.run()

    found = {each.name: each.comment for each in world.paths.table.columns()}
    assert (found["name"], "city" in found) == ("", True)


def test_without_leave_a_changed_table_is_refused_with_the_way_out(written: World) -> None:
    """By default nothing changes a table; the refusal says what a person can do."""
    written.declare(schema=MORE)
    version = DeltaTable(written.paths.data.path).version()

    with pytest.raises(SchemaChangedError, match="schema_change: evolve"):
        written.run()
    assert DeltaTable(written.paths.data.path).version() == version


def test_a_crash_before_the_commit_of_columns_is_healed(
    written: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run gives the table its columns, and writes down from where on they hold."""
    written.declare(schema=MORE, schema_change="evolve")
    with monkeypatch.context() as broken:
        broken.setattr("oncelake.ingestion.sinks.delta.transaction.put_commit", _crash)
        with pytest.raises(RuntimeError, match="crash"):
            written.run()

    written.run()

    assert [batch.kind for batch in written.ledger] == ["ingest", "schema"]
    assert find_problems(written) == ()


def _crash(*_: Any, **__: Any) -> None:
    raise RuntimeError("crash")


@pytest.mark.parametrize(
    ("fields", "effect", "says"),
    [
        ({"schema": COLUMNS}, "nothing", ""),
        ({"schema": f"{COLUMNS}, city STRING"}, "evolve", "city: STRING is new"),
        # A record without its key is no row, whatever the column may be.
        ({"schema": "id INT, name STRING, at INT"}, "nothing", ""),
        ({"schema": "id INT NOT NULL, name STRING NOT NULL, at INT"}, "nothing", "name: is req"),
        ({"extra_fields": "keep"}, "evolve", "_extra_fields: VARIANT is new"),
        ({"schema": f"{COLUMNS}, city STRING NOT NULL"}, "refused", "and NOT NULL, which"),
        ({"schema": "id BIGINT NOT NULL, name STRING, at INT"}, "evolve", "id: is INT, becomes"),
        ({"schema": "id SMALLINT NOT NULL, name STRING, at INT"}, "refused", "id: is INT in the"),
        ({"schema": "id INT NOT NULL, name STRING"}, "alter", "at: INT is in the table, and not"),
        ({"keys": ["id", "name"]}, "epoch", "keys: was id, becomes id, name"),
        ({"sequence_by": ["at"]}, "epoch", "sequence_by: was not there, becomes at"),
        ({"mode": "insert_only"}, "epoch", "mode: was upsert, becomes insert_only"),
        (
            {"types": {"at": "lenient"}},
            "onward",
            'types: was the default, becomes {"at": "lenient"',
        ),
        ({"where": "id > 1"}, "onward", 'where: was the default, becomes "id > 1"'),
    ],
    ids=[
        *("the same", "added", "key relaxed", "required", "kept", "added and required"),
        *(
            "wider type",
            "narrower type",
            "removed",
            "keys",
            "order",
            "mode",
            "leniency",
            "condition",
        ),
    ],
)
def test_the_plan_says_what_a_declaration_would_do(
    planned: World, fields: dict[str, Any], effect: str, says: str
) -> None:
    """Like a diff, before it happens, and without Spark."""
    spec = planned.spec.model_validate(
        {**planned.spec.model_dump(by_alias=True, exclude_unset=True), **fields}
    )

    plan = plan_schema_change(spec, planned.paths)

    assert plan.effect == effect
    assert says in "; ".join(f"{each.field}: {each.what}" for each in plan.changes)


def test_rows_of_another_declaration_are_told_by_it(world: World) -> None:
    """The proof compares by today's, and names the field that was otherwise, and the batches."""
    world.declare(types={"at": "lenient"})
    world.send({"id": 1, "name": "a", "at": "5"})
    world.run()
    assert prove(world).limits == ()
    del world.declared["types"]
    world.send(row(2, "b", 2))
    world.run()

    verdict = prove(world)

    assert verdict.difference_count.keys() == {"quarantine", "rows", "dispositions"}
    (hint,) = (limit for limit in verdict.limits if "another declaration" in limit)
    assert hint.startswith("another declaration was in force for seq 1, ")
    assert '`types` was {"at": "lenient"}, becomes the default' in hint
    assert f"oncelake rebuild {world.topic}" in hint
