"""An erased key is nowhere, comes back by nothing that is read again, and the proof holds."""

from __future__ import annotations

import json
import os
import shutil
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.delta import vacuum
from oncelake.ingestion.delta.vacuum import drop_log_before
from oncelake.ingestion.errors import (
    DamagedTableError,
    InvalidSpecError,
    RefusedError,
    RewindError,
    TerminalError,
)
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.operations.decisions import accept, adopt_topic
from oncelake.ingestion.operations.doctor.examine import examine_leftovers
from oncelake.ingestion.operations.erase import erase as erase_module
from oncelake.ingestion.operations.erase.erase import Certificate, erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.processes import scratch_of_this_process
from tests.support.long import only_long, twins
from tests.support.proof import prove
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at

# A name, and a number, that are nowhere else: every file of the lake is searched for them.
PERSON, NUMBER = "Ada Lovelace", 18_151_210
MOMENTS = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
COLUMNS = "id INT NOT NULL, name STRING, at INT NOT NULL"


def history_of_a_person(world: World, **declared: Any) -> None:
    """Ingest rows, deletes and bad records of one person, and of others."""
    world.declare(schema=COLUMNS, sequence_by=["at"], apply_as_deletes="at = 3", **declared)
    world.send(row(NUMBER, PERSON, at=1), row(1, "a", at=1), row(2, "b", at=1))
    world.run()
    world.send(row(NUMBER, f"{PERSON}, Countess", at=2), row(1, "gone", at=3))
    world.send({"id": NUMBER, "name": PERSON}, b"garbage", row(NUMBER, PERSON, at=3))
    world.run()
    world.send(row(NUMBER, f"{PERSON} again", at=4), row(2, "b2", at=2))
    world.run()
    world.write_declaration()


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """A stream with a person in its table, quarantine and tombstones."""
    history_of_a_person(module_world)
    return module_world


@pytest.fixture
def world(ingested: World, tmp_path: Path) -> World:
    """A copy of that stream's tables."""
    return ingested.copied_to(tmp_path / "lake", state=tmp_path / "state")


def erased(world: World, key: str = json.dumps({"id": NUMBER})) -> Certificate:
    """Erase the person."""
    return erase(world.spec, world.settings, key=key, reason="a request", run_id="r")


def traces(world: World) -> list[str]:
    """Name the files of the lake that hold the person's name or number, compressed pages too."""
    found = []
    for file in (each for each in world.settings.lake.rglob("*") if each.is_file()):
        raw = file.read_bytes()
        if PERSON.encode() in raw or str(NUMBER).encode() in raw:
            found.append(str(file))
    for path in (world.paths.data, world.paths.quarantine, world.paths.tombstones):
        for file in path.path.glob("*.parquet"):
            text = repr(__import__("pyarrow.parquet").parquet.read_table(file).to_pylist())
            if PERSON in text or str(NUMBER) in text:
                found.append(str(file))
    return found


def test_nothing_of_the_key_is_left(ingested: World, world: World) -> None:
    """Not in any file of table, side tables or logs; the others' rows stay, and are proven."""
    assert traces(world)

    done = erased(world)

    assert traces(world) == []
    assert {name: n for name, n in done.row.counts.items() if name.startswith("erase")} == {
        "erased_rows": 1, "erased_tombstones": 1, "erased_quarantined": 1,
        "erased_files": done.row.counts["erased_files"], "erase_complete": 1,
    }  # fmt: skip
    assert done.row.counts["erased_files"] > 3
    assert (done.row.kind, done.unreadable, done.archived) == ("erase", 1, ())
    assert [str(part) for part in done.in_kafka or ()] == [f"{world.topic}-0 [0, 10)"]
    assert world.rows() == [each for each in ingested.rows() if each["id"] != NUMBER]
    world.run()
    verdict = prove(world)
    assert verdict.holds, verdict.differences
    assert verdict.limits == (
        "1 record in quarantine is without key and value, which were removed on purpose",
    )


def test_what_is_read_again_does_not_bring_it_back(world: World) -> None:
    """A replay and a redrive leave the key's earlier records out, and count them."""
    erased(world)
    world.declare(schema=COLUMNS.replace("at INT NOT NULL", "at INT"), sequence_by=["_timestamp"])
    before = world.rows()

    world.declare(schema=COLUMNS, sequence_by=["at"])
    report = world.replay()

    assert report.total("filtered") == 4
    assert world.rows() == before
    assert NUMBER not in {each["id"] for each in world.rows()}
    assert prove(world).differences == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_later_record_comes_in_as_any_other(world: World) -> None:
    """Whoever comes back is no ghost: only what had been read by then is left out."""
    erased(world)
    world.send(row(NUMBER, "another life", at=1))
    world.run()
    world.replay()

    assert [each["name"] for each in world.rows() if each["id"] == NUMBER] == ["another life"]
    assert prove(world).differences == ()


def test_no_rewind_leads_behind_an_erase(world: World) -> None:
    """The older version had the key."""
    erased(world)

    with pytest.raises(RewindError, match=r"a key was erased since.*oncelake rebuild"):
        rewind(world.spec, world.settings, to="seq:3", reason="a test", run_id="r")


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_rebuild_leaves_out_what_was_erased(settings: Settings, session: SparkSession) -> None:
    """The new table takes the erasures over before it reads, and so does the next one."""
    with World.made(settings, session) as world:
        history_of_a_person(world)
        erased(world)
        before = world.rows()

        world.rebuild()
        world.rebuild()
        world.replay()

        shutil.rmtree(world.paths.archive)
        assert traces(world) == []
        assert world.rows() == before
        first = world.ledger[0]
        assert (first.kind, first.accepted) == ("erase", "erased before this table was made")
        assert {each["value"] for each in world.quarantined()} == {None}
        verdict = prove(world)
        assert verdict.holds, verdict.differences
        world.send(row(NUMBER, "another life", at=1))
        world.run()
        assert [each["name"] for each in world.rows() if each["id"] == NUMBER] == ["another life"]


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        pytest.param(
            {"schema": COLUMNS.replace("id INT", "id STRING"), "types": {"id": "lenient"}},
            "and id has changed since",
            id="type",
        ),
        pytest.param({"select": {"id": "id + 1"}}, "and id has changed since", id="computed"),
    ],
)
def test_a_rebuild_by_other_keys_is_refused_behind_an_erase(
    world: World, declared: dict[str, Any], problem: str
) -> None:
    """A new table would not recognise the records of the key, and bring them back."""
    erased(world)
    world.declare(**declared)

    with pytest.raises(RefusedError, match=f"{problem}.*oncelake reset"):
        world.rebuild()
    if "select" in declared:
        for again in (world.replay, world.redrive):
            with pytest.raises(RefusedError, match=f"{problem}.*oncelake reset"):
                again()


def test_a_rebuild_waits_for_the_end_of_an_erase(world: World) -> None:
    """The old tables, which go into the archive, still hold the key."""
    with crashing_at(Failpoint.SIDES_CLEARED), pytest.raises(PlannedError):
        erased(world)

    with pytest.raises(RefusedError, match=r"cut short.*the same oncelake erase again"):
        world.rebuild()


def test_waiting_records_of_partial_updates_are_applied_by_a_rebuild_behind_an_erase(
    settings: Settings, session: SparkSession
) -> None:
    """The redrive names the rebuild, and that goes through while Kafka has all records."""
    with World.made(settings, session) as world:
        world.declare(schema=COLUMNS.replace("at INT NOT", "at TINYINT NOT"))
        world.declare(ignore_null_updates=True)
        world.send(row(NUMBER, PERSON, at=1), row(1, "a", at=1), {"id": 1, "name": "b", "at": 300})
        world.run()
        erased(world)
        with pytest.raises(RefusedError, match=f"oncelake rebuild {world.topic}"):
            world.redrive()

        world.declare(schema=COLUMNS)
        world.rebuild()

        assert [(each["id"], each["name"]) for each in world.rows()] == [(1, "b")]
        assert prove(world).differences == ()


@pytest.mark.parametrize("place", [None, Failpoint.DECIDED])
def test_a_rebuild_under_way_does_not_bring_a_key_back(
    world: World, place: Failpoint | None
) -> None:
    """A key that is erased while the new table is filled is not in the table that takes over."""
    dying = crashing_at(place) if place else nullcontext()

    def erase_meanwhile(_: int) -> SparkSession:
        with dying, suppress(PlannedError):
            erased(world)
        return world.spark

    with pytest.raises(RefusedError, match="a key of it erased, while the new one was made"):
        world.rebuild(spark=erase_meanwhile)

    erased(world)
    assert traces(world) == []
    assert prove(world).differences == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_what_a_rebuild_began_with_does_not_bring_a_key_back(
    settings: Settings, session: SparkSession
) -> None:
    """A new table that was filled before the erase is not taken up again, even past retention."""
    stopped = threading.Event()
    with World.made(settings, session) as world:
        history_of_a_person(world)
        world.rebuild(on_batch=lambda row, lag: stopped.set(), stop=stopped)
        assert any("/.rebuild/" in file for file in traces(world))

        erased(world)
        world.forget_before(0, 10)
        world.rebuild(without_lost=True)

        archive = str(world.paths.archive)
        assert [file for file in traces(world) if not file.startswith(archive)] == []


@pytest.mark.parametrize(
    "place", [Failpoint.SIDES_CLEARED, *twins(Failpoint.DECIDED, Failpoint.VACUUMED)]
)
def test_an_erase_that_dies_is_said_until_it_is_done(world: World, place: Failpoint) -> None:
    """The next run says that it was cut short; the same command ends it."""
    with crashing_at(place), pytest.raises(PlannedError):
        erased(world)
    notices = world.run().notices

    erased(world)

    assert any("was cut short" in notice for notice in notices)
    assert traces(world) == []
    assert world.run().notices == ()
    assert prove(world).differences == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_ledger_that_is_lost_after_an_erase_comes_back_from_its_copy(world: World) -> None:
    """The log before the erase is gone; until the next run writes it, nothing can be proven."""
    erased(world)
    before = world.ledger
    shutil.rmtree(world.paths.ledger)
    with pytest.raises(TerminalError, match=f"ledger ends before.*oncelake run {world.topic}"):
        prove(world)

    report = world.run()

    assert world.ledger[: len(before)] == before
    assert [each for each in report.notices if "had lost seq 1 to 4: restored from" in each]
    assert world.run().notices == ()
    assert prove(world).differences == ()


@pytest.mark.parametrize("has_table", [True, False], ids=["a table", "no table yet"])
def test_what_a_dead_run_left_is_erased_too(
    settings: Settings, spark: SparkSession, has_table: bool
) -> None:
    """No log names its files, which may hold the key: they go, and the next run reads on."""
    with World.made(settings, spark) as world:
        world.declare(schema=COLUMNS, sequence_by=["at"])
        world.send(row(NUMBER, PERSON, at=1), *[b"garbage"] * has_table)
        world.run()
        world.send({"id": NUMBER, "name": PERSON}, row(2, "b", at=1))
        with crashing_at(Failpoint.PREPARED), pytest.raises(PlannedError):
            world.run()
        (left,) = set(world.paths.quarantine.path.glob("*.parquet")) - files_in_log(world)

        certificate = erased(world)

        assert not left.exists()
        assert certificate.row.counts["erased_quarantined"] == 0
        world.run()
        assert [each["_offset"] for each in world.quarantined()] == [1] * has_table + [
            1 + has_table
        ]
        assert prove(world).differences == ()


def files_in_log(world: World) -> set[Path]:
    """Return the files that the log of the quarantine names, if it has one."""
    path = world.paths.quarantine.path
    if not DeltaTable.is_deltatable(str(path)):
        return set()
    return {
        path / name for name in DeltaTable(path).get_add_actions(flatten=True)["path"].to_pylist()
    }


def test_what_nothing_tells_of_any_more_is_said(world: World) -> None:
    """Ledger and copy are lost: run, status, doctor and proof name the batches, and a remedy."""
    erased(world)
    world.send(row(3, "later", at=1))
    world.run()
    shutil.rmtree(world.paths.ledger)
    world.paths.ledger_copy.path.unlink()

    notices = world.run().notices
    declared = DeclaredStream(name=world.topic, path=Path("x"), spec=world.spec, error=None)
    status = StatusReader(world.settings).read_status(declared)
    findings = list(examine_leftovers(world.topic, world.paths))
    verdict = prove(world)

    remedy = f"oncelake rebuild {world.topic}"
    assert [each for each in notices if "has seq 1 to 3" in each and remedy in each]
    assert status.unknown == (1, 2, 3)
    assert [(each.evidence, remedy in each.command) for each in findings] == [("seq 1 to 3", True)]
    assert [str(each).partition(",")[0] for each in verdict.differences] == [
        "neither ledger nor log has seq 1 to 3"
    ]
    assert any("no known batch has read" in each for each in verdict.limits)


@pytest.mark.parametrize(
    ("declared", "engine"),
    [
        pytest.param({"mode": "scd2", "sequence_by": ["_timestamp"]}, "local", id="scd2"),
        *twins(
            pytest.param(
                {"mode": "scd2", "sequence_by": ["_timestamp"]}, "spark", id="scd2 by Spark"
            ),
            pytest.param({"deletes": "soft"}, "local", id="soft"),
            pytest.param({"mode": "append", "keys": [], "sequence_by": []}, "local", id="append"),
        ),
    ],
)
def test_other_modes_forget_as_well(
    settings: Settings, session: SparkSession, declared: dict[str, Any], engine: str
) -> None:
    """Every version and every record goes; a replay brings none back."""
    chosen = settings.model_copy(update={"merge_engine": engine})
    with World.made(chosen, session) as world:
        _forgets_as_well(world, declared)


def _forgets_as_well(world: World, declared: dict[str, Any]) -> None:
    deletes = {} if declared.get("mode") == "append" else {"apply_as_deletes": "at = 3"}
    world.declare(schema=COLUMNS, **{"sequence_by": ["at"], **deletes, **declared})
    world.send(row(NUMBER, PERSON, at=1), row(1, "a", at=1), {"id": NUMBER, "name": PERSON})
    world.send(row(NUMBER, f"{PERSON}, Countess", at=2), row(NUMBER, PERSON, at=3), b"garbage")
    world.send(row(NUMBER, f"{PERSON} again", at=4), row(2, "b", at=2))
    world.run()
    assert traces(world)

    erased(world)
    world.replay()

    assert traces(world) == []
    assert prove(world).differences == ()


@pytest.mark.parametrize(
    ("engine", "type_", "key", "bad_key", "other"),
    [
        pytest.param("local", "DECIMAL(12, 2)", 42, "42.00", 43, id="d"),
        *twins(
            pytest.param("local", "TIMESTAMP", *MOMENTS[:1] * 2, MOMENTS[1], id="t"),
            pytest.param("local", "BINARY", "YWRh", "YWRh", "Ym9i", id="bytes in base64"),
            pytest.param("spark", "TIMESTAMP", *MOMENTS[:1] * 2, MOMENTS[1], id="st"),
            pytest.param("spark", "DATE", "2026-01-01", "2026-01-01", "2026-01-02", id="sd"),
            pytest.param("local", "BIGINT", 42, "42", 43, id="a number written as text"),
            pytest.param("local", "STRING", "42", 42, "43", id="a text written as number"),
        ),
    ],
)
def test_keys_of_every_type_are_recognised(
    settings: Settings,
    session: SparkSession,
    engine: str,
    type_: str,
    key: Any,
    bad_key: Any,
    other: Any,
) -> None:
    """In table, quarantine and what is read again, by both engines."""
    chosen = settings.model_copy(update={"merge_engine": engine})
    with World.made(chosen, session) as world:
        world.declare(schema=f"id {type_} NOT NULL, name STRING NOT NULL")
        world.send(
            {"id": key, "name": PERSON}, {"id": other, "name": "b"}, {"id": bad_key, "x": PERSON}
        )
        world.run()

        done = erased(world, json.dumps({"id": key}))
        replayed = world.replay()

        assert (done.unreadable, done.row.counts["erased_quarantined"]) == (0, 1)
        assert replayed.total("filtered") == 1
        assert [each["name"] for each in world.rows()] == ["b"]
        assert PERSON not in repr(world.quarantined())
        assert prove(world).differences == ()


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_an_element_of_a_record_is_left_out_alone(
    settings: Settings, session: SparkSession
) -> None:
    """Where records are exploded, the key may be any of their elements."""
    with World.made(settings, session) as world:
        world.declare(
            schema="tag STRING NOT NULL",
            value_schema="tag ARRAY<STRING>",
            explode="tag",
            keys=["tag"],
        )
        world.send({"tag": ["other", "ada"]})
        world.run()
        erased(world, json.dumps({"tag": "ada"}))

        world.replay()

        assert [each["tag"] for each in world.rows()] == ["other"]
        assert prove(world).differences == ()


def test_a_delete_after_an_erase_that_died_is_remembered(world: World) -> None:
    """What heals an erase forgets the deletes before it, and none that came since."""
    with crashing_at(Failpoint.DECIDED), pytest.raises(PlannedError):
        erased(world)
    world.run()
    world.send(row(NUMBER, "gone", at=3))
    world.run()

    assert world.run().lag == 0
    remembered = DeltaTable(world.paths.tombstones.path).to_pyarrow_table(columns=["id"])
    assert NUMBER in remembered["id"].to_pylist()
    erased(world)
    assert world.run().notices == ()
    assert prove(world).differences == ()


@pytest.mark.parametrize(
    ("record", "kafka_key", "kept"),
    [
        pytest.param({"id": 7, "name": "other"}, str(NUMBER), True, id="says another key"),
        pytest.param(b"garbage", str(NUMBER), False, id="says nothing"),
    ],
)
def test_a_bad_record_is_erased_by_what_it_says(
    settings: Settings, session: SparkSession, record: Any, kafka_key: str, kept: bool
) -> None:
    """A Kafka key is the row's only where the record itself says none."""
    with World.made(settings, session) as world:
        world.declare(schema=COLUMNS, sequence_by=["_timestamp"])
        value = json.dumps(record).encode() if isinstance(record, dict) else record
        world.producer.produce(world.topic, value=value, key=kafka_key, partition=0)
        world.send(row(NUMBER, PERSON, at=1))
        world.run()

        erased(world)

        assert [each["value"] == value for each in world.quarantined()] == [kept]


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_computed_key_is_not_what_a_record_says(
    settings: Settings, session: SparkSession
) -> None:
    """Under its name a bad record may hold another value: it stays, and is counted."""
    with World.made(settings, session) as world:
        world.declare(
            schema=COLUMNS,
            value_schema="id INT, name STRING, at INT",
            select={"id": "id + 1000"},
            tombstones="quarantine",
        )
        world.send({"id": 42, "name": "other", "at": "never"}, row(1, "a", at=1))
        world.run()

        done = erased(world, json.dumps({"id": 42}))

        assert (done.unreadable, done.row.counts["erased_quarantined"]) == (1, 0)
        assert [each["removed"] for each in world.quarantined()] == [None]


def test_the_reason_of_a_bad_record_may_quote_the_person(
    settings: Settings, session: SparkSession
) -> None:
    """What is written beside the record goes with it."""
    with World.made(settings, session) as world:
        world.declare(schema=COLUMNS, format="debezium")
        bad, good = row(NUMBER, "a", at=1) | {"at": PERSON}, row(1, "a", at=1)
        world.send(*({"op": "c", "before": None, "after": each} for each in (bad, good)))
        world.run()
        assert PERSON in world.quarantined()[0]["detail"]

        erased(world)

        assert traces(world) == []
        assert prove(world).differences == ()


def test_a_file_that_is_dated_in_the_future_goes_as_well(world: World) -> None:
    """The clock that wrote it may have been another: none is asked."""
    file = next(file for file in traces(world) if file.endswith(".parquet"))
    copy = shutil.copy(file, f"{file}.parquet")
    os.utime(copy, (2**32, 2**32))

    erased(world)

    assert traces(world) == []
    assert not Path(copy).exists()


def test_what_a_killed_run_has_left_beside_the_lake_goes_as_well(world: World) -> None:
    """Its batches lie there as they came; whose process lives on stays."""
    mine = scratch_of_this_process(world.settings.state)
    dead = mine.with_name(f"{mine.name.rpartition('-')[0]}-1000")
    for folder in (dead, mine):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "batch.arrow").write_text(PERSON)

    erased(world)

    assert (dead.exists(), (mine / "batch.arrow").exists()) == (False, True)


def test_an_erase_that_slept_takes_nothing_from_its_successor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its commit, files that are new may be of one that is about to name them."""
    shutil.rmtree(world.paths.tombstones.path)
    folders = (world.paths.data, world.paths.quarantine, world.paths.tombstones)
    of_successor = [(folder / "successor.parquet").path for folder in folders]

    def write(place: Failpoint) -> None:
        for file in of_successor if place == Failpoint.SIDES_CLEARED else ():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(b"rows of a batch to come")

    monkeypatch.setattr(erase_module, "hit", write)

    assert erased(world).row.counts["erased_files"] > 3

    assert all(file.exists() for file in of_successor)


def test_an_erase_under_way_is_no_difference(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof holds at every step of it, also once the version before it is gone."""
    verdicts = []

    def drop_and_prove(path: Path, version: int) -> None:
        drop_log_before(Location.of(path), version)
        verdicts.append(prove(world))

    monkeypatch.setattr(vacuum, "drop_log_before", drop_and_prove)
    erased(world)

    assert [verdict.differences for verdict in verdicts] == [(), (), ()]


@pytest.mark.kafka
@pytest.mark.spark
@only_long
def test_a_stream_goes_back_to_its_erase(settings: Settings, session: SparkSession) -> None:
    """The version that an erase left is a savepoint like any other."""
    with World.made(settings, session) as world:
        history_of_a_person(world)
        seq, after = erased(world).row.seq, world.rows()
        world.send(row(3, "c", at=9))
        world.run()

        rewind(world.spec, world.settings, to=f"seq:{seq}", reason="a test", run_id="r")

        assert world.rows() == after
        assert world.run().total("inserted") == 1
        assert prove(world).differences == ()


def test_a_lost_delete_is_refused_behind_an_erase_that_died(world: World) -> None:
    """What heals the erase cannot read the deletes; whoever needs them says so, and the remedy."""
    with crashing_at(Failpoint.DECIDED), pytest.raises(PlannedError):
        erased(world)
    for file in world.paths.tombstones.path.glob("*.parquet"):
        file.unlink()

    with pytest.raises(DamagedTableError, match="tombstones"):
        world.run()
    accept(world.spec, world.settings, reason="a test", run_id="r")
    erased(world)

    assert traces(world) == []


def test_what_was_erased_stays_so_in_another_epoch(
    settings: Settings, session: SparkSession
) -> None:
    """A record that could not be read when its key was erased is left out for ever."""
    with World.made(settings, session) as world:
        world.declare(schema=COLUMNS)
        world.send({"id": NUMBER, "name": PERSON, "at": "3"}, row(1, "a", at=1))
        world.run()
        world.delete_topic()
        world.create_topic()
        world.send(row(2, "b", at=2))
        adopt_topic(world.spec, world.settings, run_id="r", reason="a test")
        world.run()
        # Nothing could be read of it then.
        with pytest.MonkeyPatch.context() as unreadable:
            unreadable.setattr(erase_module, "is_of_key", lambda *_, **raw: None)
            done = erased(world)
        world.declare(types={"at": "lenient"})

        report = world.redrive()

        assert done.unreadable == 1
        assert report.redriven == 1
        assert [each["id"] for each in world.rows()] == [1, 2]
        assert PERSON not in repr(world.quarantined())


def test_an_erase_means_the_offsets_of_its_epoch(settings: Settings, session: SparkSession) -> None:
    """Where another topic took over, the same offsets hold other records: they are no ghosts."""
    with World.made(settings, session) as world:
        world.declare(schema=COLUMNS)
        world.send(row(NUMBER, PERSON, at=1), row(1, "a", at=1))
        world.run()
        erased(world)
        world.delete_topic()
        world.create_topic()
        world.send(row(NUMBER, "another life", at=2))
        adopt_topic(world.spec, world.settings, run_id="r", reason="a test")
        world.run()

        assert world.replay().total("unchanged") == 1
        assert prove(world).differences == ()


def test_an_erase_ends_no_other(world: World) -> None:
    """A key whose erase died is said until its own erase is done again."""
    with crashing_at(Failpoint.DECIDED), pytest.raises(PlannedError):
        erased(world)
    erased(world, json.dumps({"id": 1}))

    assert any("was cut short" in notice for notice in world.run().notices)
    erased(world)
    assert world.run().notices == ()


def test_what_a_rewind_will_read_again_comes_first(world: World) -> None:
    """An erase between a rewind and the next run would leave the key's records to that run."""
    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")

    with pytest.raises(RefusedError, match="will be read again"):
        erased(world)
    world.run()
    erased(world)
    assert NUMBER not in {each["id"] for each in world.rows()}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        pytest.param("42", "is no JSON object", id="bare"),
        pytest.param('{"id": "42"}', "id: expected INT", id="type"),
    ],
)
def test_a_key_that_is_none_is_refused(world: World, key: str, message: str) -> None:
    """Before anything is changed."""
    version = DeltaTable(world.paths.data.path).version()

    with pytest.raises(InvalidSpecError, match=message):
        erased(world, key)
    assert DeltaTable(world.paths.data.path).version() == version


def test_a_group_cannot_be_taken_apart(world: World) -> None:
    """An aggregate is refused, with another way."""
    world.declare(
        mode="aggregate", aggregates={"n": "count(*)"}, apply_as_deletes=None, sequence_by=[]
    )

    with pytest.raises(RefusedError, match="folds records of many keys"):
        erased(world)


def test_an_erase_from_a_shell(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks first; the certificate says what is left elsewhere, and stays in the ledger."""
    world.set_environment(monkeypatch)
    command = ["erase", world.topic, "--key", json.dumps({"id": NUMBER}), "--reason", "a request"]

    unasked = CliRunner().invoke(app, command)
    done = CliRunner().invoke(app, [*command, "--yes"])

    assert (unasked.exit_code, "cannot be undone" in unasked.stderr) == (2, True)
    assert done.exit_code == 0
    assert "erased (seq 4" in done.stdout
    assert "1 row of the table" in done.stdout
    assert f"Kafka still holds {world.topic}-0 [0, 10), which the table has read" in done.stdout
    last = Ledger(world.paths.ledger).rows()[-1]
    assert (last.kind, last.accepted, last.is_red) == ("erase", "a request", False)
    assert DeltaTable(world.paths.data.path).version() == last.delta_version


def test_an_erase_of_a_key_that_never_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that nothing of it was found, and of Kafka only what can be known."""
    world.set_environment(monkeypatch)
    command = ["erase", world.topic, "--key", '{"id": 7}', "--reason", "a request", "--yes"]

    done = CliRunner().invoke(app, command)

    assert done.exit_code == 0
    assert "nothing of the key was found" in done.stdout
    assert "0 rows of the table" in done.stdout
    assert "records of the key may be among them" in done.stdout
