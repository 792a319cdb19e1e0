"""Maintenance makes tables small, changes no row, and leaves what a rewind needs."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.errors import DamagedTableError, IdentityChangedError
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.operations.history.rewind import read_history, rewind
from oncelake.ingestion.operations.upkeep.maintain import UpkeepReport, maintain
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import only_long
from tests.support.proof import find_problems, prove
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at

NO_WINDOW = dt.timedelta(0)
BATCHES = 6


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """Six small batches; each adds rows, deletes or revives a key, and has a bad record."""
    world = module_world
    world.declare(sequence_by=["at"], apply_as_deletes="name = 'gone'")
    for at in range(BATCHES):
        world.send(row(20 - at, f"v{at}", at=at), b"garbage")
        world.send(row(2, "gone" if at % 2 else "back", at=at), row(3, "gone", at=at))
        world.run()
    world.write_declaration()
    return world


@pytest.fixture
def world(ingested: World, tmp_path: Path) -> World:
    """A copy of that stream's tables."""
    return ingested.copied_to(tmp_path / "lake", state=tmp_path / "state")


def tidied(world: World, window: dt.timedelta | None = None) -> UpkeepReport:
    """Maintain a stream."""
    return maintain(world.spec, world.settings, run_id="r", window=window)


def problems(world: World) -> tuple[str, ...]:
    """Read what another test may have sent, which changes no row, and prove all of it."""
    world.run()
    return find_problems(world)


def tombstones(world: World) -> list[tuple[int, int]]:
    """Key and order of each delete that is remembered."""
    table = DeltaTable(world.paths.tombstones.path).to_pyarrow_table(columns=["id", "at"])
    return sorted((each["id"], each["at"]) for each in table.to_pylist())


def age(world: World, days: int) -> None:
    """Let the ledger say that every batch was committed days ago."""
    ledger = DeltaTable(world.paths.ledger.path)
    ledger.update(updates={"committed_at": f"committed_at - INTERVAL '{days} days'"})


def test_small_files_become_one_and_nothing_else_changes(ingested: World, world: World) -> None:
    """Rows, books and offsets are the same; savepoints in the window stay; a new run goes on."""
    before = len(DeltaTable(world.paths.data.path).file_uris())

    report = tidied(world)

    sizes = {each.name.partition("__")[2]: each for each in report.tables}
    assert sizes.keys() == {"", "quarantine", "tombstones", "ledger"}
    assert before > 1
    assert all(each.after.files == 1 for each in sizes.values())
    assert world.rows() == ingested.rows()
    assert [p.seq for p in read_history(world.paths) if not p.obstacle] == [*range(BATCHES, -1, -1)]
    assert problems(world) == ()
    rewind(world.spec, world.settings, to="seq:3", reason="a test", run_id="r")
    world.run()
    assert world.rows() == ingested.rows()
    assert problems(world) == ()


def test_files_beyond_the_window_are_removed_with_their_checksums(world: World) -> None:
    """What no version in the window has leaves the disk, and the savepoints say so."""
    kept = tidied(world)
    report = tidied(world, NO_WINDOW)

    assert sum(each.vacuumed for each in kept.tables) == 0
    assert report.bytes_saved > 0
    names = {each.name for each in world.paths.data.path.iterdir()}
    assert {n for n in names if n.endswith(".crc")} == {
        f".{n}.crc" for n in names if n.endswith((".parquet", ".copy"))
    }
    assert len([n for n in names if n.endswith(".parquet")]) == 1
    assert {p.seq for p in read_history(world.paths) if not p.obstacle} == {*(0, BATCHES)}
    assert problems(world) == ()


def test_a_lost_ledger_is_made_again_without_the_files_of_then(world: World) -> None:
    """The commits tell what each batch did, also where VACUUM has removed what they wrote."""
    tidied(world, NO_WINDOW)
    tidied(world, NO_WINDOW)
    shutil.rmtree(world.paths.ledger)
    world.paths.ledger_copy.path.unlink()

    report = world.run()

    assert [row.seq for row in report.recovered] == list(range(1, BATCHES + 1))
    assert problems(world) == ()


def test_deletes_that_newer_ones_cover_are_forgotten(world: World) -> None:
    """Where no savepoint needs them; the newest of each key, and the last batch's, stay."""
    before = tombstones(world)
    kept = tidied(world)
    assert tombstones(world) == before
    tidied(world, NO_WINDOW)
    report = tidied(world, NO_WINDOW)

    assert {each.removed_rows for each in kept.tables} == {0}
    assert sum(each.removed_rows for each in report.tables) == len(before) - 4
    assert tombstones(world) == [(2, 3), (2, 5), (3, 4), (3, 5)]
    world.send(row(2, "late", at=2), row(3, "late", at=4))
    assert world.run().total("stale") == 2
    assert problems(world) == ()


def test_by_another_order_no_delete_is_forgotten(world: World) -> None:
    """A file that was edited, and whose runs are refused, is not what a table is tidied by."""
    before = tombstones(world)
    world.declare(sequence_by=["_timestamp"])

    with pytest.raises(IdentityChangedError, match="oncelake rebuild"):
        tidied(world, NO_WINDOW)

    assert tombstones(world) == before


def test_a_delete_is_forgotten_after_its_days(world: World) -> None:
    """As declared, but for those of the newest batch that wrote any."""
    world.declare(maintenance={"keep_tombstones_days": 30})
    age(world, 31)
    tidied(world, NO_WINDOW)
    tidied(world, NO_WINDOW)

    assert tombstones(world) == [(2, 5), (3, 5)]
    assert problems(world) == ()


def test_deletes_that_the_next_run_asks_for_are_not_forgotten(world: World) -> None:
    """Of a red batch that was accepted it asks for none, but for those of the one before."""
    world.declare(maintenance={"keep_tombstones_days": 30})
    age(world, 31)
    red = {"balanced": "false", "accepted": "'a test'"}
    DeltaTable(world.paths.ledger.path).update(updates=red, predicate=f"seq = {BATCHES}")
    tidied(world, NO_WINDOW)
    tidied(world, NO_WINDOW)

    assert tombstones(world) == [(2, 5), (3, 4), (3, 5)]
    world.run()


def test_raw_records_are_removed_after_their_days(world: World) -> None:
    """Place and reason stay; nothing waits any more, and the proof names what it cannot compare."""
    world.declare(maintenance={"keep_quarantine_days": 30})
    age(world, 31)

    report = tidied(world)

    assert report.payloads_removed == BATCHES
    assert {each["value"] for each in world.quarantined()} == {None}
    assert {each["reason"] for each in world.quarantined()} == {"malformed_json"}
    assert world.redrive().waiting == 0
    world.run()
    verdict = prove(world)
    assert (verdict.holds, len(verdict.limits)) == (True, 1)
    assert "6 records in quarantine are without key and value" in verdict.limits[0]
    assert tidied(world).payloads_removed == 0


def test_a_clock_that_was_wrong_once_ages_nothing(world: World) -> None:
    """One batch that was dated back makes no earlier one old: what waits there still waits."""
    world.declare(maintenance={"keep_quarantine_days": 30, "keep_tombstones_days": 30})
    ledger = DeltaTable(world.paths.ledger.path)
    ledger.update(
        updates={"committed_at": "committed_at - INTERVAL '9000 days'"},
        predicate=f"seq = {BATCHES}",
    )
    before = tombstones(world)

    assert tidied(world, NO_WINDOW).payloads_removed == 0
    assert set(tombstones(world)) <= set(before)
    assert max(tombstones(world)) == max(before)


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_stream_that_was_idle_for_its_window_goes_on(
    settings: Settings, spark: SparkSession
) -> None:
    """Spark reads a batch's outcomes off the version before it, however old that is."""
    by_spark = settings.model_copy(update={"merge_engine": "spark"})
    with World.made(by_spark, spark) as world:
        world.declare(sequence_by=["at"])
        world.send(row(1, "a", at=1))
        world.run()
        short = {"delta.deletedFileRetentionDuration": "interval 1 seconds"}
        DeltaTable(world.paths.data.path).alter.set_table_properties(short)
        time.sleep(2)
        world.send(row(1, "late", at=0), row(2, "new", at=1))

        report = world.run()

        assert (report.total("inserted"), report.total("stale")) == (1, 1)
        assert find_problems(world) == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
@pytest.mark.parametrize("place", [Failpoint.COMPACTED, Failpoint.RETIRED, Failpoint.VACUUMED])
def test_maintenance_that_dies_is_run_again(
    ingested: World, world: World, place: Failpoint
) -> None:
    """Dead between any two steps it has broken nothing, and the next one does the rest."""
    with crashing_at(place), pytest.raises(PlannedError):
        tidied(world, NO_WINDOW)
    report = tidied(world, NO_WINDOW)

    assert {each.after.files for each in report.tables} == {1}
    assert world.rows() == ingested.rows()
    assert problems(world) == ()


def test_a_flipped_bit_is_not_copied(world: World) -> None:
    """A file that is not as it was written is named, and nothing is put together."""
    files = sorted(DeltaTable(world.paths.data.path).file_uris())
    file = Path(files[0].removeprefix("file://"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)

    with pytest.raises(DamagedTableError, match="is not as it was written"):
        tidied(world)

    assert sorted(DeltaTable(world.paths.data.path).file_uris()) == files


def test_maintenance_from_a_shell(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it saved, and goes on over streams that cannot be maintained."""
    world.set_environment(monkeypatch)
    others = {
        "new": "topic: t\nschema: id INT\nkeys: [id]\n",
        "wrong": "topic: t\nschema: id INT\nkeys: [nosuch]\n",
    }
    for name, text in others.items():
        (world.settings.streams / f"{name}.yaml").write_text(text)

    done = CliRunner().invoke(app, ["maintain", "--json"])
    for name in others:
        (world.settings.streams / f"{name}.yaml").unlink()

    streams = {each["stream"]: each for each in json.loads(done.stdout)["streams"]}
    assert done.exit_code == 2, done.stderr
    assert "nosuch" in streams["wrong"]["error"]["message"]
    assert streams["new"]["tables"] == []
    assert {each["after"]["files"] for each in streams[world.topic]["tables"]} == {1}
    assert len(Ledger(world.paths.ledger).rows()) == BATCHES


def test_a_folder_that_grew_is_said_to_have_grown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What older versions need stays beside what replaces it: nothing was saved, not even less."""
    world.set_environment(monkeypatch)

    done = CliRunner().invoke(app, ["maintain", world.topic])

    assert "MB more on disk, since older versions still need" in done.stdout
    assert "saved" not in done.stdout


def test_what_was_saved_and_added_are_never_below_0(world: World) -> None:
    """One of them is 0, and the other what the folders differ by."""
    grown = tidied(world)
    shrunk = tidied(world, NO_WINDOW)

    assert (grown.bytes_saved, shrunk.bytes_added) == (0, 0)
    assert grown.bytes_added > 0
    assert shrunk.bytes_saved > 0
