"""A sink of another package: found by entry point, declared, run, killed, rebuilt, and proven."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from oncelake import sinks
from oncelake.sinks import (
    Change,
    CommitMetadata,
    Location,
    Settings,
    SinkKind,
    identifier,
)
from oncelake.testing import Opener, SinkConformance
from oncelake.testing.steps import FailingStep, StepFailedError, fail_at_steps
from tests.sinks import planted
from tests.sinks.planted import PACKAGE, Planted, plant
from tests.support.world import ROOT, World, environment_of, row
from tests.trials.failpoints import PlannedCrash


def opened_in(folder: Path) -> Opener:
    """Return what opens a table of a file in a folder."""
    from oncelake_sqlite import SqliteSink
    from oncelake_sqlite.table import open_table

    settings, lake = Settings(lake=folder), Location.of(folder)
    return partial(open_table, "orders", SqliteSink(table="orders"), settings, lake)


class TestSqlite(SinkConformance):
    """It passes the battery like our own."""

    named = " ,;:{}()[]='\"%@-"

    @property
    def kind(self) -> SinkKind:  # type: ignore[override]
        """The record that the package registers."""
        from oncelake_sqlite import KIND

        kind: SinkKind = KIND
        return kind

    @pytest.fixture
    def opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opener:
        """Open a table of a file of its own."""
        monkeypatch.syspath_prepend(PACKAGE)
        return opened_in(tmp_path)


def of_rows(method: str, broken: Callable[..., Any]) -> Callable[[], Any]:
    """Break a method of the transaction."""

    def patched() -> Any:
        from oncelake_sqlite import table

        return patch.object(table.SqliteTransaction, method, broken)

    return patched


def of_table(method: str, broken: Any, owner: str = "SqliteTable") -> Callable[[], Any]:
    """Break a method of the table, or of its log."""

    def patched() -> Any:
        from oncelake_sqlite import table

        return patch.object(getattr(table, owner), method, broken)

    return patched


def first_column(transaction: Any, keys: pa.Table) -> str:
    """Heed the first column of a key alone."""
    from oncelake_sqlite import table

    honest: Any = BUGS_OF["_wanted"]
    honest(transaction, keys)
    return table.equal(keys.column_names[:1], "t", "k")


def one_row(transaction: Any, keys: pa.Table, columns: Any = None) -> pa.Table:
    """Find one row of all."""
    return BUGS_OF["rows_of"](transaction, keys, columns).slice(0, 1)


def any_version(sink: Any, names: Any, version: Any = None, *, since_seq: Any = None) -> Any:
    """Read what is there now, whatever was asked for."""
    del version
    return BUGS_OF["scan"](sink, names, None, since_seq=since_seq)


def erase_nothing(transaction: Any, keys: pa.Table, metadata: Any) -> None:
    """Note it, and delete nothing."""
    del keys
    transaction.commit(None, metadata)


def counts_nothing(log: Any, version: int) -> Any:
    """Say that a commit had no row."""
    found = BUGS_OF["read"](log, version)
    return replace(found, metrics=dict.fromkeys(found.metrics, 0))


def without_time(log: Any, version: int) -> Any:
    """Say that a commit was made in 1970."""
    return replace(BUGS_OF["read"](log, version), timestamp_ms=0)


def committing(change_of: Callable[[Change], Change | None]) -> Callable[[], Any]:
    """Commit another change than was asked for."""

    def commit(transaction: Any, change: Change | None, metadata: CommitMetadata) -> None:
        given = change_of(change) if change else None
        BUGS_OF["commit"](transaction, given, metadata)

    return of_rows("commit", commit)


def twice(rows: pa.Table) -> pa.Table:
    """Return rows that were sent a second time."""
    return pa.concat_tables([rows, rows])


def takes_any_seq(transaction: Any, sink: Any, seq: int) -> None:
    """Begin whatever comes."""
    last = sink.log().last_seq(sink.stream)
    BUGS_OF["__init__"](transaction, sink, 0 if last is None else last + 1)
    transaction.seq = seq


def takes_any_table(transaction: Any, sink: Any, seq: int) -> None:
    """Forget which table was read."""
    sink.known_id = None
    BUGS_OF["__init__"](transaction, sink, seq)


def lets_others_in(transaction: Any, sink: Any, seq: int) -> None:
    """Look, and lock nothing."""
    BUGS_OF["__init__"](transaction, sink, seq)
    transaction.connection.execute("COMMIT")
    transaction.connection.execute("BEGIN")


def cuts_notes(transaction: Any, change: Change | None, metadata: CommitMetadata) -> None:
    """Keep the beginning of a note."""
    BUGS_OF["commit"](transaction, change, metadata)
    transaction.connection.execute(
        f"UPDATE {transaction.table.kept} SET note = substr(note, 1, 65536)"
    )


def rounds_times(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Read moments by the millisecond."""
    found = BUGS_OF["_from_sqlite"](values, type_)
    if not pa.types.is_timestamp(type_):
        return found
    return found.cast(pa.timestamp("ms", type_.tz), safe=False).cast(type_)


def makes_anew(sink: Any, wanted: Any) -> None:
    """Make the table again each time."""
    with closing(sink.connect()) as connection:
        for name in (sink.rows, sink.kept, sink.about):
            connection.execute(f"DROP TABLE IF EXISTS {name}")
    BUGS_OF["create"](sink, wanted)


def of_module(name: str, broken: Any) -> Callable[[], Any]:
    """Break a function beside the table."""

    def patched() -> Any:
        from oncelake_sqlite import table

        return patch.object(table, name, broken)

    return patched


BUGS_OF: dict[str, Any] = {}
BUGS: dict[str, Callable[[], Any]] = {
    "note without rows": committing(lambda change: None),
    "a retry that doubles": committing(lambda c: replace(c, inserted=twice(c.inserted))),
    "deletes are forgotten": committing(lambda c: replace(c, deleted=c.deleted.slice(0, 0))),
    "updates are added": committing(
        lambda c: replace(
            c,
            inserted=pa.concat_tables([c.inserted, c.updated]),
            updated=c.updated.slice(0, 0),
        )
    ),
    "a failed row is swallowed": committing(
        lambda c: replace(c, inserted=c.inserted.slice(0, max(0, len(c.inserted) - 1)))
    ),
    "stale rebase": of_rows("__init__", lets_others_in),
    "any seq is taken": of_rows("__init__", takes_any_seq),
    "any table is taken": of_rows("__init__", takes_any_table),
    "long notes are cut": of_rows("commit", cuts_notes),
    "moments are rounded": of_module("_from_sqlite", rounds_times),
    "made anew each time": of_table("create", makes_anew),
    "the first column of a key alone is heeded": of_rows("_wanted", first_column),
    "a look-up returns one row": of_rows("rows_of", one_row),
    "a scan ignores its version": of_table("scan", any_version),
    "an erase does nothing": of_rows("erase", erase_nothing),
    "a table keeps its name": of_table("set_aside", lambda *_, **__: "elsewhere"),
    "it has no columns": of_table("columns", lambda _: ()),
    "commits count nothing": of_table("read", counts_nothing, "SqliteLog"),
    "commits have no time": of_table("read", without_time, "SqliteLog"),
    "rows are of no epoch": of_table("highest_epoch", lambda _: 0, "SqliteLog"),
    "rows are counted wrong": of_table("row_count", lambda _: 7, "SqliteLog"),
}


# What a test of the battery has begun in another thread may fail there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("bug", BUGS)
def test_the_battery_notices_a_bug(
    bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each breaks a promise that some test of the battery tries."""
    monkeypatch.syspath_prepend(PACKAGE)
    from oncelake_sqlite import table

    honest = {
        table.SqliteTransaction: ("__init__", "_wanted", "rows_of", "commit"),
        table.SqliteTable: ("scan", "create"),
        table.SqliteLog: ("read",),
        table: ("_from_sqlite",),
    }
    for owner, names in honest.items():
        BUGS_OF.update({name: vars(owner)[name] for name in names})
    noticed = []
    with BUGS[bug]():
        promises = inspect.getmembers(TestSqlite, inspect.isfunction)
        # That one waits for seconds; of this bug all others wait longer.
        is_last = bug != "stale rebase"
        promises.sort(key=lambda promise: ("late_writer" in promise[0]) == is_last)
        for number, (name, promise) in enumerate(promises):
            if not name.startswith("test_") or "killed" in name or "step" in name:
                continue
            given: dict[str, Any] = {"opened": opened_in(tmp_path / str(number))}
            if "tmp_path" in inspect.signature(promise).parameters:
                given["tmp_path"] = tmp_path / str(number)
            try:
                promise(TestSqlite(), **given)
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 (it is noticed in any case)
                noticed.append(name)
                break

    assert noticed


def test_the_toy_imports_one_public_module() -> None:
    """A name of it is where type checkers look for it, and the toy takes nothing else."""
    text = Path(sinks.__file__).read_text("utf-8")
    imported = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ImportFrom)]
    known = {name.name for each in imported for name in each.names}
    assert known - {"annotations", "import_module", "TYPE_CHECKING", "Any", "Final"} == {
        *sinks.__all__
    }
    assert all(hasattr(sinks, name) for name in sinks.__all__)
    for file in (PACKAGE / "oncelake_sqlite").glob("*.py"):
        nodes = [each for each in ast.walk(ast.parse(file.read_text())) if hasattr(each, "module")]
        ours = {each.module for each in nodes if each.module.partition(".")[0] == "oncelake"}
        assert ours == {"oncelake.sinks"}


def test_the_page_names_every_promise_of_the_battery() -> None:
    """And no other."""
    promises = {name for name in vars(SinkConformance) if name.startswith("test_")}
    table = (ROOT / "docs" / "sinks.md").read_text("utf-8").partition("### The battery")[2]
    assert {*re.findall(r"`(test_\w+)` \|", table)} == promises


# A step that fails in a generator, or a thread that is left, may be told of once it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("bug", planted.BUGS, ids=lambda bug: bug.name)
def test_the_battery_notices_a_planted_bug(
    bug: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the test whose promise it breaks."""
    plant(bug, tmp_path / "package", monkeypatch)
    given: dict[str, Any] = {"opened": opened_in(tmp_path / "lake")}
    promise = getattr(Impatient(), f"test_{bug.by}")
    if "tmp_path" in inspect.signature(promise).parameters:
        given["tmp_path"] = tmp_path / "lake"

    with pytest.raises((Exception, pytest.fail.Exception)) as noticed:
        promise(**given)

    assert not isinstance(noticed.value, AttributeError | NameError | TypeError), noticed.value


class Impatient(TestSqlite):
    """The same, in less time."""

    __test__ = False
    seconds = 12


def test_a_sink_that_waits_fails_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test that waits says so, and where."""
    slow = {"        self.table, self.seq = table, seq\n": "        time.sleep(3)\n"}
    edits = {old: f"{new}{old}" for old, new in slow.items()}
    plant(Planted(name="it waits", edits=edits, by=""), tmp_path / "package", monkeypatch)
    monkeypatch.setattr(Impatient, "seconds", 1)

    with pytest.raises(pytest.fail.Exception) as caught:
        Impatient().test_an_empty_batch_is_a_note(opened_in(tmp_path / "lake"))

    said = str(caught.value)
    assert "test_an_empty_batch_is_a_note has not ended within 1 s" in said
    assert "time.sleep(3)" in said


def test_a_store_of_which_no_step_is_seen_is_not_passed() -> None:
    """The battery says so, where a sink acts without a line of its own, or all at once."""
    with pytest.raises(AssertionError, match="no line of /no/such/package/ was seen"):
        fail_at_steps(lambda step: True, ["/no/such/package/"], most=4)

    def attempt(step: FailingStep) -> bool:
        with suppress(StepFailedError), step:
            identifier("any")
        return True

    with pytest.raises(AssertionError, match="was before the one that does it"):
        fail_at_steps(attempt, [identifier.__code__.co_filename], most=4)


def oncelake(world: World, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command where the package is installed."""
    path = os.pathsep.join([str(PACKAGE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **environment_of(world.settings), **more, "PYTHONPATH": path}
    asked = [sys.executable, "-m", "ingestion", *command]
    return subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)


def rows(file: Path, table: str) -> list[tuple[Any, ...]]:
    """Read the rows, without Oncelake."""
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(f'SELECT id, name FROM "{table}" ORDER BY id').fetchall()


@pytest.mark.kafka
def test_a_sink_of_another_package_is_one_like_ours(world: World, tmp_path: Path) -> None:
    """No line of the product names it."""
    file = tmp_path / "of_its_own.sqlite"
    of_sink = {"ONCELAKE_SQLITE": str(file)}
    world.settings.streams.mkdir(parents=True, exist_ok=True)
    declared = world.settings.streams / f"{world.name}.yaml"
    text = "topic: {0}\nsink: {1}\nschema: id INT NOT NULL, name STRING, at INT\nkeys: [id]\n"
    declared.write_text(text.format(world.topic, "sqlite"))
    world.send(row(1, "a"), row(2, "b"), {"id": "?"})

    crash = PlannedCrash(
        place="committed", nth=1, way="kill_python", visits=str(tmp_path / "visits")
    ).environment()
    killed = oncelake(world, "run", world.name, **crash, **of_sink)
    again = oncelake(world, "run", world.name, **of_sink)

    assert killed.returncode == -signal.SIGKILL, killed.stdout
    assert again.returncode == 0, again.stderr
    assert rows(file, world.name) == [(1, "a"), (2, "b")]
    world.send(row(2, "c"), None, id=1)
    for command in (["run"], ["verify"], ["rebuild"], ["verify"]):
        done = oncelake(world, *command, world.name, **of_sink)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert rows(file, world.name) == [(2, "c")]
    erased = oncelake(
        world, "erase", world.name, "--key", '{"id": 2}', "--reason", "a test", "--yes", **of_sink
    )
    assert erased.returncode == 0, erased.stderr
    assert rows(file, world.name) == []

    schema = json.loads(oncelake(world, "schema", **of_sink).stdout)
    assert "sqlite" in json.dumps(schema["$defs"]["SinkSpec"]["properties"])
    help_ = oncelake(world, "init", world.topic, "--sink", "sqlit", **of_sink)
    assert "'sqlit' is not one of delta, iceberg, postgres, kafka, sqlite" in " ".join(
        help_.stderr.replace("│", " ").split()
    )
    unknown = oncelake(world, "status", ONCELAKE_SQLITES="x")
    assert "ONCELAKE_SQLITES: there is no such setting" in unknown.stderr


def test_a_sink_that_cannot_be_imported_is_told_of_where_it_is_declared(tmp_path: Path) -> None:
    """Every other stream goes on."""
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[oncelake.sinks]\nbroken = no_such_module:KIND\n")
    streams = tmp_path / "streams"
    streams.mkdir()
    for name, sink in {"one": "broken", "two": "delta"}.items():
        file = streams / f"{name}.yaml"
        file.write_text(f"topic: t\nsink: {sink}\nschema: id INT NOT NULL\nkeys: [id]\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "ONCELAKE_STREAMS": str(streams)}

    asked = [sys.executable, "-m", "ingestion", "validate"]
    found = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)

    assert found.returncode == 2
    said = " ".join((found.stdout + found.stderr).split())
    assert "sink broken of no_such_module:KIND cannot be imported: ModuleNotFoundError" in said
    assert "2 streams, 1 broken" in said
