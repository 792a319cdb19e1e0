"""Whatever a release has written, and left half-done, is read, continued, proven and corrected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import (
    BatchWithheldError,
    InvalidSpecError,
    RefusedError,
    TableReplacedError,
)
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.archive import list_archive, prune
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.recovery.standing import is_half_done
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables import format as lake_format
from oncelake.ingestion.tables.format import engine_version
from tests.cli.shell import oncelake
from tests.support.arrow_source import ArrowSession
from tests.support.gate import publish
from tests.support.long import IS_LONG
from tests.support.proof import find_problems, prove
from tests.support.world import World, row
from tests.upgrade.archive import manifest_of, releases, unpacked, version_of, world_of
from tests.upgrade.make import ERASE, EVOLVED, ROWS, WAITING, make, streams

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ERASED = json.loads(ERASE[1])["id"]
# Of streams whose names end so, no commit was broken off: they are proven as they are.
WHOLE = ("_append", "_scd2", "_aggregate", "_gate", "_adopted", "_prepared")
# Stands for the archive that the code of now would make.
MADE_NOW = Path("made now")
# What ``make test`` tries of each release; the others wait for ``make test-long``.
TRIED = {
    *("delta_gate", "delta_rebuild_swap_cleared"),
    *("iceberg_rebuild_committed", "postgres_committed", "kafka_committed"),
}


def cases() -> list[Any]:
    """Return each stream of each archive, the oldest first; LONG, of one that is made now, too."""
    listed = [(at, manifest_of(at)["streams"]) for at in releases()]
    if IS_LONG:
        listed.append((MADE_NOW, {left.name: left.said for left in streams()}))
    return [
        pytest.param(archive, (name, said), id=f"{version_of(archive)}-{name}")
        for archive, kept in listed
        for name, said in kept.items()
        if IS_LONG or name in TRIED
    ]


@pytest.fixture(scope="module")
def lake(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """The lake of an archive, with what is beside it; its streams are tried one after another."""
    archive: Path = request.param
    if archive == MADE_NOW:
        archive = tmp_path_factory.mktemp("archive") / "now.tar.xz"
        make(archive)
    with ExitStack() as stack:
        yield stack.enter_context(unpacked(archive))


@pytest.fixture(autouse=True)
def _is_a_later_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process be of a later version than an archive."""
    monkeypatch.setattr(lake_format, "version", lambda _: "9.8.0")
    engine_version.cache_clear()
    assert engine_version() == "9.8.0"
    yield
    engine_version.cache_clear()


@pytest.mark.parametrize(("lake", "left"), cases(), indirect=["lake"], scope="module")
def test_a_stream_of_a_release_goes_on(
    lake: Settings,
    left: tuple[str, dict[str, Any]],
    arrow_session: ArrowSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looked at, proven, ended, read on, redriven, rewound and erased, it holds what it must."""
    name, said = left
    world = world_of(name, lake, arrow_session)
    _look(world)
    command, *options = said["command"]
    if command != "run":
        world.set_environment(monkeypatch)
        ended = oncelake(command, name, *options)
        assert ended.exit_code == 0, ended.output
    if world.spec.publish.is_checked:
        # Its id was made by the release, and still means the same batch.
        publish(world)
    world.run()
    assert find_problems(world) == ()
    _check_rows(world, is_erased=command == "erase")

    _redrive(world)
    _read_on(world)
    _rewind(world, is_erased=command == "erase")
    _erase(world)

    assert all(batch.balanced for batch in world.ledger)


def _look(world: World) -> None:
    """Look at what was left, which changes nothing, and prove as much as there is."""
    declared = DeclaredStream(
        name=world.name, path=world.settings.streams, spec=world.spec, error=None
    )
    meant: dict[type[Exception], bool] = {
        TableReplacedError: is_half_done(world.paths),
        BatchWithheldError: world.spec.publish.is_checked,
    }
    found = StatusReader(world.settings).read_status(declared)
    problems = {each.type for each in found.problems}
    assert problems == {error.__name__ for error, is_so in meant.items() if is_so}
    try:
        # A commit without its ledger row is told of, too.
        assert [str(each) for each in prove(world).differences if "heals it" not in each.what] == []
    except (RefusedError, InvalidSpecError) as refused:
        # Its table is on its way; a commit is not in the ledger, and nothing is kept before it; or
        # a rewind has undone a column. It says what a run would do.
        if world.name.endswith(WHOLE) or not re.search("oncelake run|next run would", str(refused)):
            raise


def _expected(world: World, *, is_erased: bool) -> list[dict[str, Any]]:
    """Return the rows of an upsert that has read all, but what waits in quarantine."""
    rows = {n: {**row(n, f"v{n}", 1), "note": None} for n in range(ROWS)}
    del rows[1]
    rows[2] |= {"name": "changed again", "at": 2}
    rows[ROWS] = {**row(ROWS, "new", 3), "note": "evolved"}
    rows[4] = {**row(4, "last", 4), "note": "unread"}
    if is_erased:
        del rows[ERASED]
    return sorted(rows.values(), key=lambda each: str(each["id"]))


def _rows(world: World) -> list[dict[str, Any]]:
    """Return the rows, by key; of an aggregate, its groups."""
    if world.spec.mode != "aggregate":
        return world.rows()
    names = [column.name for column in world.spec.table_columns]
    found = [row for part in world.paths.table.scan(names) for row in part.to_pylist()]
    return sorted(found, key=lambda row: int(row["id"]))


def _check_rows(world: World, *, is_erased: bool) -> None:
    if world.spec.mode == "upsert":
        assert world.rows() == _expected(world, is_erased=is_erased)
    elif world.spec.mode == "scd2":
        assert {each["id"] for each in world.rows()} == set(range(ROWS + 1))
        assert {**row(4, "v4", 1), "note": None} in world.rows()
        assert {**row(4, "last", 4), "note": "unread"} in world.rows()
    elif world.spec.mode == "append":
        # What two batches have sent beside the rows of the first.
        assert len(world.rows()) == ROWS + 4
    else:
        folded = dict.fromkeys(range(ROWS), (1, 1)) | {2: (3, 2), 4: (2, 4), ROWS: (1, 3)}
        assert _rows(world) == [
            {"id": n, "records": r, "newest": at} for n, (r, at) in folded.items()
        ]
    assert len(world.quarantined()) == 3


def _redrive(world: World) -> None:
    """Take a number that is a text, and send in the record of it that waits."""
    if "redrive" in world.paths.sink.kind.cannot:
        return
    world.declare(types={"at": "lenient"})
    world.write_declaration()
    assert world.redrive().redriven == 1
    is_folded = world.spec.mode == "aggregate"
    sent = {"id": 5, "records": 2, "newest": 7} if is_folded else {**WAITING, "at": 7, "note": None}
    assert sent in _rows(world)


def _read_on(world: World) -> None:
    """Widen the schema, and read what comes."""
    world.declare(schema=f"{EVOLVED}, more BIGINT")
    world.write_declaration()
    world.send({**row(6, "after", 9), "note": "new", "more": 1}, b"bad as ever")
    assert world.run().total("read") == 2
    assert find_problems(world) == ()


def _rewind(world: World, *, is_erased: bool) -> None:
    if is_erased or "rewind" in world.paths.sink.kind.cannot:
        return
    before = _rows(world)
    newest = max(each.seq for each in world.ledger)
    point, _ = rewind(
        world.spec, world.settings, to=f"seq:{newest - 1}", reason="a test", run_id="rewind"
    )
    assert point.seq == newest - 1
    world.run()
    assert _rows(world) == before
    assert find_problems(world) == ()


def _erase(world: World) -> None:
    if "erase" in world.paths.sink.kind.cannot or world.spec.mode == "aggregate":
        return
    # An erase of an Iceberg table needs its old rows gone.
    old = tuple(each.entry for each in list_archive(world.name, world.settings))
    if old:
        prune(world.name, old, world.settings, run_id="prune")
    key = json.dumps({"id": 8})
    erase(world.spec, world.settings, key=key, reason="a test", run_id="erase")
    assert 8 not in {each["id"] for each in world.rows()}
    verdict = prove(world)
    assert verdict.holds, verdict.differences
    # The version that was adopted is gone with the key.
    assert bool(verdict.limits) == (verdict.adopted is not None)
