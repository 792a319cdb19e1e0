"""Quarantined records, sent in again once the declaration is mended: each once, and proven."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.errors import InvalidSpecError, RefusedError, SideTableIncompleteError
from oncelake.ingestion.operations.decisions import accept, adopt_topic
from oncelake.ingestion.operations.quarantine.redrive import RedriveReport
from oncelake.ingestion.verify.verify import verify
from tests.support.long import only_long
from tests.support.proof import find_problems
from tests.support.world import World, row

STRICT = "id INT NOT NULL, name STRING NOT NULL, at INT"
REPORTS: dict[str, RedriveReport] = {}
LENIENT = "id INT NOT NULL, name STRING, at INT"


def ingest_and_redrive(world: World) -> RedriveReport:
    """Quarantine records under a strict declaration, let newer ones come, mend it, redrive."""
    world.declare(sequence_by=["at"], apply_as_deletes="at = 7", tombstones="quarantine")
    world.send(row(5, "e", at=1))
    world.run()
    world.declare(schema=STRICT)
    world.send({"id": 1, "at": 1}, {"id": 2, "at": 1}, row(3, "c", at=5), b"garbage")
    world.send({"id": 4, "at": 1}, {"id": 4, "at": 2}, {"id": 4, "at": 2}, partition=1)
    world.send({"id": 9, "name": "i", "at": 6}, {"id": 9, "at": 5})
    world.send(None, id=3)
    world.run()
    world.send(row(2, "newer", at=2), {"id": 3, "name": None, "at": 6}, row(9, "gone", at=7))
    world.run()
    world.declare(schema=LENIENT, tombstones="ignore")
    return world.redrive()


@pytest.fixture(scope="module")
def redriven(module_world: World) -> World:
    """A stream whose quarantine was redriven, ingested once for all tests of this module."""
    REPORTS[module_world.topic] = ingest_and_redrive(module_world)
    module_world.write_declaration()
    return module_world


@pytest.fixture
def damaged(redriven: World, tmp_path: Path) -> World:
    """A copy of that stream's tables, to be damaged."""
    return redriven.copied_to(tmp_path / "lake")


def test_a_redrive_applies_what_is_good_now_and_never_over_what_came_later(redriven: World) -> None:
    """Absent rows come, older records lose to newer rows and deletes, the rest stays, all once."""
    report = REPORTS[redriven.topic]
    (batch,) = report.batches

    assert redriven.rows() == [
        row(1, None, at=1), row(2, "newer", at=2), row(3, None, at=6), row(4, None, at=2),
        row(5, "e", at=1),
    ]  # fmt: skip
    assert (report.waiting, report.redriven, report.still_bad) == (9, 8, {"malformed_json": 1})
    assert (batch.kind, batch.seq, batch.ranges, batch.is_red) == ("redrive", 6, (), False)
    assert {name: n for name, n in batch.counts.items() if n} == {
        "read": 8, "inserted": 2, "updated": 1, "superseded": 2, "stale": 2, "ignored": 1
    }  # fmt: skip
    assert [each["redriven_seq"] for each in redriven.quarantined()].count(6) == 8
    assert find_problems(redriven) == ()


def test_status_counts_what_waits(redriven: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of the nine were sent in; one is still bad."""
    redriven.set_environment(monkeypatch)

    result = CliRunner().invoke(app, ["status", redriven.topic, "--json"])

    assert (result.exit_code, json.loads(result.stdout)["quarantined"]) == (0, 1)


def no_spark(backlog: int) -> NoReturn:
    """Stand for a Spark that must not be started."""
    raise AssertionError("Spark was asked for")


def test_nothing_is_sent_in_twice(redriven: World) -> None:
    """Another redrive finds only what is still bad; where nothing waits, it starts no Spark."""
    with pytest.raises(InvalidSpecError, match="there are: malformed_json"):
        redriven.redrive(reason="missing_required", spark=no_spark)

    again = redriven.redrive()

    assert (again.waiting, again.redriven, again.batches) == (1, 0, ())
    assert [each.kind for each in redriven.ledger] == [
        *("ingest", "schema", "ingest", "ingest", "schema", "redrive")
    ]


def differences(world: World) -> list[str]:
    """Return what the proof finds wrong."""
    return [str(each) for each in verify(world.spec, world.settings).differences]


def set_mark(world: World, mark: int | None, where: str) -> None:
    """Write another mark beside a record in quarantine."""
    updates = {"redriven_seq": f"CAST({'NULL' if mark is None else mark} AS BIGINT)"}
    DeltaTable(world.paths.quarantine.path).update(updates=updates, predicate=where)


FIRST = "_partition = 0 AND _offset = 1"
GARBAGE = "reason = 'malformed_json'"
DAMAGES: dict[str, tuple[Callable[[World], None], str]] = {
    "a mark that is gone": (lambda w: set_mark(w, None, FIRST), "read, counted again"),
    "a mark of an ingest": (lambda w: set_mark(w, 3, FIRST), "which is no later redrive"),
    "a mark too many": (lambda w: set_mark(w, 6, GARBAGE), "read, counted again"),
    "a row that is gone": (
        lambda w: DeltaTable(w.paths.quarantine.path).delete(FIRST),
        "read, counted again",
    ),
    "an applied row that is gone": (
        lambda w: DeltaTable(w.paths.data.path).delete("id = 1"),
        "is missing from the table",
    ),
    "an applied row of another seq": (
        lambda w: DeltaTable(w.paths.data.path).update(updates={"_seq": "2"}, predicate="id = 1"),
        "column _seq differs",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_a_redrive_left_behind_is_proven(damaged: World, damage: str) -> None:
    """A record that was sent in without its mark, or marked without being sent in, is found."""
    do, expected = DAMAGES[damage]

    do(damaged)

    found = differences(damaged)
    assert any(expected in each for each in found), found


def test_an_older_quarantine_is_noticed(damaged: World) -> None:
    """A quarantine that has lost its marks would send records in again: the run is refused."""
    set_mark(damaged, None, FIRST)

    with pytest.raises(SideTableIncompleteError, match="holds 7 records that batch 6 has redriven"):
        damaged.run(spark=no_spark)


def test_the_quarantine_is_shown_without_harm(
    damaged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command groups what waits, shows samples escaped, and tells the redriven apart."""
    for name, value in damaged.environment().items():
        monkeypatch.setenv(name, value)

    text = CliRunner().invoke(app, ["quarantine", damaged.topic])
    document = json.loads(CliRunner().invoke(app, ["quarantine", damaged.topic, "--json"]).stdout)

    assert (text.exit_code, "malformed_json" in text.stdout) == (0, True), text.output
    assert "redriven, kept for the record: 8 (batch 6: 8)" in text.stdout
    assert document["waiting"] == 1
    assert document["reasons"][0]["first"]["offset"] == 4
    assert document["samples"][0]["value"] == "garbage"
    assert document["redriven"] == [{"seq": 6, "records": 8}]


def test_what_waits_for_another_declaration_is_named_until_it_is_sent_in(world: World) -> None:
    """The proof says that it is good today; so it is, by a redrive of its reason alone."""
    world.declare(tombstones="quarantine")
    world.send(row(1, "a"), b"garbage")
    world.send(None, id=1)
    world.run()
    assert [each["run_id"] for each in world.quarantined()] == ["run-1", "run-1"]
    world.declare(tombstones="delete")
    limits = verify(world.spec, world.settings).limits
    world.send(row(2, "b"), b"more")
    world.run()

    report = world.redrive(reason="tombstone_quarantined")

    assert "1 record in quarantine was bad for another declaration" in limits[0]
    assert (report.redriven, report.batches[0].counts["deleted"]) == (1, 1)
    assert [each["redriven_seq"] for each in world.quarantined()] == [None, 3, None]
    assert world.quarantined()[2]["engine_version"] == "0.1.0"
    assert world.rows() == [row(2, "b")]
    assert find_problems(world) == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_record_of_an_earlier_epoch_loses_against_what_came_later(world: World) -> None:
    """Each record is sent in with its own epoch, one commit an epoch, whatever its offset."""
    world.declare(schema=LENIENT)
    world.send(row(9, "i"))
    world.run()
    world.declare(schema=STRICT)
    world.send({"id": 1, "at": 1}, {"id": 2, "at": 1})
    world.run()
    world.delete_topic()
    world.create_topic()
    adopt_topic(world.spec, world.settings, run_id="me")
    world.send(row(1, "new"), {"id": 3, "at": 1})
    world.run()
    world.declare(schema=LENIENT)

    report = world.redrive()

    assert [(each.seq, each.counts["read"]) for each in report.batches] == [(7, 2), (8, 1)]
    assert report.batches[0].counts["stale"] == 1
    assert world.rows() == [row(1, "new"), row(2, None, 1), row(3, None, 1), row(9, "i")]
    epochs = (
        DeltaTable(world.paths.data.path).to_pyarrow_table(columns=["id", "_epoch"]).to_pylist()
    )
    assert {each["id"]: each["_epoch"] for each in epochs} == {1: 2, 2: 1, 3: 2, 9: 1}
    assert differences(world) == []


def test_a_quarantine_that_was_given_up_leaves_its_redrives_unproven(damaged: World) -> None:
    """Without its marks nobody can tell what a redrive sent in: that is said, and nothing else."""
    shutil.rmtree(damaged.paths.quarantine)
    accept(damaged.spec, damaged.settings, reason="a drill", run_id="me")
    damaged.run()

    verdict = verify(damaged.spec, damaged.settings)

    assert (verdict.holds, verdict.differences, verdict.obstacles) == (True, (), ())
    assert any("what quarantine held was given up: a drill" in t for t in verdict.limits)
    assert damaged.redrive(spark=no_spark).waiting == 0


def test_a_partial_update_is_not_sent_in_late(world: World) -> None:
    """Its columns would need an order each: nothing is lost in silence, and a rebuild folds all."""
    world.declare(schema=STRICT, ignore_null_updates=True)
    world.send({"id": 1, "at": 1}, {"id": 1, "name": "newer", "at": None})
    world.run()
    world.declare(schema=LENIENT)

    with pytest.raises(RefusedError, match=r"1 record waits.*oncelake rebuild"):
        world.redrive(spark=no_spark)
    world.rebuild()

    assert world.rows() == [row(1, "newer", at=1)]
    assert find_problems(world) == ()


def test_a_redrive_whose_records_are_gone_is_not_proven(redriven: World) -> None:
    """What retention has taken since is said to be unproven, and nothing is called wrong.

    The last test of this module: it takes records away.
    """
    redriven.forget_before(1, 3)

    verdict = verify(redriven.spec, redriven.settings, whole=True)

    assert (verdict.holds, verdict.differences) == (True, ())
    assert any("batch 6 redrove 3 records that Kafka no longer" in each for each in verdict.limits)
