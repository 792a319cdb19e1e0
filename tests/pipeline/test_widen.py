"""A wider type makes the table wider, and changes no value of it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.declaration.ddl import parse_type
from oncelake.ingestion.errors import SchemaChangedError
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.pipeline.schema import evolve as evolve_schema
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World
from tests.trials.failpoints import PlannedCrash
from tests.trials.kills import run_to_its_end

NARROW = (
    "id INT NOT NULL, n SMALLINT, f FLOAT, d DECIMAL(5, 2), v VARCHAR(3), "
    "s STRUCT<a: INT, b: ARRAY<FLOAT>>, at INT"
)
WIDE = (
    "id BIGINT NOT NULL, n INT, f DOUBLE, d DECIMAL(12, 4), v STRING, "
    "s STRUCT<a: BIGINT, b: ARRAY<DOUBLE>, c: STRING>, at BIGINT"
)
LARGE = 2**40


def record(id_: int, at: int, **more: Any) -> dict[str, Any]:
    """Return a record that fits the narrow columns."""
    nested = {"a": id_, "b": [0.5, None]}
    return {"id": id_, "n": id_, "f": 0.5, "d": 1.25, "v": "abc", "s": nested, "at": at} | more


@pytest.mark.parametrize(
    ("engine", "vectors"),
    [
        pytest.param("local", False, id="files"),
        pytest.param("local", True, id="vectors"),
        *twins(
            pytest.param("spark", False, id="Spark"),
            pytest.param("spark", True, id="Spark and vectors"),
        ),
    ],
)
def test_a_wider_type_takes_what_the_narrow_one_did_not(
    world: World, engine: str, vectors: bool
) -> None:
    """Rows and remembered deletes stay what they are; what was put aside comes in by a redrive."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    declared = {
        "sequence_by": ["at"], "apply_as_deletes": "n = 0", "schema_change": "evolve",
        "deletion_vectors": vectors,
    }  # fmt: skip
    world.declare(schema=NARROW, **declared)
    world.send(record(1, 1), record(2, 1), record(3, 5), record(LARGE, 1, n=1, s=None))
    world.run()
    world.send(record(2, 2, n=0), record(1, 2, f=None))
    world.run()
    before = {each["id"]: each for each in world.rows()}
    world.declare(schema=WIDE, **declared)
    # Older than the delete, which is remembered by the narrow type.
    world.send(record(2, 1), record(4, LARGE, s={"a": LARGE, "b": [0.5], "c": "new"}))

    report = world.run()

    after = {each["id"]: each for each in world.rows()}
    assert [batch.kind for batch in world.ledger][-2:] == ["schema", "ingest"]
    assert "id: is INT, becomes BIGINT" in "; ".join(report.notices)
    assert set(after) == {1, 3, 4}
    assert after[4]["s"] == {"a": LARGE, "b": [0.5], "c": "new"}
    for id_ in (1, 3):
        expected = before[id_] | {"s": {**before[id_]["s"], "c": None}}
        assert {name: after[id_][name] for name in expected} == expected
    assert after[3]["d"] == Decimal("1.2500")
    assert world.redrive().redriven == 1
    assert LARGE in {each["id"] for each in world.rows()}
    assert find_problems(world) == ()
    assert prove(world).differences == ()


def test_the_table_goes_back_over_it(world: World) -> None:
    """Rows and columns are those of then; the next run widens them again."""
    world.declare(schema="id INT NOT NULL, at INT", schema_change="evolve")
    world.send({"id": 1, "at": 1})
    world.run()
    world.declare(schema="id INT NOT NULL, at BIGINT", schema_change="evolve")
    world.send({"id": 1, "at": LARGE})
    world.run()

    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")

    world.declare(schema="id INT NOT NULL, at INT", schema_change="evolve")
    assert world.rows()[0]["at"] == 1
    assert str(DeltaTable(world.paths.data.path).schema().fields[1].type.type) == "integer"
    world.declare(schema="id INT NOT NULL, at BIGINT", schema_change="evolve")
    world.run()
    assert world.rows()[0]["at"] == LARGE
    assert prove(world).differences == ()


def test_a_run_that_dies_between_the_tables_is_healed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered of deletes is wider first: the table tells what is left to do."""
    declared = {"apply_as_deletes": "at < 0", "schema_change": "evolve"}
    world.declare(schema="id INT NOT NULL, at INT", **declared)
    world.send({"id": 1, "at": 1}, {"id": 2, "at": -1})
    world.run()
    world.declare(schema="id BIGINT NOT NULL, at INT", **declared)
    world.send({"id": LARGE, "at": 1}, {"id": LARGE + 1, "at": -1})
    with monkeypatch.context() as broken:
        honest = evolve_schema.widen

        def widen(*given: Any) -> None:
            honest(*given)
            raise RuntimeError("crash")

        broken.setattr(evolve_schema, "widen", widen)
        with pytest.raises(RuntimeError, match="crash"):
            world.run()

    world.run()

    assert {each["id"] for each in world.rows()} == {1, LARGE}
    assert find_problems(world) == ()
    assert prove(world).differences == ()


@pytest.fixture
def half_widened(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    """A table of four files; whoever gave it a wider type was killed behind the second."""
    declared = {"schema_change": "evolve", "deletion_vectors": True}
    world.declare(schema="id INT NOT NULL, n INT", **declared)
    for id_ in range(4):
        world.send({"id": id_, "n": id_}, {"id": id_ + 10, "n": id_})
        world.run()
    world.send({"id": 3, "n": 30})
    world.run()
    world.declare(schema="id INT NOT NULL, n BIGINT", **declared)
    world.write_declaration()
    world.operation = getattr(request, "param", ("run",))
    visits = str(tmp_path / "visits")
    crash = PlannedCrash(place=Failpoint.FILE_REWRITTEN, nth=2, way="kill_group", visits=visits)
    before = written(world)
    assert run_to_its_end(world, crash) == ("killed", ())
    assert len(written(world) - before) == 2
    return world


def written(world: World) -> set[tuple[str, int]]:
    """Return the data files that lie there, and when each was written."""
    return {
        (file.name, file.stat().st_mtime_ns) for file in world.paths.data.path.glob("*.parquet")
    }


def in_table(world: World) -> set[str]:
    """Return the names of the files of the newest version."""
    return {Path(uri).name for uri in DeltaTable(world.paths.data.path).file_uris()}


@pytest.mark.kafka
@pytest.mark.parametrize("half_widened", [("run",), ("alter", "--yes")], indirect=True)
def test_a_widening_goes_on_where_it_was_killed(half_widened: World) -> None:
    """The files that were complete are taken over: only the others are written."""
    world, before, told = half_widened, written(half_widened), list[str]()
    left = in_table(world)

    if world.operation[0] == "run":
        world.run(tell=told.append)
    else:
        alter(world.spec, world.settings, drops=(), run_id="r", tell=told.append)

    now = in_table(world)
    new = {name for name, _ in written(world) - before}
    assert before <= written(world)
    assert len(left) == len(now) == 5
    assert not left & now
    assert len(now & new) == 3
    assert "4 of 5 files written anew…" in told
    assert {row["id"]: row["n"] for row in world.rows()} == (
        {id_ + more: id_ for id_ in range(4) for more in (0, 10)} | {3: 30}
    )
    assert find_problems(world) == ()
    assert prove(world).holds


@pytest.mark.kafka
def test_what_is_erased_in_between_does_not_come_back(half_widened: World) -> None:
    """A file that was widened before the erase is not taken for the one without the key."""
    world, there = half_widened, Path(half_widened.paths.data.path)
    left = {name for name, _ in written(world)} - in_table(world)
    names = [*left, *(f".{name}.crc" for name in left)]
    kept = {name: (there / name).read_bytes() for name in names}
    world.declare(schema="id INT NOT NULL, n INT")
    for id_ in range(4):
        erase(world.spec, world.settings, key=f'{{"id": {id_}}}', reason="a test", run_id="r")
    assert not any((there / name).exists() for name in kept)
    for name, content in kept.items():
        (there / name).write_bytes(content)
    world.declare(schema="id INT NOT NULL, n BIGINT")

    world.run()

    assert not left & in_table(world)
    assert {row["id"] for row in world.rows()} == {10, 11, 12, 13}
    assert find_problems(world) == ()
    assert prove(world).differences == ()


@pytest.mark.kafka
def test_a_file_that_is_not_whole_is_written_again(half_widened: World) -> None:
    """One is cut short, of the other the seal is missing."""
    world, there = half_widened, Path(half_widened.paths.data.path)
    cut, bare = sorted({name for name, _ in written(world)} - in_table(world))
    (there / cut).write_bytes((there / cut).read_bytes()[:100])
    (there / f".{bare}.crc").unlink()
    before = written(world)

    world.run()

    assert {cut, bare} <= {name for name, _ in written(world) - before}
    assert find_problems(world) == ()
    assert prove(world).holds


@pytest.mark.kafka
def test_a_widening_that_was_given_up_is_tidied_away(half_widened: World) -> None:
    """Maintenance takes its files for what they are: in no version."""
    world = half_widened
    world.declare(schema="id INT NOT NULL, n INT")

    maintain(world.spec, world.settings, run_id="r", window=dt.timedelta(0))

    assert {name for name, _ in written(world)} == in_table(world)
    assert find_problems(world) == ()


def test_without_leave_nothing_is_widened(world: World) -> None:
    """The refusal says what would be done, and what lets it be."""
    world.declare(schema="id INT NOT NULL")
    world.send({"id": 1})
    world.run()
    world.declare(schema="id BIGINT NOT NULL")
    version = DeltaTable(world.paths.data.path).version()

    with pytest.raises(SchemaChangedError, match=r"id is INT, becomes BIGINT.*schema_change: evol"):
        world.run()
    assert DeltaTable(world.paths.data.path).version() == version


@pytest.mark.parametrize(
    ("narrow", "wide", "declared"),
    [
        pytest.param("DECIMAL(6, 1)", "DECIMAL(8, 2)", {}, id="places of a key"),
        pytest.param(
            "INT",
            "BIGINT",
            {"mode": "aggregate", "aggregates": {"n": "count(*)"}},
            id="groups",
            marks=[pytest.mark.spark, pytest.mark.kafka],
        ),
    ],
)
def test_what_was_folded_or_remembered_by_a_type_keeps_it(
    world: World, narrow: str, wide: str, declared: dict[str, Any]
) -> None:
    """A key of other places behind the point is another text, and groups were made by theirs."""
    world.declare(schema=f"id {narrow} NOT NULL, n INT", schema_change="evolve", **declared)
    world.send({"id": 1, "n": 1})
    world.run()
    world.declare(schema=f"id {wide} NOT NULL, n INT", schema_change="evolve", **declared)
    world.send({"id": 2, "n": 1})

    with pytest.raises(SchemaChangedError, match="rebuild"):
        world.run()


@pytest.mark.parametrize(
    ("narrow", "wide", "is_wider"),
    [
        ("INT", "BIGINT", True),
        ("BIGINT", "INT", False),
        ("INT", "DOUBLE", False),
        ("FLOAT", "DOUBLE", True),
        ("DECIMAL(10, 2)", "DECIMAL(14, 2)", True),
        ("DECIMAL(10, 2)", "DECIMAL(12, 4)", True),
        ("DECIMAL(10, 2)", "DECIMAL(11, 4)", False),
        ("DECIMAL(10, 2)", "DECIMAL(14, 1)", False),
        ("VARCHAR(3)", "VARCHAR(5)", True),
        ("VARCHAR(5)", "VARCHAR(3)", False),
        ("VARCHAR(3)", "STRING", True),
        ("STRING", "VARCHAR(3)", False),
        ("DATE", "TIMESTAMP", False),
        ("STRUCT<a: INT>", "STRUCT<a: BIGINT, b: STRING>", True),
        ("STRUCT<a: INT>", "STRUCT<b: STRING, a: INT>", True),
        ("STRUCT<a: INT, b: INT>", "STRUCT<b: INT, a: INT>", False),
        ("STRUCT<a: INT, b: INT>", "STRUCT<a: INT>", False),
        ("ARRAY<INT>", "ARRAY<BIGINT>", True),
        ("MAP<STRING, INT>", "MAP<STRING, BIGINT>", True),
        ("MAP<STRING, BIGINT>", "MAP<STRING, INT>", False),
    ],
)
def test_only_a_type_that_holds_every_value_is_wider(
    narrow: str, wide: str, is_wider: bool
) -> None:
    """As what it is: a whole number is not one with a fraction."""
    assert parse_type(narrow).widens_to(parse_type(wide)) is is_wider
