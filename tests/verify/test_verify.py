"""A stream proven from its topic, and every kind of damage to its tables told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.errors import (
    DamagedTableError,
    DependencyError,
    TableBusyError,
    TableRolledBackError,
    TopicRecreatedError,
)
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.lake.lock import Holder, held_by_jvm
from oncelake.ingestion.operations.decisions import accept, adopt_topic
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.verify.verdict import Verdict
from oncelake.ingestion.verify.verify import verify
from tests.support.damage import data_file
from tests.support.faulty_sink import WITHOUT_ID_2, merging
from tests.support.long import only_long
from tests.support.world import World, row, transactional, written

COLUMNS = (
    "id INT NOT NULL, name STRING, at INT NOT NULL, price DECIMAL(9, 2), ratio FLOAT, raw BINARY, "
    "seen TIMESTAMP, day DATE, tags ARRAY<STRING>, more STRUCT<a: INT, b: MAP<STRING, DOUBLE>>"
)
RICH = {
    "price": 12.5,
    "ratio": 0.1,
    "raw": "aGk=",
    "seen": "2024-02-03T04:05:06.789+01:00",
    "day": "2024-02-29",
    "tags": ["x", None, "é"],
    "more": {"a": 1, "b": {"k": 1.5}},
}


def verdict_of(world: World) -> Verdict:
    """Prove the world's stream."""
    return verify(world.spec, world.settings)


def differences(world: World) -> list[str]:
    """Return what is wrong with the world's stream."""
    return [str(each) for each in verdict_of(world).differences]


def event(record: dict[str, Any]) -> dict[str, Any]:
    """Return the event of Debezium that says what a condition makes of a plain record."""
    at, row_ = record.get("at"), {name: value for name, value in record.items() if name != "at"}
    is_delete = record.get("name") == "gone"
    sides = {"before": row_, "after": None} if is_delete else {"before": None, "after": row_}
    return {"op": "d" if is_delete else "c", "source": {"at": at}, **sides}


def ingest(world: World, made: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Send all that can befall a record, in two partitions, in three batches.

    Rows change, go, come late and come again; transactions are committed and aborted.

    Args:
        world: The stream, declared.
        made: Makes a record's value of what it is to say.
    """

    def send(*records: dict[str, Any] | bytes, partition: int = 0) -> None:
        values = (made(each) if isinstance(each, dict) else each for each in records)
        world.send(*values, partition=partition)

    send(row(1, "a", at=1) | RICH, row(2, "b", at=1), row(3, "c", at=1), b"garbage")
    send(row(4, "late", at=9), row(4, "later", at=8), {"name": "no key", "at": 1})
    send(row(5, "e", at=1), {"id": 6, "at": "x"}, row(7, "g", at=1), partition=1)
    world.send(None, id=1)
    world.run()
    send(row(1, "old", at=0), row(2, "B", at=2), row(3, "gone", at=2), row(8, "gone", at=1))
    send(row(3, "undead", at=1), row(7, "G", at=5) | RICH, b"\xff", partition=1)
    producer = transactional(world)
    for number, end in enumerate((producer.abort_transaction, producer.commit_transaction)):
        producer.begin_transaction()
        value = json.dumps(made(row(20 + number, "in a transaction", at=1))).encode()
        producer.produce(world.topic, value, partition=1)
        producer.flush(30)
        end(30)
    world.wait_for_end(10, partition=1)
    world.run()
    send(row(7, "gone", at=6), row(9, "i", at=1))
    world.run()


@pytest.fixture(scope="module")
def ingested(module_world: World) -> World:
    """A stream that has been through everything, ingested once for all tests of this module."""
    taken = {"type": "debezium", "columns": {"at": "source.at"}}
    module_world.declare(schema=COLUMNS, sequence_by=["at"], format=taken)
    module_world.write_declaration()
    ingest(module_world, event)
    return module_world


@pytest.fixture
def damaged(ingested: World, tmp_path: Path) -> World:
    """A copy of that stream's tables, to be damaged."""
    return ingested.copied_to(tmp_path / "lake")


def test_a_sound_stream_is_proven(ingested: World) -> None:
    """Every kind of record and disposition is counted again and found as it should be."""
    _assert_proven(ingested)


@pytest.mark.kafka
@pytest.mark.spark
def test_a_sound_stream_of_rich_types_and_a_condition_is_proven(world: World) -> None:
    """Likewise where Spark evaluates what deletes, and of every type."""
    world.declare(
        schema=COLUMNS,
        sequence_by=["at"],
        apply_as_deletes="name = 'gone'",
        tombstones="ignore",
    )
    ingest(world, dict)

    _assert_proven(world)


def _assert_proven(world: World) -> None:
    verdict = verdict_of(world)
    assert (verdict.holds, verdict.limits, verdict.total) == (True, (), 0)
    assert (verdict.seq, verdict.batches, verdict.rows) == (3, 3, len(world.rows()))
    assert (verdict.records, verdict.quarantined) == (21, 4)
    counts: dict[str, int] = {}
    for each in world.ledger:
        counts |= {name: counts.get(name, 0) + n for name, n in each.counts.items()}
    assert all(counts[name] for name in _EVERY_DISPOSITION), counts


_EVERY_DISPOSITION = (
    *("gaps", "ignored", "quarantined", "superseded"),
    *("inserted", "updated", "deleted", "deleted_absent", "stale"),
)


def test_the_command_prints_and_exits_with_its_verdict(
    damaged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 0 and a sentence when it holds; exit 1 and one JSON document when it does not."""
    for name, value in damaged.environment().items():
        monkeypatch.setenv(name, value)
    sound = CliRunner().invoke(app, ["verify", damaged.topic])
    DeltaTable(damaged.paths.data.path).delete("id = 9")
    DeltaTable(damaged.paths.data.path).delete("id = 5")

    wrong = CliRunner().invoke(app, ["verify", damaged.topic, "--json", "--limit", "1"])

    assert (sound.exit_code, "proven: records 21" in sound.stdout) == (0, True), sound.output
    document = json.loads(wrong.stdout)
    assert (wrong.exit_code, document["holds"]) == (1, False)
    assert document["difference_count"] == {"total": 2, "rows": 2}
    assert [each["what"] for each in document["differences"]] == ["is missing from the table"]


def rewrite(table_at: Location, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a table's rows by what ``change`` makes of them."""
    table = DeltaTable(table_at.path)
    changed = change(pa.table(table.to_pyarrow_table()))
    write_deltalake(table, changed, mode="overwrite")


def changed(**columns: Any) -> Callable[[pa.Table], pa.Table]:
    """Return what changes columns of the row with id 2, and leaves the others."""

    def change(table: pa.Table) -> pa.Table:
        is_it = pc.equal(table["id"], 2)
        for name, value in columns.items():
            field = table.schema.field(name)
            new = pc.if_else(is_it, pa.scalar(value, field.type), table[name])
            table = table.set_column(table.schema.get_field_index(name), field, new)
        return table

    return change


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda t: t.filter(pc.not_equal(t["id"], 2)), "is missing from the table"),
        (
            lambda t: pa.concat_tables([t, t.filter(pc.equal(t["id"], 2))]),
            "is in the table more than once",
        ),
        (changed(name="x"), "column name differs: expected 'B', found 'x'"),
        (changed(price=1), "column price differs: expected None, found Decimal('1.00')"),
        (changed(_seq=1), "column _seq differs: expected 2, found 1"),
        (changed(_epoch=2), "is not the row of its newest record"),
        (changed(_offset=1), "is not the row of its newest record"),
        (changed(_timestamp=0), "column _timestamp differs"),
    ],
    ids=["deleted", "doubled", "changed", "null", "seq", "epoch", "offset", "timestamp"],
)
def test_damage_to_a_row_is_named_by_its_key(
    damaged: World, damage: Callable[[pa.Table], pa.Table], found: str
) -> None:
    """Somebody's later commit is seen, and nothing else is blamed."""
    rewrite(damaged.paths.data, damage)

    (problem,) = differences(damaged)

    assert problem.startswith("key (id=2)")
    assert found in problem


def test_a_row_of_no_batch_is_named(damaged: World) -> None:
    """Somebody has inserted it who knows nothing of our columns, so that they are null."""
    inserted = pa.table({"id": pa.array([99], pa.int32()), "at": pa.array([1], pa.int32())})
    write_deltalake(str(damaged.paths.data), inserted, mode="append", schema_mode="merge")

    [difference] = verdict_of(damaged).differences

    assert difference.key == {"id": "99"}
    assert "of no batch" in difference.what


def test_a_row_that_nobody_sent_is_named(damaged: World) -> None:
    """One row too many is told by its key."""
    rewrite(
        damaged.paths.data,
        lambda t: pa.concat_tables(
            [t, t.slice(0, 1).set_column(0, t.schema.field(0), pa.array([77], pa.int32()))]
        ),
    )

    (problem,) = differences(damaged)

    assert "key (id=77)" in problem
    assert "no record of the topic says so" in problem


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda t: t.slice(1), "belongs in quarantine"),
        (lambda t: pa.concat_tables([t, t.slice(0, 1)]), "is in quarantine more than once"),
        (
            lambda t: t.set_column(
                t.schema.get_field_index("value"),
                t.schema.field("value"),
                pa.array([b"x", *t["value"].to_pylist()[1:]]),
            ),
            "its value in quarantine is not the record's",
        ),
        (
            lambda t: t.set_column(
                t.schema.get_field_index("_offset"),
                t.schema.field("_offset"),
                pa.array([0, *t["_offset"].to_pylist()[1:]]),
            ),
            "the topic has no bad record there",
        ),
    ],
    ids=["removed", "doubled", "altered", "good one"],
)
def test_damage_to_the_quarantine_is_named(
    damaged: World, damage: Callable[[pa.Table], pa.Table], found: str
) -> None:
    """The quarantine holds exactly the bad records, raw."""
    rewrite(damaged.paths.quarantine, lambda t: damage(t.sort_by([("_partition", "descending")])))

    assert any(found in problem for problem in differences(damaged))


def changed_ledger(world: World, seq: int, **fields: Any) -> None:
    """Change a row of the ledger."""
    ledger = Ledger(world.paths.ledger)
    (batch,) = (each for each in ledger.rows() if each.seq == seq)
    ledger.put(replace(batch, **fields))


def test_a_ledger_row_that_was_removed_is_named(damaged: World) -> None:
    """A batch that the ledger forgot is told, and its records are still accounted for."""
    DeltaTable(damaged.paths.ledger.path).delete("seq = 2")

    assert [problem for problem in differences(damaged) if "after batch" not in problem] == [
        "batch 2: is not in the ledger",
        "batch 2: its commit, version 3, has no ledger row",
    ]


def test_a_ledger_range_that_was_shifted_is_named(damaged: World) -> None:
    """The commit tells the true ranges; the ledger's are told as the difference."""
    first = damaged.ledger[0].ranges[0]
    shifted = replace(first, range=replace(first.range, start=1))
    changed_ledger(damaged, 1, ranges=(shifted, *damaged.ledger[0].ranges[1:]))

    problems = differences(damaged)

    assert any("its ranges is not its commit's" in problem for problem in problems)
    assert any("does not start where the stream began" in problem for problem in problems)


@pytest.mark.parametrize(("lower", "higher"), [("updated", "inserted"), ("stale", "unchanged")])
def test_a_ledger_count_that_was_changed_is_named(damaged: World, lower: str, higher: str) -> None:
    """Counts are counted again: that they balance is not enough."""
    counts = dict(damaged.ledger[1].counts)
    counts |= {lower: counts[lower] - 1, higher: counts[higher] + 1}
    changed_ledger(damaged, 2, counts=counts)

    assert sorted(differences(damaged)) == sorted(
        f"batch 2: {what}: expected {counts[name] + d}, found {counts[name]}"
        for name, d in {lower: 1, higher: -1}.items()
        for what in (f"its {name} is not its commit's", f"{name}, counted again")
    )


def test_an_acceptance_that_no_commit_gave_is_not_believed(damaged: World) -> None:
    """What a batch left behind is judged, unless a person's own commit names the batch."""
    DeltaTable(damaged.paths.data.path).delete("id = 2")
    ledger = DeltaTable(damaged.paths.ledger.path)
    ledger.update({"balanced": "false", "accepted": "'ok'"}, predicate="seq = 2")

    problems = differences(damaged)

    assert "batch 2: its accepted is not its commit's: expected None, found ok" in problems
    assert any("is missing from the table" in problem for problem in problems)


def test_a_verdict_of_red_is_a_difference(damaged: World) -> None:
    """A batch that does not balance and that nobody accepted is told."""
    changed_ledger(damaged, 3, balanced=False)

    assert differences(damaged) == [
        "batch 3: its books do not balance, and nobody has accepted that"
    ]


def remove_last_ledger_row(world: World) -> None:
    """Leave the last commit without its ledger row, as a crash would."""
    DeltaTable(world.paths.ledger.path).delete("seq = 3")


def test_a_torn_commit_is_named_with_its_cure(damaged: World) -> None:
    """A commit without ledger row, with nobody there to write it, is what a crash left."""
    remove_last_ledger_row(damaged)

    verdict = verdict_of(damaged)

    (problem,) = map(str, verdict.differences)
    assert f"oncelake run {damaged.topic} heals it" in problem
    assert (verdict.seq, verdict.delta_version) == (2, 3)


@pytest.mark.kafka
@pytest.mark.spark
def test_a_run_that_is_committing_is_waited_for_by_nobody(world: World) -> None:
    """While a run holds the stream, the proof ends before the commit it is making."""
    for id_ in (1, 2, 3):
        world.send(row(id_, "a"))
        world.run()
    remove_last_ledger_row(world)

    with held_by_jvm(world.spark, world.paths, Holder.me("run-x")):
        verdict = verdict_of(world)

    assert (verdict.holds, verdict.seq) == (True, 2), verdict.differences
    assert "run run-x is committing right now" in verdict.limits[-1]


def test_a_commit_that_is_not_the_engines_is_named(damaged: World) -> None:
    """A second commit under the stream's transaction id is a fault of its own."""
    table = DeltaTable(damaged.paths.data.path)
    write_deltalake(
        table,
        table.to_pyarrow_table().slice(0, 0),
        mode="append",
        commit_properties=CommitProperties(
            app_transactions=[Transaction(f"oncelake:{damaged.topic}", 3)]
        ),
    )

    problems = differences(damaged)

    assert any("without its metadata" in problem for problem in problems)
    assert any("does not grow: expected above 3, found 3" in problem for problem in problems)


def test_a_missing_data_file_is_reported(damaged: World) -> None:
    """A table that cannot be read is not as it should be; nothing is thrown."""
    for file in damaged.paths.data.path.glob("*.parquet"):
        file.unlink()

    assert any(f"{damaged.paths.data} is damaged" in problem for problem in differences(damaged))


def test_an_unreadable_log_is_reported(damaged: World) -> None:
    """Broken bookkeeping is an error with its cure, not a traceback."""
    newest = max((damaged.paths.data.path / "_delta_log").glob("*.json"))
    newest.write_text("{garbage")

    with pytest.raises(DamagedTableError, match=rf"{newest.name} is cut short.*oncelake reset"):
        verdict_of(damaged)


def test_an_unreadable_ledger_costs_no_table(damaged: World) -> None:
    """Its cure is the run that rebuilds it, not a reset of what is whole."""
    for file in damaged.paths.ledger.path.glob("*.parquet"):
        file.write_bytes(b"garbage")

    with pytest.raises(DamagedTableError, match=f"oncelake run {damaged.topic}, which archives it"):
        verdict_of(damaged)


def test_tombstones_that_are_gone_are_not_proven(damaged: World) -> None:
    """No row tells of a delete that is forgotten; a late update would bring its key back."""
    shutil.rmtree(damaged.paths.tombstones)

    (problem,) = differences(damaged)

    assert "holds 0 rows of batch 3, which wrote 1" in problem
    assert f"oncelake rebuild {damaged.topic} makes it anew" in problem


@pytest.mark.parametrize("side", ["quarantine", "tombstones"])
def test_a_damaged_side_table_is_not_proven(damaged: World, side: str) -> None:
    """One flipped bit in a file of the right length is enough, wherever it is."""
    file = data_file(getattr(damaged.paths, side))
    sound = file.read_bytes()
    for at in range(12, len(sound) // 2, len(sound) // 8):
        file.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])

        problems = differences(damaged)

        (named,) = (each for each in problems if f"{file.name} is not as it was written" in each)
        assert f"oncelake rebuild {damaged.topic}" in named
        assert not any(problem.startswith("key") for problem in problems)


def test_a_file_whose_statistics_hide_its_rows_is_damaged(damaged: World) -> None:
    """It is not taken for a table of which rows are gone, which a person may accept."""
    for file in damaged.paths.quarantine.path.glob("*.parquet"):
        content = file.read_bytes()
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        (seq,) = set(pq.read_table(file)["_seq"].to_pylist())
        of_others = content[footer:].replace(seq.to_bytes(8, "little"), bytes(8))
        file.write_bytes(content[:footer] + of_others)

    problems = differences(damaged)

    assert any("is not as it was written" in problem for problem in problems)
    assert not any("the table is gone" in problem for problem in problems)


def test_an_older_copy_of_the_table_is_not_proven(damaged: World) -> None:
    """A ledger that has more batches than the table is no run that is committing right now."""
    newest = max((damaged.paths.data.path / "_delta_log").glob("*.json"))
    for file in (newest, newest.with_name(f".{newest.name}.crc")):
        file.unlink(missing_ok=True)

    with pytest.raises(TableRolledBackError, match="ends with seq 2, and the ledger has seq 3"):
        verdict_of(damaged)


def test_a_log_that_has_aged_out_is_a_limit_and_the_rest_is_proven(damaged: World) -> None:
    """The ledger outlives the commits; without them nothing tells topic ids."""
    table = DeltaTable(damaged.paths.data.path)
    write_deltalake(table, table.to_pyarrow_table().slice(0, 0), mode="append")
    DeltaTable(damaged.paths.data.path).create_checkpoint()
    for file in sorted((damaged.paths.data.path / "_delta_log").glob("*.json"))[:-1]:
        file.unlink()

    verdict = verdict_of(damaged)
    DeltaTable(damaged.paths.data.path).delete("id = 2")

    assert (verdict.holds, verdict.seq, verdict.batches) == (True, 3, 3), verdict.differences
    assert "our commits have aged out of the log" in verdict.limits[0]
    assert len(differences(damaged)) == 1


def test_a_commit_that_is_gone_behind_a_checkpoint_is_a_limit(damaged: World) -> None:
    """No reader needs it, so that a clean-up of the log that ends halfway may leave older ones."""
    log = damaged.paths.data.path / "_delta_log"
    *_, second, _ = sorted(log.glob("*.json"))
    DeltaTable(damaged.paths.data.path).create_checkpoint()
    second.unlink()

    verdict = verdict_of(damaged)

    assert (verdict.holds, verdict.batches, verdict.commits) == (True, 3, 3), verdict.differences
    assert verdict.limits == (
        "the log has dropped the commits of seq 2, which no reader needs behind a checkpoint: the "
        "ledger stands for them",
    )
    assert damaged.run().lag == 0
    assert verdict_of(damaged).holds
    other = replace(damaged.ledger[1], counts={**damaged.ledger[1].counts, "stale": 7})
    Ledger(damaged.paths.ledger).put(other)
    assert any("batch 2: stale, counted again" in problem for problem in differences(damaged))


@only_long
def test_a_version_before_a_column_was_added_is_read_without_it(damaged: World) -> None:
    """Where the ledger is gone, the version to prove is older than the newest column."""
    damaged.declare(schema=f"{COLUMNS}, colour STRING", schema_change="evolve")
    damaged.send(event(row(9, "new", at=1) | {"colour": "red"}))
    damaged.run()
    shutil.rmtree(damaged.paths.ledger)

    verdict = verdict_of(damaged)

    assert (verdict.holds, verdict.seq, verdict.obstacles) == (False, 0, ())
    assert all("not in the ledger" in str(each) for each in verdict.differences)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b"name STRING", b"name SURING", id="columns"),
        pytest.param(rb"\"run_id\"", rb"\"ruo_id\"", id="a field"),
        pytest.param(b"commitInfo", b"commitInfn", id="an action"),
        pytest.param(b'"oncelake', b'"once', id="cut short"),
    ],
)
def test_a_commit_that_a_disk_has_changed_is_named(
    damaged: World, before: bytes, after: bytes
) -> None:
    """What it says of its batch is not believed; no reader needs it behind a checkpoint."""
    DeltaTable(damaged.paths.data.path).create_checkpoint()
    *_, commit, _ = sorted((damaged.paths.data.path / "_delta_log").glob("*.json"))
    content = commit.read_bytes()
    at = content.index(before)
    rest = content[at + len(before) :] if len(before) == len(after) else b""
    commit.write_bytes(content[:at] + after + rest)

    verdict = verdict_of(damaged)

    assert list(map(str, verdict.differences)) == [
        f"_delta_log/{commit.name} is cut short, or not as it was written: restore it from a "
        "backup",
        "batch 2: the log has no commit of it; the ledger says version 3; restore the log from a "
        f"backup, or oncelake rebuild {damaged.topic}, if its sink can",
    ]
    assert (verdict.obstacles, verdict.rows > 0) == ((), True)
    commit.unlink()
    assert verdict_of(damaged).holds


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(partial(erase, key='{"id": 2}'), id="erase"),
        pytest.param(partial(rewind, to="seq:1"), id="rewind"),
    ],
)
def test_what_goes_while_it_is_proven_is_no_difference(
    damaged: World, change: Callable[..., object]
) -> None:
    """A person is told to ask again, and the next proof is of what is there then."""

    def tell(*_: object) -> None:
        if len(damaged.ledger) == 3:
            change(damaged.spec, damaged.settings, reason="a test", run_id="me")

    with pytest.raises(TableBusyError, match="run the same command again"):
        verify(damaged.spec, damaged.settings, tell=tell)

    assert verdict_of(damaged).holds


def test_an_ambiguous_condition_is_not_proven(world: World) -> None:
    """What only Spark can evaluate is no proof, and no difference either."""
    world.send(row(1, "a"))
    world.run()
    world.declare(apply_as_deletes="name rlike '^gone$'")

    verdict = verdict_of(world)

    assert (verdict.holds, verdict.total) == (False, 0)
    assert "apply_as_deletes is not provable" in verdict.obstacles[0]


def test_kafka_that_does_not_answer_is_unreachable(damaged: World) -> None:
    """No broker, no proof: the same command may succeed later."""
    settings = Settings(
        **{**written(damaged.settings), "kafka": "127.0.0.1:1", "kafka_timeout_seconds": 1.0}
    )

    with pytest.raises(DependencyError, match="does not answer"):
        verify(damaged.spec, settings)


def test_what_retention_took_is_a_limit_and_the_rest_is_proven(world: World) -> None:
    """From the first offset that is left on everything is proven; damage there is still seen."""
    world.send(row(1, "a"), row(2, "b"), b"garbage", row(3, "c"))
    world.run()
    world.send(row(1, "A"), row(4, "d"), b"more garbage")
    world.send(None, id=3)
    world.run()
    world.forget_before(0, 4)

    verdict = verdict_of(world)
    DeltaTable(world.paths.data.path).delete("id = 4")
    worse = differences(world)

    assert (verdict.holds, verdict.batches, verdict.rows) == (True, 1, 2), verdict.differences
    assert verdict.limits[0] == (
        f"{world.topic}-0: proven from offset 4 on; Kafka no longer holds [0, 4)"
    )
    assert "1 row comes from records that Kafka no longer holds" in verdict.limits[1]
    assert worse == [f"key (id=4) · {world.topic}-0 offset 5 · batch 2: is missing from the table"]


def test_a_second_epoch_is_proven_and_the_first_is_a_limit(world: World) -> None:
    """Rows of an earlier epoch must have given way to the new one's, and that is all we know."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    world.delete_topic()
    world.create_topic()
    world.send(row(1, "new"), row(3, "c"))
    with pytest.raises(TopicRecreatedError):
        verdict_of(world)
    adopt_topic(world.spec, world.settings, run_id="me")
    world.run()

    verdict = verdict_of(world)
    rewrite(world.paths.data, _first_epoch)
    (problem,) = differences(world)

    assert (verdict.holds, verdict.epoch, verdict.rows) == (True, 2, 2), verdict.differences
    assert "epoch 2 began after batch 1" in verdict.limits[0]
    assert "key (id=1)" in problem
    assert "is not the row of its newest record" in problem


def _first_epoch(table: pa.Table) -> pa.Table:
    is_it, field = pc.equal(table["id"], 1), table.schema.field("_epoch")
    older = pc.if_else(is_it, pa.scalar(1, field.type), table["_epoch"])
    return table.set_column(table.schema.get_field_index("_epoch"), field, older)


def test_what_a_person_accepted_is_a_limit_and_no_difference(world: World) -> None:
    """A red batch and a lost range that were accepted are told as limits of the proof."""
    world.send(row(1, "a"), row(2, "dropped"))
    with merging(WITHOUT_ID_2):
        world.run()
    red = differences(world)
    accept(world.spec, world.settings, reason="a drill", run_id="me")
    world.send(row(2, "again"), row(3, "lost"), row(4, "kept"))
    world.forget_before(0, 4)
    accept(world.spec, world.settings, reason="too late", run_id="me")
    world.run()

    verdict = verdict_of(world)

    assert any("is missing from the table" in problem for problem in red)
    assert any("its books do not balance" in problem for problem in red)
    assert verdict.holds, verdict.differences
    assert any("was accepted: a drill" in limit for limit in verdict.limits)
    assert any("was lost, and that was accepted: too late" in limit for limit in verdict.limits)
