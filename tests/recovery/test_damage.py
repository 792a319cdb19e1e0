"""Tables whose files are damaged, older, altered or gone: each heals exactly, or is refused.

One stream is ingested once; each test damages a copy of its lake. No Spark may be asked for: what
is refused here is refused before anything could be written.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.delta import description
from oncelake.ingestion.delta.files import is_delta
from oncelake.ingestion.errors import (
    DamagedTableError,
    ForeignTableError,
    IngestionError,
    InvalidSpecError,
    OffsetsUnknownError,
    SideTableIncompleteError,
    TableAlteredError,
    TableReplacedError,
    TableRestoredError,
    TableRolledBackError,
    TableSettingsError,
    TopicRecreatedError,
)
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.operations.decisions import accept, adopt_topic, reset
from oncelake.ingestion.operations.history.rewind import read_history
from oncelake.ingestion.operations.quarantine.inspect import inspect
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.recovery.position import read_position
from tests.support.damage import (
    DAMAGES,
    checkpoint,
    data_file,
    do,
    forget_commits,
    last_checkpoint,
    newest_commit,
    oldest_commit,
    second_newest_commit,
)
from tests.support.long import twins
from tests.support.world import World, row

BATCHES = 6
OTHERS = tuple(each for each in DAMAGES if each not in {"missing", "garbage"})


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """A stream of six batches, with a checkpoint in its log, bad records and deletes."""
    module_world.declare(max_offsets_per_trigger=3)
    for number in range(BATCHES - 1):
        module_world.send(row(number, "a"), b"bad")
        module_world.send(None, id=number - 1)
    with pytest.MonkeyPatch.context() as patch:
        # Nobody has time for ten commits; the newest two come behind it.
        patch.setattr(description, "CHECKPOINT_INTERVAL", 5)
        module_world.run()
    shutil.copytree(module_world.settings.lake, module_world.settings.lake.with_name("older"))
    module_world.send(row(99, "newest"), b"bad")
    module_world.send(None, id=0)
    module_world.run()
    assert [each.seq for each in module_world.ledger] == list(range(1, BATCHES + 1))
    return module_world


@pytest.fixture
def copied(ingested: World, tmp_path: Path) -> World:
    """The stream, with a lake of the test's own."""
    return ingested.copied_to(tmp_path / "lake", state=tmp_path / "state")


def run(world: World) -> RunReport:
    """Run the stream, and fail when it asks for Spark."""

    def no_spark(backlog: int) -> NoReturn:
        pytest.fail("the run went on to Spark")

    return world.run(spark=no_spark)


def assert_refused(world: World, error: type[IngestionError], *said: str) -> None:
    """Make sure that a run is refused, says these words and a command, and changes no table."""
    before = _files(world.settings.lake)

    with pytest.raises(error) as refusal:
        run(world)

    for words in said:
        assert words in str(refusal.value)
    assert "Next: " in str(refusal.value)
    assert refusal.value.exit_code == 3
    assert _files(world.settings.lake) == before


def _files(lake: Path) -> dict[str, bytes]:
    return {
        str(at.relative_to(lake)): at.read_bytes()
        for at in lake.rglob("*")
        if at.is_file() and ".locks" not in at.parts
    }


def test_a_sound_table_is_not_refused(copied: World) -> None:
    """The copy that all the other tests damage is itself in order."""
    report = run(copied)

    assert (report.seq, report.lag, report.notices) == (BATCHES, 0, ())


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "file", [newest_commit, second_newest_commit, checkpoint], ids=lambda file: file.__name__
)
def test_a_damaged_log_is_refused(copied: World, file: object, damage: str) -> None:
    """Whatever readers of the newest version rest on is refused, named, when it is damaged."""
    assert callable(file)
    damaged = file(copied.paths.data)
    do(damage, damaged)

    is_hinted = (file, damage) == (checkpoint, "missing")
    named = "_last_checkpoint hint" if is_hinted else damaged.name.split(".")[0]
    assert_refused(copied, DamagedTableError, named, f"oncelake reset {copied.topic}")
    assert reset(copied.topic, copied.settings, run_id="r").archived
    assert not is_delta(copied.paths.data)


@pytest.mark.parametrize("file", [second_newest_commit, checkpoint], ids=lambda file: file.__name__)
def test_who_only_looks_is_told_of_a_damaged_log(copied: World, file: object) -> None:
    """History and quarantine rest on the data table's log, and name what is wrong with it."""
    assert callable(file)
    damaged = file(copied.paths.data)
    do("truncated", damaged)

    for look in (
        lambda: read_history(copied.paths),
        lambda: inspect(copied.topic, copied.paths),
    ):
        with pytest.raises(DamagedTableError, match=damaged.name.split(".")[0]):
            look()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", [last_checkpoint, oldest_commit], ids=lambda file: file.__name__)
def test_damage_to_what_nobody_reads_changes_nothing(
    copied: World, file: object, damage: str
) -> None:
    """The pointer to the checkpoint is a hint, and commits behind a checkpoint are history."""
    assert callable(file)
    do(damage, file(copied.paths.data))

    report = run(copied)

    assert (report.seq, report.lag, report.row_count) == (BATCHES, 0, 2)


@pytest.mark.parametrize("damage", ["missing", "garbage", *twins("zero-length", "truncated")])
@pytest.mark.parametrize("table", ["data", "quarantine", "tombstones"])
def test_a_damaged_data_file_is_refused(copied: World, table: str, damage: str) -> None:
    """A file that a MERGE might never open is missed at the start, by its name and size."""
    path = getattr(copied.paths, table)
    lost = data_file(path)
    do(damage, lost)

    assert_refused(copied, DamagedTableError, str(path), lost.name)


@pytest.mark.parametrize("damage", ["missing", "garbage", *twins(*OTHERS)])
@pytest.mark.parametrize("table", ["quarantine", "tombstones"])
def test_a_damaged_side_table_is_refused_until_accepted(
    copied: World, table: str, damage: str
) -> None:
    """What cannot be made again is given up only in writing, and kept in the archive."""
    path = getattr(copied.paths, table)
    do(damage, newest_commit(path))

    assert_refused(copied, DamagedTableError, str(path), f"oncelake accept {copied.topic}")
    decision = accept(copied.spec, copied.settings, reason="no backup", run_id="me")
    run(copied)

    assert decision.counts[f"{table}_written_off"] == BATCHES
    assert not path.exists()
    (archived,) = copied.paths.archive.path.glob(f"*/{path.name}")
    assert data_file_names(archived)


def data_file_names(table: Path) -> list[str]:
    """Return the names of the data files that lie in a table's folder."""
    return sorted(at.name for at in table.glob("*.parquet"))


@pytest.mark.parametrize("came_back", [None, "older"])
@pytest.mark.parametrize("table", ["quarantine", "tombstones"])
def test_a_side_table_that_lost_rows_is_refused(
    copied: World, ingested: World, table: str, came_back: str | None
) -> None:
    """A quarantine, or a memory of deletes, that is gone or older than the table is refused."""
    path = getattr(copied.paths, table)
    shutil.rmtree(path)
    if came_back:
        shutil.copytree(ingested.settings.lake.with_name(came_back) / path.name, path)

    assert_refused(
        copied, SideTableIncompleteError, f"holds 0 rows of batch {BATCHES}, which wrote 1"
    )


def test_a_table_whose_newest_commit_is_gone_without_a_trace_is_refused(copied: World) -> None:
    """The ledger knows a later seq: it is not given to other records."""
    newest = f"{DeltaTable(copied.paths.data.path).version():020d}"
    for trace in (copied.paths.data.path / "_delta_log").glob(f"*{newest}*"):
        trace.unlink()

    assert_refused(copied, TableRolledBackError, f"seq {BATCHES - 1}", f"seq {BATCHES} ")


def test_an_older_copy_of_the_table_is_refused(copied: World, ingested: World) -> None:
    """A backup that was copied back leaves no RESTORE in the log, and is noticed all the same."""
    shutil.rmtree(copied.paths.data)
    older = ingested.settings.lake.with_name("older") / copied.topic
    shutil.copytree(older, copied.paths.data)

    assert_refused(copied, TableRolledBackError, "older copy", f"oncelake reset {copied.topic}")


def test_an_older_copy_of_the_ledger_is_healed(copied: World, ingested: World) -> None:
    """What the ledger forgot is written again from the commits."""
    before = copied.ledger
    shutil.rmtree(copied.paths.ledger)
    older = ingested.settings.lake.with_name("older") / copied.paths.ledger.name
    shutil.copytree(older, copied.paths.ledger)

    report = run(copied)

    assert [each.seq for each in report.recovered] == [BATCHES]
    assert [(r.seq, r.ranges, r.balanced, r.identity) for r in copied.ledger] == [
        (r.seq, r.ranges, r.balanced, r.identity) for r in before
    ]


@pytest.mark.parametrize("damage", ["missing", "garbage", *twins("zero-length", "truncated")])
@pytest.mark.parametrize("file", [data_file, second_newest_commit], ids=lambda file: file.__name__)
def test_a_damaged_ledger_is_made_again(copied: World, file: object, damage: str) -> None:
    """It is a projection: the damaged one is kept in the archive, and the commits say the rest."""
    assert callable(file)
    before = copied.ledger
    do(damage, file(copied.paths.ledger))

    report = run(copied)

    (archived,) = copied.paths.archive.path.glob(f"*/{copied.paths.ledger.name}")
    assert f"{archived}, and rebuilt from the commits" in report.notices[0]
    assert f"seq 1 to {BATCHES}" in report.notices[0]
    assert [(r.seq, r.ranges, r.balanced, r.counts["quarantined"]) for r in copied.ledger] == [
        (r.seq, r.ranges, r.balanced, r.counts["quarantined"]) for r in before
    ]
    assert run(copied).notices == ()


def test_a_ledger_that_lost_its_log_is_made_again(copied: World) -> None:
    """Data files without a log are no ledger that was never written."""
    shutil.rmtree(copied.paths.ledger / "_delta_log")

    report = run(copied)

    assert "its _delta_log is gone" in report.notices[0]
    assert len(copied.ledger) == BATCHES


def test_a_hole_in_the_ledger_is_filled(copied: World) -> None:
    """A row that somebody deleted comes back from its commit."""
    DeltaTable(copied.paths.ledger.path).delete("seq = 3")

    report = run(copied)

    assert [each.seq for each in report.recovered] == [3]
    assert [each.seq for each in copied.ledger] == list(range(1, BATCHES + 1))


@pytest.mark.parametrize("ledger", ["sound", "damaged"])
def test_a_table_that_is_gone_is_never_an_empty_one(copied: World, ledger: str) -> None:
    """Its ledger is the last trace, readable or not, and stays where it is."""
    shutil.rmtree(copied.paths.data)
    if ledger == "damaged":
        do("garbage", newest_commit(copied.paths.ledger))

    assert_refused(copied, TableReplacedError, "is gone", f"oncelake reset {copied.topic}")


def test_files_without_a_log_are_never_an_empty_table(copied: World) -> None:
    """Neither log nor ledger is left: the files are somebody's, and are not written beside."""
    shutil.rmtree(copied.paths.ledger)
    shutil.rmtree(copied.paths.data / "_delta_log")

    assert_refused(copied, ForeignTableError, "no Delta log")


def test_a_table_that_was_away_goes_on(copied: World) -> None:
    """A folder that was renamed is missed, and is itself again when it is back."""
    away = copied.paths.data.with_name("away")
    copied.paths.data.path.rename(away)
    assert_refused(copied, TableReplacedError, "is gone")
    away.path.rename(copied.paths.data)

    assert run(copied).seq == BATCHES


def _append(world: World, count: int) -> None:
    like = DeltaTable(world.paths.data.path).to_pyarrow_table().slice(0, count)
    write_deltalake(world.paths.data.path, like, mode="append")


def _delete(world: World) -> None:
    DeltaTable(world.paths.data.path).delete("id = 99")


def _restore(world: World) -> None:
    DeltaTable(world.paths.data.path).restore(DeltaTable(world.paths.data.path).version() - 1)


@pytest.mark.parametrize(
    ("alter", "error", "said"),
    [
        (lambda world: _append(world, 1), TableAlteredError, "WRITE"),
        (_delete, TableAlteredError, "DELETE"),
        (_restore, TableRestoredError, "restored"),
    ],
    ids=["append", "delete", "restore"],
)
def test_rows_changed_by_somebody_else_are_refused_until_accepted(
    copied: World, alter: object, error: type[IngestionError], said: str
) -> None:
    """The table is no longer what the topic says; a person takes that upon themselves, once."""
    assert callable(alter)
    alter(copied)

    undo = f"oncelake rewind {copied.topic} --to seq:{BATCHES} --reason '…' --yes"
    assert_refused(copied, error, said, undo, f"oncelake accept {copied.topic}")
    decision = accept(copied.spec, copied.settings, reason="asked for", run_id="me")

    assert decision.counts["altered"] == 1
    assert run(copied).seq == BATCHES + 1


def test_upkeep_by_somebody_else_changes_nothing(copied: World) -> None:
    """OPTIMIZE, VACUUM and an empty write leave the rows as they are."""
    DeltaTable(copied.paths.data.path).optimize.compact()
    DeltaTable(copied.paths.data.path).vacuum(dry_run=False)
    _append(copied, 0)

    assert run(copied).seq == BATCHES


def test_nothing_altered_is_nothing_to_accept(copied: World) -> None:
    """A word without a cause is not written down."""
    with pytest.raises(InvalidSpecError, match="nothing to accept"):
        accept(copied.spec, copied.settings, reason="why not", run_id="me")


@pytest.mark.parametrize(
    ("name", "value"),
    [("delta.setTransactionRetentionDuration", "interval 1 days"), ("delta.appendOnly", "true")],
)
def test_a_property_that_breaks_the_promise_is_refused(
    copied: World, name: str, value: str
) -> None:
    """The transaction id must not expire, and an upsert must be able to update."""
    DeltaTable(copied.paths.data.path).alter.set_table_properties({name: value})

    assert_refused(copied, TableSettingsError, name, "UNSET TBLPROPERTIES")


@pytest.mark.parametrize(
    ("feature", "properties"),
    [
        pytest.param(
            "columnMapping",
            {
                "delta.columnMapping.mode": "name",
                "delta.minReaderVersion": "2",
                "delta.minWriterVersion": "5",
            },
            id="column mapping",
        ),
        *twins(
            pytest.param(
                "deletionVectors",
                {"delta.enableDeletionVectors": "true"},
                id="deletion vectors",
            )
        ),
    ],
)
@pytest.mark.spark
def test_a_feature_that_the_audit_cannot_read_is_refused(
    world: World, feature: str, properties: dict[str, str]
) -> None:
    """An upgrade of the table's protocol is named, not met in the middle of a batch."""
    world.send(row(1, "a"))
    world.run()
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    world.spark.sql(f"ALTER TABLE delta.`{world.paths.data}` SET TBLPROPERTIES ({listed})")

    assert_refused(world, TableSettingsError, feature, "DROP FEATURE")


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "another's"])
def test_a_table_that_its_catalog_manages_is_refused(world: World, is_ours: bool) -> None:
    """By the name of the feature and with the reason; it is not called damaged."""
    world.send(row(1, "a"))
    if is_ours:
        world.run()
    else:
        write_deltalake(str(world.paths.data), pa.table({"id": [1]}))
    log = world.paths.data / "_delta_log"
    newest = sorted(name for name in log.files() if name.endswith(".json"))[-1]
    features = ["catalogManaged"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
    action = {"protocol": {**protocol, "writerFeatures": [*features, "inCommitTimestamp"]}}
    version = int(newest.partition(".")[0]) + 1
    (log / f"{version:020}.json").put(json.dumps(action).encode())

    with pytest.raises(TableSettingsError, match="has the feature catalogManaged") as refused:
        world.run()

    assert "its catalog decides which commits it has" in str(refused.value)
    assert (log / f"{version + 1:020}.json").exists() is False


def _age(world: World) -> None:
    """Let our commits age out, behind somebody's empty one."""
    _append(world, 0)
    forget_commits(world.paths.data)


def test_the_ledger_remembers_what_has_aged_out(copied: World) -> None:
    """Offsets, epoch and identity come from the ledger once the log has forgotten them."""
    known = read_position(copied.paths)
    _age(copied)

    found = read_position(copied.paths)

    assert known is not None
    assert found == replace(known, columns="", source="ledger")


def test_a_recreated_topic_is_noticed_from_the_ledger_too(copied: World) -> None:
    """An idle stream keeps its topic's id beyond the age of its commits."""
    _age(copied)
    last = copied.ledger[-1]
    identity = replace(last.identity, topic_ids={copied.topic: "another"})
    Ledger(copied.paths.ledger).put(replace(last, identity=identity))

    assert_refused(copied, TopicRecreatedError, "another")


@pytest.mark.parametrize("ledger", ["gone", "older"])
def test_offsets_that_nobody_remembers_are_not_guessed(
    copied: World, ingested: World, ledger: str
) -> None:
    """Without commits and ledger, the topic is read again in a new epoch, by a person's word."""
    _age(copied)
    shutil.rmtree(copied.paths.ledger)
    if ledger == "older":
        older = ingested.settings.lake.with_name("older") / copied.paths.ledger.name
        shutil.copytree(older, copied.paths.ledger)

    assert_refused(
        copied, OffsetsUnknownError, f"seq {BATCHES}", f"oncelake adopt-topic {copied.topic}"
    )
    adopted = adopt_topic(copied.spec, copied.settings, run_id="me")
    found = read_position(copied.paths)

    assert (adopted.seq, adopted.epoch) == (BATCHES + 1, 2)
    assert found is not None
    assert set(found.next.values()) == {0}
