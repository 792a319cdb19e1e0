"""A stream set back to a savepoint is as it was then, and reads on to where it would have been."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.errors import (
    InvalidSpecError,
    RewindError,
    StreamLockedError,
    TableReplacedError,
)
from oncelake.ingestion.lake import lock
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.operations.decisions import accept
from oncelake.ingestion.operations.history import rewind as rewind_module
from oncelake.ingestion.operations.history.rewind import read_history, rewind
from oncelake.ingestion.operations.quarantine.inspect import inspect
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import only_long, twins
from tests.support.proof import find_problems, prove
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """Four batches: rows, deletes and bad records in each, and a redrive of the second's."""
    world = module_world
    world.declare(sequence_by=["at"], apply_as_deletes="at = 7", tombstones="quarantine")
    world.send(row(1, "a", at=1), row(2, "b", at=1), b"garbage")
    world.run()
    world.send(row(1, "a2", at=2), row(3, "c", at=3))
    world.send(None, id=2)
    world.run()
    world.declare(tombstones="ignore")
    world.redrive()
    world.send(row(3, "gone", at=7), row(4, "d", at=4), b"rubbish")
    world.run()
    world.write_declaration()
    return world


@pytest.fixture
def world(ingested: World, tmp_path: Path) -> World:
    """A copy of that stream's tables."""
    return ingested.copied_to(tmp_path / "lake", state=tmp_path / "state")


def go_back(world: World, to: str) -> LedgerRow:
    """Rewind a stream, and return the ledger row of that."""
    return rewind(world.spec, world.settings, to=to, reason="a test", run_id="r")[1]


def contents(world: World) -> tuple[object, ...]:
    """Everything that a stream's tables hold, but for the numbers of batches."""
    sides = [
        sorted(
            (each["_partition"], each["_offset"], each["reason"]) for each in world.quarantined()
        ),
        tombstones(world),
    ]
    return (world.rows(), *sides)


def tombstones(world: World) -> list[int]:
    """The keys whose deletes are remembered."""
    path = world.paths.tombstones
    if not DeltaTable.is_deltatable(str(path)):
        return []
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.kafka
@pytest.mark.spark
@only_long
@pytest.mark.parametrize("seq", range(4))
def test_a_rewound_stream_reads_on_to_where_it_was(ingested: World, world: World, seq: int) -> None:
    """Back to any batch and read again, it equals the stream that was never rewound."""
    undone = go_back(world, f"seq:{seq}")
    reread = world.run()
    # What the rewind took back of the quarantine waits again.
    world.redrive()

    assert (undone.kind, undone.seq, undone.is_red) == ("rewind", 5, False)
    assert reread.lag == 0
    assert world.rows() == ingested.rows()
    # A null value that is read again is ignored now, and was quarantined then.
    assert seq < 2 or contents(world) == contents(ingested)
    assert find_problems(world) == ()


def test_everything_goes_back_together(world: World) -> None:
    """Rows, quarantine with its marks, tombstones and offsets are those of the batch."""
    go_back(world, "seq:2")

    assert world.rows() == [row(1, "a2", at=2), row(2, "b", at=1), row(3, "c", at=3)]
    assert [each["redriven_seq"] for each in world.quarantined()] == [None, None]
    assert tombstones(world) == []
    assert prove(world).holds
    assert world.run().batches[0].ranges[0].range.start == 6


def test_history_lists_what_can_be_reached(world: World) -> None:
    """Each batch is a savepoint, until a rewind undoes it; the empty table is the first."""
    before = read_history(world.paths)
    go_back(world, "seq:1")
    after = read_history(world.paths)

    assert [(point.seq, point.obstacle) for point in before] == [
        (seq, None) for seq in (4, 3, 2, 1, 0)
    ]
    assert {point.seq: point.obstacle is None for point in after} == {
        5: True, 4: False, 3: False, 2: False, 1: True, 0: True
    }  # fmt: skip
    assert before[-1].next is not None
    assert set(before[-1].next.values()) == {0}


def test_a_moment_means_the_batch_before_it(world: World) -> None:
    """The stream goes back to the last batch that was committed by then."""
    second = next(each for each in read_history(world.paths) if each.seq == 2)

    go_back(world, second.committed_at.isoformat())

    assert world.ledger[-1].counts["rewound_to"] == 2


@pytest.mark.parametrize(
    "place", [Failpoint.SIDES_CLEARED, *twins(Failpoint.LEDGER_HEALED, Failpoint.DECIDED)]
)
def test_a_rewind_that_dies_is_whole_or_nothing(
    ingested: World, world: World, place: Failpoint
) -> None:
    """Dead before its commit it never happened; dead behind it, the next run finishes it."""
    with crashing_at(place), pytest.raises(PlannedError):
        go_back(world, "seq:2")
    inspect(world.topic, world.paths)
    declared = DeclaredStream(name=world.topic, path=Path(), spec=world.spec, error=None)
    status = StatusReader(world.settings).read_status(declared)
    world.run()
    world.redrive()

    assert status.problems == ()
    kinds = [each.kind for each in world.ledger]
    assert kinds.count("rewind") == (place != Failpoint.LEDGER_HEALED)
    assert contents(world) == contents(ingested)
    assert find_problems(world) == ()


def test_a_rewind_that_sleeps_past_its_lease_touches_nothing_more(
    ingested: World, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another table may be in the place of the one whose rows it was about to take back."""
    world.settings = world.settings.model_copy(update={"lock": "lease"})
    before = contents(world)[1:]

    def sleep(place: Failpoint) -> None:
        if place == Failpoint.DECIDED:
            monkeypatch.setattr(lock, "is_lost", lambda lease: True)

    monkeypatch.setattr(rewind_module, "hit", sleep)
    with pytest.raises(StreamLockedError, match="lease was not renewed"):
        go_back(world, "seq:2")
    assert contents(world)[1:] == before
    monkeypatch.undo()
    world.run()
    world.redrive()

    assert contents(world) == contents(ingested)
    assert find_problems(world) == ()


def test_a_rewind_undoes_what_somebody_else_did(world: World) -> None:
    """Rows that a stranger has deleted are back, and nobody has to accept anything."""
    DeltaTable(world.paths.data.path).delete("id = 1")

    go_back(world, "seq:4")

    assert row(1, "a2", at=2) in world.rows()
    assert find_problems(world) == ()


def test_files_that_are_gone_are_named(world: World) -> None:
    """Behind a VACUUM the savepoint is refused, history says why, and nothing is changed."""
    table = DeltaTable(world.paths.data.path)
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    before = world.log.versions()[0]

    with pytest.raises(RewindError, match=r"seq 1 .*data files was removed \(VACUUM\)"):
        go_back(world, "seq:1")

    assert world.log.versions()[0] == before
    point = next(each for each in read_history(world.paths) if each.seq == 1)
    assert "VACUUM" in str(point.obstacle)


@pytest.mark.parametrize(
    ("to", "message"),
    [
        pytest.param("seq:9", "there is no savepoint seq:9", id="unknown"),
        pytest.param("41", "is none of seq:41, version:57", id="bare"),
        pytest.param("2026-11-22T10:00", "with its zone", id="no zone"),
        pytest.param("2020-01-01T00:00Z", "there is no savepoint", id="too early"),
    ],
)
def test_what_cannot_be_meant_is_said(world: World, to: str, message: str) -> None:
    """A target that is none is refused with what to write instead."""
    with pytest.raises(InvalidSpecError, match=message):
        go_back(world, to)


@pytest.mark.parametrize("place", [None, Failpoint.SIDES_CLEARED, *twins(Failpoint.DECIDED)])
def test_a_rewind_is_done_once(world: World, place: Failpoint | None) -> None:
    """One that was killed behind its commit has happened, and the same command ends with that."""
    dying = crashing_at(place) if place else nullcontext()
    with dying, suppress(PlannedError):
        go_back(world, "seq:2")
    before = world.log.versions()[0]

    again = go_back(world, "seq:2")
    here = go_back(world, f"seq:{again.seq}")

    assert (again.kind, here) == ("rewind", again)
    if place is not None:
        assert world.log.versions()[0] == before
    assert [each["name"] for each in world.rows()] == ["a2", "b", "c"]


def test_a_rewind_from_a_shell(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks first, says what it did, and `history` shows it."""
    world.set_environment(monkeypatch)
    shell = CliRunner(env={"COLUMNS": "1000"})

    unasked = shell.invoke(app, ["rewind", world.topic, "--to", "seq:1", "--reason", "a test"])
    done = shell.invoke(
        app, ["rewind", world.topic, "--to", "seq:1", "--reason", "a test", "--yes", "--json"]
    )
    listed = shell.invoke(app, ["history", world.topic, "--json"])
    shown = shell.invoke(app, ["history", world.topic])

    assert (unasked.exit_code, "add --yes" in unasked.stderr) == (2, True)
    document = json.loads(done.stdout)
    assert (document["kind"], document["to"]["to"]) == ("rewind", "seq:1")
    assert [each["reachable"] for each in json.loads(listed.stdout)["savepoints"]] == [
        True, False, False, False, True, True
    ]  # fmt: skip
    kinds = [each["kind"] for each in json.loads(listed.stdout)["savepoints"]]
    assert [line.split()[2] for line in shown.stdout.splitlines()[2:]] == kinds


def test_history_calls_nothing_reachable_that_a_rewind_refuses(world: World) -> None:
    """Behind a quarantine that was written off only the acceptance itself is."""
    shutil.rmtree(world.paths.quarantine)
    accept(world.spec, world.settings, reason="a test", run_id="me")

    newest, *older = read_history(world.paths)

    assert newest.obstacle is None
    assert all("were written off since" in (point.obstacle or "") for point in older)
    with pytest.raises(RewindError, match="were written off since"):
        go_back(world, "seq:3")


def test_the_history_of_a_table_that_is_gone_says_so(world: World) -> None:
    """It is not one that was never there."""
    shutil.rmtree(world.paths.data)

    with pytest.raises(TableReplacedError, match="is gone"):
        read_history(world.paths)
