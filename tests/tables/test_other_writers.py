"""What others do to a Delta table between two runs of its stream, and during one of its commits.

Each test is a row of docs/other-writers.md, by the name that stands there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote

import pytest

from oncelake.ingestion.errors import (
    DamagedTableError,
    RefusedError,
    SchemaChangedError,
    TableBusyError,
)
from oncelake.ingestion.operations.decisions import accept, reset
from oncelake.ingestion.operations.history.rewind import read_history, rewind
from oncelake.ingestion.recovery.standing import ALTERED
from oncelake.ingestion.sinks.delta import transaction
from tests.support.arrow_source import ArrowSession
from tests.support.long import only_long, twins
from tests.support.other_writers import (
    ACTS,
    Act,
    add_column,
    append_nothing,
    clean_up_log,
    table_of,
    write,
)
from tests.support.places import kafka_for, spark_for
from tests.support.proof import find_problems
from tests.support.world import COLUMNS, ROOT, World, row, settings_in

PAGE = ROOT / "docs" / "other-writers.md"
# One of each kind; the others are left to make test-long.
USUAL = (
    *("compact", "vacuum without retention", "clean up the log", "merge", "restore"),
    *("overwrite with other columns", "add a column", "property of a team", "deletion vectors"),
    *("row tracking", "delta.appendOnly", "delete older commits", "put back an older copy"),
)
BY_DELTA_RS = [
    pytest.param(name, id=name, marks=() if name in USUAL else only_long)
    for name, act in ACTS.items()
    if act.by_delta_rs
]
# What only Spark's engine writes then, or evaluates, is tried with its query.
NEEDS_ENGINE = (
    "check constraint",
    "drop a feature",
    "column mapping",
    "checkpoints of version 2",
)
BY_SPARK = [
    pytest.param(name, id=name, marks=[pytest.mark.kafka] * (name in NEEDS_ENGINE))
    for name, act in ACTS.items()
    if act.by_spark
]
# What the topic says in the end.
IDS = [1, 2, 3, 4, 7, 8, 9]


def send(world: World) -> World:
    """Send four batches, and read three of them."""
    world.send(*(row(number, "a", number) for number in range(1, 7)))
    world.run()
    world.send(row(1, "b", 1), row(2, "b", 2))
    world.send(None, id=6)
    world.send(row(7, "a", 7), partition=1)
    world.run()
    world.send(row(9, "a", 9))
    world.run()
    world.send(row(2, "c", 2), row(8, "a", 8))
    world.send(None, id=5)
    return world


KINDS = {False: "files", True: "vectors"}.get


@pytest.fixture(scope="module", params=[False, *twins(True)], ids=KINDS)
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A stream that is ingested once, and altered in copies."""
    settings = settings_in(tmp_path_factory.mktemp("begun"), kafka_for(request))
    with World.made(settings, spark_for(request)) as world:
        world.declare(deletion_vectors=request.param)
        yield send(world)


@pytest.fixture
def copied(begun: World, tmp_path: Path) -> World:
    """The stream, with a lake of the test's own."""
    return begun.copied_to(tmp_path / "lake", state=tmp_path / "state")


@pytest.mark.parametrize("name", BY_DELTA_RS)
def test_between_two_runs_by_delta_rs(copied: World, name: str) -> None:
    """The next run goes on, or is refused until a person has done what the refusal says."""
    act = ACTS[name]
    assert act.by_delta_rs is not None
    act.by_delta_rs(copied)

    assert_outcome(copied, act)


@only_long
@pytest.mark.spark
@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize("marks", [False, True], ids=KINDS)
@pytest.mark.parametrize("name", BY_SPARK)
def test_between_two_runs_by_spark(world: World, name: str, *, marks: bool) -> None:
    """The same by statements of Spark, and Spark executes what a refusal says."""
    world.declare(deletion_vectors=marks)
    send(world)
    execute(world, name)

    assert_outcome(world, ACTS[name])


def execute(world: World, name: str) -> None:
    """Execute an act's statements."""
    path = str(world.paths.data)
    for statement in ACTS[name].by_spark:
        world.spark.sql(statement.format(t=f"delta.`{path}`", c=f"delta.`{path}_clone`"))


def assert_outcome(world: World, act: Act) -> None:
    """Run the stream, do what a refusal says, and compare the table with the topic."""
    if act.error is not None:
        with pytest.raises(act.error, match=act.says) as refused:
            world.run()
        follow(world, refused.value)
    assert world.run().is_balanced is True
    told = "\n".join(what_is_told(world))
    assert act.error or (bool(told), bool(re.search(act.says, told))) == (bool(act.says), True), (
        told
    )
    assert [each["id"] for each in world.rows()] == [
        id for id in IDS if id != 8 or "id <> 8" not in act.says
    ]
    assert find_problems(world) == ()


def what_is_told(world: World) -> Iterator[str]:
    """Yield what people are told, though the run goes on."""
    if world.paths.quarantine.exists():
        yield from (each["detail"] for each in world.quarantined())
    yield from (each.obstacle for each in read_history(world.paths) if each.obstacle)


def follow(world: World, refused: RefusedError) -> None:
    """Do what a refusal says, and what the next one says."""
    assert refused.exit_code == 3
    statement, _, given_up = refused.remedy.partition(", or oncelake reset")
    if isinstance(refused, ALTERED):
        assert f"oncelake rewind {world.name} --to seq:3" in refused.remedy
        # Both ways, one after the other; with other columns only the first is open.
        with suppress(SchemaChangedError):
            accept(world.spec, world.settings, reason="it was meant", run_id="me")
            world.run()
        rewind(world.spec, world.settings, to="seq:3", reason="not meant", run_id="me")
    elif isinstance(refused, SchemaChangedError) and "more: declare it" in refused.remedy:
        world.declare(schema=f"{COLUMNS}, more STRING")
    elif isinstance(refused, SchemaChangedError):
        # Of a column that was dropped, ``alter`` would make an empty one.
        world.rebuild()
    elif given_up and statement.startswith("ALTER") and not isinstance(world.spark, ArrowSession):
        world.spark.sql(statement)
    else:
        assert f"oncelake reset {world.name} --yes" in refused.remedy
        reset(world.name, world.settings, run_id="me", sink=world.spec.sink)
    try:
        world.run()
    except RefusedError as another:
        follow(world, another)


def compact_again(world: World) -> None:
    """Compact, where there is always something to compact."""
    append_nothing(world)
    table_of(world).optimize.compact()


# What others do in the middle of a commit: how often it is tried beside delta-rs, and what ends it.
MEANWHILE: dict[str, tuple[Callable[[World], object], int, type[Exception] | None]] = {
    "compact": (ACTS["compact"].by_delta_rs, 2, None),
    "compact without a pause": (compact_again, 3, TableBusyError),
    "vacuum": (ACTS["vacuum"].by_delta_rs, 1, None),
    "commit no row": (append_nothing, 2, None),
    "checkpoint": (lambda world: table_of(world).create_checkpoint(), 1, None),
    "append": (write, 1, TableBusyError),
    "delete": (ACTS["delete"].by_delta_rs, 1, TableBusyError),
    "property of a team": (ACTS["property of a team"].by_delta_rs, 1, TableBusyError),
    "add a column": (add_column, 1, TableBusyError),
}


@contextmanager
def meanwhile(act: Callable[[], object], *, is_endless: bool = False) -> Iterator[list[int]]:
    """Let somebody act behind the new files of a commit, and before it; return its tries."""
    put, tries = transaction.put_commit, list[int]()

    def put_behind(*given: Any, **more: Any) -> None:
        tries.append(1)
        if is_endless or len(tries) == 1:
            act()
        put(*given, **more)

    with patch.object(transaction, "put_commit", put_behind):
        yield tries


def assert_ends(world: World, act: Callable[[], object], name: str) -> int:
    """Run the stream while somebody acts, and then as between two runs; return its tries."""
    *_, error = MEANWHILE[name]
    with meanwhile(act, is_endless="pause" in name) as tries:
        if error is None:
            assert world.run().is_balanced
        else:
            with pytest.raises(error, match="somebody else changed the table meanwhile"):
                world.run()
            assert world.paths.table.log().last_seq(world.name) == 3

    assert_outcome(world, ACTS.get(name, Act()))
    return len(tries)


@pytest.mark.parametrize("name", MEANWHILE)
def test_in_the_middle_of_a_commit_by_delta_rs(copied: World, name: str) -> None:
    """The commit is made again on what is there, or ends, and nothing of it is in the table."""
    act, due, _ = MEANWHILE[name]
    assert assert_ends(copied, lambda: act(copied), name) == due


@only_long
@pytest.mark.spark
@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize("marks", [False, True], ids=KINDS)
@pytest.mark.parametrize(
    "name", [name for name in MEANWHILE if name in ACTS and ACTS[name].by_spark]
)
def test_in_the_middle_of_a_commit_by_spark(world: World, name: str, *, marks: bool) -> None:
    """The same by statements of Spark."""
    world.declare(deletion_vectors=marks)
    send(world)
    assert_ends(world, lambda: execute(world, name), name)


def test_a_vacuum_without_retention_in_the_middle_of_a_commit_is_noticed(copied: World) -> None:
    """Where it commits nothing in between, and takes the files that the commit is about to name."""

    def take_files() -> None:
        known = {unquote(uri.rpartition("/")[2]) for uri in table_of(copied).file_uris()}
        for file in copied.paths.data.path.glob("*.parquet"):
            if file.name not in known:
                file.unlink()

    with meanwhile(take_files), pytest.raises(DamagedTableError, match="is missing") as refused:
        copied.run()

    follow(copied, refused.value)
    assert find_problems(copied) == ()


@pytest.mark.parametrize("sink", ["delta"])
def test_a_full_vacuum_by_delta_rs_takes_deletion_vectors(world: World) -> None:
    """Once they are older than the retention, even those of the newest version: it is refused."""
    world.declare(deletion_vectors=True)
    send(world)
    for file in world.paths.data.path.glob("deletion_vector_*"):
        os.utime(file, (0, 0))
    table_of(world).vacuum(full=True, dry_run=False)

    with pytest.raises(DamagedTableError, match=r"deletion vector .* is missing") as refused:
        world.run()
    follow(world, refused.value)

    assert find_problems(world) == ()


def test_a_change_that_has_aged_out_of_the_log_is_found_by_the_proof(copied: World) -> None:
    """The run goes on, and says that the log does not reach back; `verify` names the row."""
    write(copied)
    append_nothing(copied)
    clean_up_log(copied)

    report = copied.run()

    assert any("have aged out of the table's log" in each for each in report.notices)
    assert any("id=99" in each for each in find_problems(copied))


def test_the_page_has_a_row_for_each_test() -> None:
    """With who can do it, and what becomes of the next run, or of the run that it meets."""
    tables = [rows_in(part) for part in PAGE.read_text().split("\n## ")]
    between, during = (found for found in tables if "compact" in found)

    assert between == {
        name: ["yes" if each else "no" for each in (act.by_delta_rs, act.by_spark)] + [act.outcome]
        for name, act in ACTS.items()
    }
    assert during == {
        name: [f"ends: `{error.__name__}`" if error else "goes on"]
        for name, (*_, error) in MEANWHILE.items()
    }


def rows_in(part: str) -> dict[str, list[str]]:
    """Return the rows of a part's table by their first cells, but for what is said last."""
    cells = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {each[0]: each[1:-1] for each in cells[1:]}
