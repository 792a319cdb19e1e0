"""A lake in an object store: every operation does there what it does in a folder."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.delta.files import read_delta
from oncelake.ingestion.delta.vectors import vectors_of
from oncelake.ingestion.errors import OffsetsExpiredError, SetupError
from oncelake.ingestion.operations.decisions import accept, adopt_topic, reset
from oncelake.ingestion.operations.doctor.examine import examine_leftovers
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.archive import list_archive, prune, restore
from oncelake.ingestion.operations.history.rewind import read_history, rewind
from oncelake.ingestion.operations.quarantine.inspect import inspect
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.storage.location import Location
from tests.support.long import only_long, twins
from tests.support.places import kafka_for, spark_for
from tests.support.proof import find_problems, rows_of_no_commit
from tests.support.store import make_bucket, use_store
from tests.support.world import COLUMNS, World, row, settings_in
from tests.trials.failpoints import PlannedError, crashing_at

STRICT = "id INT NOT NULL, name STRING NOT NULL, at INT"


BY_SPARK = pytest.param("store by Spark", marks=[pytest.mark.kafka, pytest.mark.spark])
PLACES = ["store", *twins("folder", BY_SPARK)]


@contextmanager
def ingested_in(place: str, settings: Settings, spark: SparkSession, store: str) -> Iterator[World]:
    """A stream of two batches: an insert, an update, a delete, and a record that was bad."""
    with pytest.MonkeyPatch.context() as environment:
        if place != "folder":
            use_store(store, environment)
            settings = settings.model_copy(update={"lake": f"s3://{make_bucket(store)}/lake"})
        if place == "store by Spark":
            settings = settings.model_copy(update={"merge_engine": "spark"})
        with World.made(settings, spark) as world:
            world.declare(apply_as_deletes="name = 'gone'")
            world.send(row(1, "Ada Lovelace"), row(2, "b"), row(3, "c"))
            world.run()
            world.declare(schema=STRICT)
            world.send(row(2, "b2"), row(3, "gone"), row(5, None), row(4, "d"))
            world.run()
            world.declare(schema=COLUMNS)
            yield world


@pytest.fixture(scope="module", params=PLACES)
def ingested(
    request: pytest.FixtureRequest,
    store_address: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    """The stream that the tests of this module share."""
    folder = tmp_path_factory.mktemp("ingested")
    is_real = request.param == "store by Spark"
    address = request.getfixturevalue("kafka_address") if is_real else kafka_for(request)
    session = request.getfixturevalue("spark") if is_real else spark_for(request)
    settings = settings_in(folder, address)
    with ingested_in(request.param, settings, session, store_address) as world:
        yield world
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def placed(ingested: World, tmp_path: Path) -> World:
    """The stream, with a lake of the test's own; its topic is read, and no more."""
    lake = ingested.settings.lake
    own = tmp_path / "lake" if isinstance(lake, Path) else f"{lake}-{tmp_path.name}"
    return ingested.copied_to(own, state=tmp_path / "state")


@pytest.fixture(params=PLACES)
def alone(
    request: pytest.FixtureRequest, settings: Settings, session: SparkSession, store_address: str
) -> Iterator[World]:
    """Such a stream whose topic is the test's own, too."""
    with ingested_in(request.param, settings, session, store_address) as world:
        yield world


ROWS = [row(1, "Ada Lovelace"), row(2, "b2"), row(4, "d")]


def test_a_run_lands_proves_and_says_where_it_stands(placed: World) -> None:
    """Rows, quarantine, books, proof and status are those of the topic."""
    declared = DeclaredStream(name=placed.topic, path=Path(), spec=placed.spec, error=None)

    status = StatusReader(placed.settings).read_status(declared)

    assert placed.rows() == ROWS
    assert status.problems == ()
    assert (status.lag, status.waiting, status.row_count, status.holder) == (0, 1, 3, None)
    assert status.table == str(placed.paths.data)
    assert list(examine_leftovers(placed.topic, placed.paths)) == []
    assert find_problems(placed) == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_what_waits_in_quarantine_is_inspected_and_redriven(placed: World) -> None:
    """A record that is good by the declaration of now goes through the same gate."""
    inspection = inspect(placed.topic, placed.paths, reason=None, limit=5)
    report = placed.redrive()

    assert (len(inspection.groups), len(inspection.samples)) == (1, 1)
    assert report.is_balanced
    assert placed.rows() == [*ROWS, row(5, None)]
    assert find_problems(placed) == ()


def test_what_a_dead_run_left_is_in_no_table(alone: World) -> None:
    """Quarantine and tombstones hold rows of the runs that have committed, at any time."""
    alone.send(row(1, "gone"), row(6, "f"), b"garbage")
    with crashing_at(Failpoint.PREPARED), pytest.raises(PlannedError):
        alone.run()
    left = rows_of_no_commit(alone)

    alone.run()

    assert left == rows_of_no_commit(alone) == ()
    assert find_problems(alone) == ()


def test_a_stream_is_rewound_and_reads_on(placed: World) -> None:
    """Table, quarantine and offsets go back together, and the next run ends where it was."""
    assert [point.seq for point in read_history(placed.paths)] == [3, 2, 1, 0]

    rewind(placed.spec, placed.settings, to="seq:1", reason="why", run_id="rewind")
    rewound = placed.rows()
    placed.run()

    assert rewound == [row(1, "Ada Lovelace"), row(2, "b"), row(3, "c")]
    assert placed.rows() == [*ROWS, row(5, None)]
    assert find_problems(placed) == ()


def test_a_replay_adds_what_is_missing_and_nothing_else(placed: World) -> None:
    """All that it reads again is there."""
    report = placed.replay()

    assert report.is_balanced
    assert placed.rows() == ROWS
    assert find_problems(placed) == ()


def test_maintenance_keeps_every_row(placed: World) -> None:
    """Files are put together, and what left the table is removed."""
    report = maintain(placed.spec, placed.settings, run_id="maintain", window=dt.timedelta())

    data = next(each for each in report.tables if each.name == placed.topic)
    assert data.vacuumed > 0
    assert data.after.files == 1
    assert placed.rows() == ROWS
    assert find_problems(placed) == ()


def test_a_key_is_erased_from_every_object(placed: World) -> None:
    """No object of the lake has a trace of it, and the proof leaves it out."""
    certificate = erase(
        placed.spec, placed.settings, key='{"id": 1}', reason="asked", run_id="erase"
    )

    lake = Location.of(placed.settings.lake)
    assert certificate.row.counts["erased_rows"] == 1
    assert [name for name in lake.files() if b"Ada Lovelace" in (lake / name).read()] == []
    assert find_problems(placed) == ()


def test_a_rebuild_changes_places_with_the_table(placed: World) -> None:
    """The new table is in place, the old one in the archive, and the workshop is gone."""
    rebuilt = placed.rebuild()

    names = {name.partition("/")[0] for name in placed.paths.lake.files()}
    assert placed.rows() == [*ROWS, row(5, None)]
    assert placed.topic in {each.name for each in rebuilt.old.archived}
    assert ".rebuild" not in names
    assert find_problems(placed) == ()


def test_a_reset_is_archived_restored_and_pruned(placed: World) -> None:
    """Tables come back from the archive as they went there, and go for good when told."""
    reset(placed.topic, placed.settings, run_id="reset", reason="why")
    assert not placed.paths.data.exists()
    (entry,) = list_archive(placed.topic, placed.settings)

    restore(placed.topic, entry.entry, placed.settings, run_id="restore")
    restored = placed.rows()
    prune(placed.topic, (entry.entry,), placed.settings, run_id="prune")

    assert (entry.rows, entry.waiting, entry.why) == (3, 1, "reset: why")
    assert restored == ROWS
    assert list_archive(placed.topic, placed.settings) == ()
    assert find_problems(placed) == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_person_accepts_a_loss_and_adopts_a_topic(alone: World) -> None:
    """Both decisions are commits there, and the stream reads on behind them."""
    alone.send(row(6, "lost"), row(7, "kept"))
    alone.wait_for_end(9)
    alone.forget_before(0, 8)
    with pytest.raises(OffsetsExpiredError):
        alone.run()

    accepted = accept(alone.spec, alone.settings, reason="why", run_id="accept")
    alone.run()
    alone.delete_topic()
    alone.create_topic()
    adopted = adopt_topic(alone.spec, alone.settings, run_id="adopt")
    alone.send(row(1, "anew"))
    alone.run()

    assert accepted.counts["lost"] == 1
    assert adopted.epoch == 2
    assert alone.rows() == [row(1, "anew"), row(2, "b2"), row(4, "d"), row(7, "kept")]


def test_rows_are_marked_as_gone(alone: World) -> None:
    """Vectors are put, read, heeded by the proof, and removed with the files that they are of."""
    alone.declare(deletion_vectors=True)
    alone.send(*(row(n, "e") for n in range(10, 40)))
    alone.run()
    alone.send(row(11, "f"), row(12, "gone"))
    alone.run()
    path = alone.paths.data
    vectors = vectors_of(path, read_delta(path)).values()

    assert sum(each.rows for each in vectors) == 2
    assert len(alone.rows()) == len(ROWS) + 29
    assert find_problems(alone) == ()
    erase(alone.spec, alone.settings, key='{"id": 13}', reason="asked", run_id="erase")
    maintain(alone.spec, alone.settings, run_id="maintain", window=dt.timedelta())
    assert len(alone.rows()) == len(ROWS) + 28
    assert [name for name in path.files() if name.endswith(".bin")] == []
    assert find_problems(alone) == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_the_tables_columns_follow_the_declaration(alone: World) -> None:
    """A column that is declared later is there, by whichever engine adds it."""
    alone.declare(schema=f"{COLUMNS}, more STRING", schema_change="evolve")
    alone.send({**row(8, "h"), "more": "m"})
    report = alone.run()

    assert report.is_balanced
    assert alone.rows()[-1] == {**row(8, "h"), "more": "m"}


def test_a_run_that_needs_spark_there_is_refused_before_it_reads(
    bucket: str, settings: Settings, session: SparkSession, tmp_path: Path
) -> None:
    """Without the jars for S3 neither Spark is started nor anything written; the sentence tells."""
    without = {"lake": bucket, "jars": tmp_path, "merge_engine": "spark"}
    with World.made(settings.model_copy(update=without), session) as world:
        world.send(row(1, "a"))

        with pytest.raises(SetupError, match="has no jars for S3"):
            world.run(spark=lambda backlog: pytest.fail("Spark was started"))

        assert not world.paths.data.exists()


def test_a_wider_type_goes_on_where_its_writer_died(alone: World) -> None:
    """A file that was written anew, and sealed, is not written again."""
    alone.send(row(7, "x"), row(8, "y"))
    alone.run()
    files = len(read_delta(alone.paths.data).file_uris())
    alone.declare(schema=COLUMNS.replace("at INT", "at BIGINT"), schema_change="evolve")
    alone.send({**row(7, "x"), "at": 2**40})
    with crashing_at(Failpoint.FILE_REWRITTEN), pytest.raises(PlannedError):
        alone.run()

    with crashing_at(Failpoint.FILE_REWRITTEN, nth=1_000) as visits:
        alone.run()

    assert visits() == files - 1 > 0
    assert {each["id"]: each["at"] for each in alone.rows()}[7] == 2**40
    assert find_problems(alone) == ()
