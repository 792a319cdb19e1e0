"""A table gets the columns of its file without the topic: its rows stay, and are proven."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.errors import RefusedError, SchemaChangedError
from oncelake.ingestion.operations.alter import AlterReport, alter, dropped_columns
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.recovery.schema_diff import SchemaPlan, plan_schema_change
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import twins
from tests.support.places import spark_for
from tests.support.proof import find_problems, prove
from tests.support.world import World
from tests.trials.failpoints import PlannedCrash, PlannedError, crashing_at
from tests.trials.kills import run_to_its_end

BEFORE = "id INT NOT NULL, label STRING NOT NULL, n SMALLINT, gone STRING, at INT"
AFTER = "id INT NOT NULL, at INT COMMENT 'It is when', title STRING, n BIGINT, more STRING"
SINKS: dict[str, dict[str, Any]] = {
    "files": {},
    "vectors": {"deletion_vectors": True},
    "iceberg": {"sink": "iceberg"},
    "postgres": {"sink": "postgres"},
}
DELTA_ALONE = ["files"]


def record(id_: int, at: int, label: str | None, n: int = 1, **more: Any) -> dict[str, Any]:
    """Return a record of the first columns."""
    return {"id": id_, "label": label, "n": n, "gone": f"g{id_}", "at": at, **more}


@pytest.fixture(params=SINKS)
def world(request: pytest.FixtureRequest, world: World) -> World:
    """A stream of one sink, whose table has rows, a remembered delete and a record put aside."""
    if request.param == "postgres":
        address = SecretStr(request.getfixturevalue("postgres_address"))
        world.settings = world.settings.model_copy(update={"postgres": address})
    world.declare(schema=BEFORE, sequence_by=["at"], apply_as_deletes="label = 'x'")
    world.declare(**SINKS[request.param])
    world.send(*(record(n, 1, f"l{n}") for n in range(1, 7)), record(9, 1, "big", 2**40))
    world.run()
    world.send(record(2, 2, "l2b"), record(3, 2, "x"))
    world.run()
    return world


def declare_after(world: World) -> None:
    """Rename a column, drop one, widen one, add one, and put them into another order."""
    world.declare(
        schema=AFTER, renamed_from={"title": "label"}, apply_as_deletes="title = 'x'", types={}
    )


def altered(world: World) -> AlterReport:
    """Alter the table, and let go what that drops."""
    drops = dropped_columns(world.spec, world.settings)
    return alter(world.spec, world.settings, drops=drops, run_id="r")


def titles(world: World, name: str = "title") -> dict[int, str | None]:
    """Return a column of the table, by key."""
    return {row["id"]: row[name] for row in world.rows()}


LABELS = {1: "l1", 2: "l2b", 4: "l4", 5: "l5", 6: "l6"}


def test_a_table_is_altered_and_lives_on(world: World) -> None:
    """Values stay under the new name; run, redrive, replay and proof go on from there."""
    declare_after(world)
    with pytest.raises(SchemaChangedError, match=f"oncelake alter {world.topic}"):
        world.run()

    report = altered(world)

    assert report.row is not None
    assert report.row.kind == "schema"
    assert titles(world) == LABELS
    assert set(titles(world, "more").values()) == {None}
    columns = {each.name: each for each in world.paths.table.columns()}
    assert "gone" not in columns
    assert columns["at"].comment == "It is when"
    assert str(columns["n"].type) == "BIGINT"
    assert columns["title"].nullable
    if world.spec.sink.name != "postgres":
        assert [*columns][:5] == ["id", "at", "title", "n", "more"]
    assert prove(world).differences == ()
    new = {"id": 7, "title": "t7", "n": 2**40, "at": 3, "gone": "no column"}
    world.send(new, {"id": 1, "title": "t1", "n": 1, "at": 3}, {"id": 3, "title": "late", "at": 1})
    world.run()
    assert world.redrive().redriven == 1
    assert world.replay().total("inserted") == 0
    assert titles(world) == LABELS | {1: "t1", 7: "t7", 9: None}
    assert altered(world) == AlterReport(changes=())
    assert find_problems(world) == ()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("world", ["files", *twins("vectors", "iceberg")], indirect=True)
def test_spark_merges_into_an_altered_table(world: World) -> None:
    """What the other engine has written, and what this command wrote anew, is read by it."""
    world.settings = world.settings.model_copy(update={"merge_engine": "spark"})
    declare_after(world)
    altered(world)
    world.send({"id": 7, "title": "t7", "at": 3}, {"id": 1, "title": "t1", "at": 3})

    assert world.run().total("updated") == 1
    assert world.redrive().redriven == 1
    assert titles(world) == LABELS | {1: "t1", 7: "t7", 9: None}
    assert find_problems(world) == ()


@pytest.mark.parametrize("world", ["files", "vectors", "iceberg"], indirect=True)
def test_a_rewind_goes_back_over_it(world: World) -> None:
    """Columns and rows are those of then, by their file; and the table can be altered again."""
    declared = dict(world.declared)
    declare_after(world)
    altered(world)
    world.send({"id": 7, "title": "t7", "at": 3})
    world.run()

    rewind(world.spec, world.settings, to="seq:2", reason="a test", run_id="r")

    after, world.declared = world.declared, declared
    assert titles(world, "label") == LABELS
    assert titles(world, "gone")[6] == "g6"
    assert prove(world).differences == ()
    world.declared = after
    with pytest.raises(SchemaChangedError, match="oncelake alter"):
        world.run()
    altered(world)
    world.run()
    assert titles(world) == LABELS | {7: "t7"}
    assert find_problems(world) == ()


@pytest.mark.parametrize("world", DELTA_ALONE, indirect=True)
def test_a_name_that_came_free_is_another_column(world: World) -> None:
    """Rows from before have nothing in it, whatever the column of that name once had."""
    declare_after(world)
    altered(world)
    world.declare(schema=f"{AFTER}, label STRING, gone STRING", renamed_from={})
    altered(world)
    world.send({"id": 7, "title": "t7", "at": 3, "label": "new", "gone": "new"})
    world.run()

    assert titles(world) == LABELS | {7: "t7"}
    for name in ("label", "gone"):
        assert titles(world, name) == dict.fromkeys(LABELS) | {7: "new"}
    assert find_problems(world) == ()


@pytest.mark.spark
@pytest.mark.parametrize("world", DELTA_ALONE, indirect=True)
def test_conditions_read_a_column_by_its_name_of_then(world: World) -> None:
    """The proof applies them, and expressions, to records that had the old name."""
    fields = {"where": "label <> 'l'", "select": {"label": "trim(label)"}}
    world.declare(**fields, types={"label": "lenient"})
    world.send(record(7, 3, " a "), record(8, 3, "l"), {**record(10, 3, ""), "label": 5})
    world.run()
    declare_after(world)
    fields = {"where": "title <> 'l'", "select": {"title": "trim(title)"}}
    world.declare(**fields, types={"title": "lenient"})

    altered(world)

    assert titles(world) == LABELS | {7: "a", 10: "5"}
    assert prove(world).holds


@pytest.mark.spark
@pytest.mark.parametrize("world", DELTA_ALONE, indirect=True)
def test_a_field_keeps_its_name_where_the_table_does_not(world: World) -> None:
    """The producer still writes the old name: the value is declared apart, and renamed."""
    declare_after(world)
    world.declare(value_schema=f"{BEFORE}, more STRING", select={"title": "label"})
    world.declare(schema=AFTER.replace("BIGINT", "SMALLINT"))
    altered(world)
    world.send(record(7, 3, "l7"))
    world.run()

    assert titles(world) == LABELS | {7: "l7"}
    assert prove(world).holds


@pytest.mark.parametrize(
    ("world", "place"),
    [
        *(
            (sink, place)
            for sink in SINKS
            for place in (Failpoint.LEDGER_HEALED, Failpoint.ALTERED)
        ),
        *((sink, Failpoint.COMPACTED) for sink in ("files", "vectors")),
    ],
    indirect=["world"],
)
def test_an_alter_that_dies_is_finished_by_the_same_command(world: World, place: Failpoint) -> None:
    """The table is as before, or altered; in the end it is altered, once."""
    declare_after(world)
    with crashing_at(place, 1), pytest.raises(PlannedError):
        altered(world)
    if place is not Failpoint.LEDGER_HEALED:
        with pytest.raises(RefusedError, match=f"oncelake run {world.topic}, which finishes it"):
            prove(world)

    altered(world)

    assert titles(world) == LABELS
    assert [each.kind for each in world.ledger] == ["ingest", "ingest", "schema"]
    assert find_problems(world) == ()


@pytest.mark.parametrize("world", [*DELTA_ALONE, "postgres"], indirect=True)
@pytest.mark.parametrize("place", [Failpoint.LEDGER_HEALED, Failpoint.ALTERED])
def test_an_alter_that_is_killed_is_typed_again(
    world: World, place: Failpoint, tmp_path: Path
) -> None:
    """Killed for real before its commit, and between that and the ledger's row."""
    declare_after(world)
    world.write_declaration()
    world.operation = ("alter", "--yes")
    crash = PlannedCrash(place=place, nth=1, way="kill_group", visits=str(tmp_path / "visits"))

    how, problems = run_to_its_end(world, crash)
    ended = run_to_its_end(world, replace(crash, place="never", way="exception"))

    assert (how, problems, ended) == ("killed", (), ("exit 0", ()))
    assert titles(world) == LABELS
    assert [each.kind for each in world.ledger] == ["ingest", "ingest", "schema"]
    assert find_problems(world) == ()


def planned(world: World, **fields: Any) -> SchemaPlan:
    """Plan a changed declaration."""
    world.declare(**fields)
    return plan_schema_change(world.spec, world.paths)


def test_what_a_table_cannot_take_is_refused_with_the_remedy(world: World) -> None:
    """Of each kind of column that more rests on; nothing is changed."""
    version = world.paths.table.log().versions()[0]
    key = "key INT NOT NULL, label STRING, n SMALLINT, gone STRING, at INT"
    for fields, says in (
        ({"schema": key, "keys": ["key"], "renamed_from": {"key": "id"}}, "identifies or orders"),
        ({"renamed_from": {"title": "lable"}, "schema": f"{BEFORE}, title STRING"}, "lable is no"),
        ({"schema": BEFORE.replace("SMALLINT", "STRING")}, "in the table, declared STRING"),
    ):
        before = dict(world.declared)
        plan = planned(world, **fields)
        assert plan.effect == "refused"
        assert says in "; ".join(f"{each.field}: {each.what}" for each in plan.changes)
        with pytest.raises(SchemaChangedError, match=r"rebuild|declare"):
            dropped_columns(world.spec, world.settings)
        world.declared = before
    assert world.paths.table.log().versions()[0] == version


@pytest.mark.parametrize("world", DELTA_ALONE, indirect=True)
def test_a_column_goes_only_if_somebody_agreed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan names it, a script must say so, and what was not asked about stays."""
    world.declare(schema="id INT NOT NULL, label STRING NOT NULL, n SMALLINT, at INT")
    with pytest.raises(RefusedError, match="gone would be dropped"):
        alter(world.spec, world.settings, drops=(), run_id="r")
    world.write_declaration()
    world.set_environment(monkeypatch)

    shown = CliRunner().invoke(app, ["plan", world.topic])
    unasked = CliRunner().invoke(app, ["alter", world.topic])
    done = CliRunner().invoke(app, ["alter", world.topic, "--yes", "--json"])

    assert "* gone: STRING is in the table, and not declared" in shown.stdout
    assert "`oncelake alter` makes the table fit" in shown.stdout
    assert (shown.exit_code, unasked.exit_code, done.exit_code) == (3, 2, 0)
    document = json.loads(done.stdout)
    assert document["kind"] == "schema"
    assert [each["field"] for each in document["changes"]] == ["gone"]
    assert find_problems(world) == ()


def test_order_and_comments_stop_no_run(world: World) -> None:
    """The plan says who sets them; a run reads on without."""
    schema = "at INT, id INT NOT NULL, label STRING NOT NULL COMMENT 'so', n SMALLINT, gone STRING"
    plan = planned(world, schema=schema)

    assert plan.effect == "alter"
    assert world.run().batches == ()
    altered(world)
    assert planned(world).changes == ()
    assert titles(world, "label") == LABELS
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "scd2", "sequence_by": ["at"]},
        {"deletes": "soft", "sequence_by": ["at"]},
        {"ignore_null_updates": True},
        {"mode": "append", "keys": []},
    ],
    ids=str,
)
def test_rows_of_every_mode_keep_their_values(
    settings: Settings, request: pytest.FixtureRequest, mode: dict[str, Any]
) -> None:
    """What a later record is put beside, or marks, or completes, is there by its new name."""
    with World.made(settings, spark_for(request)) as world:
        world.declare(schema="id INT NOT NULL, label STRING, gone INT, at INT", **mode)
        world.send(*({"id": n, "label": f"l{n}", "gone": n, "at": 1} for n in (1, 2, 3)))
        world.run()
        schema = "id INT NOT NULL, at INT, title STRING"
        world.declare(schema=schema, renamed_from={"title": "label"})

        altered(world)

        world.send({"id": 1, "title": "t1", "at": 2}, {"id": 2, "title": None, "at": 2})
        world.send(None, id=3)
        world.run()
        assert ("l2" in {row["title"] for row in world.rows()}) == ("deletes" not in mode)
        assert find_problems(world) == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "aggregate", "keys": ["label"], "aggregates": {"n": "count(*)"}},
        {"sink": "kafka"},
    ],
    ids=["groups", "a topic"],
)
@pytest.mark.kafka
def test_what_cannot_be_altered_says_so(
    settings: Settings, request: pytest.FixtureRequest, fields: dict[str, Any]
) -> None:
    """Groups are of the columns that they were folded by, and a topic keeps what it has."""
    with World.made(settings, spark_for(request)) as world:
        world.declare(schema="id INT NOT NULL, label STRING NOT NULL, x INT", **fields)
        world.send({"id": 1, "label": "a", "x": 1})
        world.run()
        if "aggregates" in fields:
            world.declare(keys=["title"])
        world.declare(schema="id INT NOT NULL, title STRING", renamed_from={"title": "label"})

        assert plan_schema_change(world.spec, world.paths).effect == "refused"
        with pytest.raises(RefusedError):
            altered(world)
