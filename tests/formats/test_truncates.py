"""``on_truncate: apply``: what a topic gave before a TRUNCATE of its source is gone for good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import SourceTruncatedError, TooManyBadRecordsError
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.modes.engines import local as local_engine
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.quarantine.redrive import Redrive, RedriveReport
from oncelake.ingestion.pipeline import batch, truncates
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World, row
from tests.trials.failpoints import PlannedCrash, PlannedError, crashing_at
from tests.trials.kills import run_to_its_end

APPLY = {"type": "debezium", "on_truncate": "apply"}
TRUNCATE: dict[str, Any] = {"op": "t", "before": None, "after": None, "source": {"lsn": 7}}
UNAVAILABLE = "__debezium_unavailable_value"
BAD: dict[str, Any] = {"op": "c", "before": None, "after": {**row(8, "n8"), "more": 1}}


def created(*ids: int) -> list[dict[str, Any]]:
    """Return the envelopes of new rows."""
    return [{"op": "c", "before": None, "after": row(id_, f"n{id_}")} for id_ in ids]


def changed(id_: int) -> dict[str, Any]:
    """Return the envelope of a row that gets another name."""
    return {"op": "u", "before": row(id_, f"n{id_}"), "after": row(id_, "changed")}


def deleted(id_: int) -> dict[str, Any]:
    """Return the envelope of a row that goes."""
    return {"op": "d", "before": row(id_, f"n{id_}"), "after": None}


def event(op: str, id_: int, lsn: int) -> dict[str, Any]:
    """Return an envelope, with its position in the database's log."""
    before, after = (row(id_, "n"), None) if op == "d" else (None, row(id_, "n"))
    return {"op": op, "before": before, "after": after, "source": {"lsn": lsn}}


def redrive(world: World) -> RedriveReport:
    """Send in what waits."""
    parts = {"spec": world.spec, "settings": world.settings, "spark": lambda _: world.spark}
    return Redrive(**parts, run_id="r").execute()


def ids(world: World) -> list[int]:
    """Return the keys of the table."""
    return [each["id"] for each in world.rows()]


@pytest.fixture
def table(world: World) -> World:
    """A stream of a topic with one partition, which applies truncates."""
    one = replace(world, topic=world.add_topic("one"))
    one.declare(format=APPLY)
    return one


ENGINES = ["local", *twins(pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.kafka]))]


@pytest.mark.parametrize("sink", ["delta", "iceberg", "postgres", "vectors"])
def test_rows_from_before_it_go_wherever_it_lies(
    table: World, sink: str, request: pytest.FixtureRequest
) -> None:
    """In the middle of a batch, at its begin and its end, twice in one, in an empty table."""
    if sink == "postgres":
        address = SecretStr(request.getfixturevalue("postgres_address"))
        table.settings = table.settings.model_copy(update={"postgres": address})
    table.declare(sink="delta" if sink == "vectors" else sink)
    if sink == "vectors":
        table.declare(deletion_vectors=True)
    table.send(TRUNCATE, *created(1, 2, 3), deleted(3))
    table.run()
    assert ids(table) == [1, 2]
    table.send(changed(1), *created(4), TRUNCATE, *created(2, 5), deleted(5))
    report = table.run()
    assert ids(table) == [2]
    assert (report.total("filtered"), report.total("ignored")) == (2, 1)
    assert any("truncated" in each and "2 rows were deleted" in each for each in report.notices)
    table.send(*created(6), TRUNCATE, *created(7), TRUNCATE, *created(8))
    table.run()
    assert ids(table) == [8]
    table.send(TRUNCATE)
    table.run()

    assert ids(table) == []
    kinds = [each.kind for each in table.ledger if each.kind != "schema"]
    assert kinds == ["truncate", "ingest"] * 4
    assert find_problems(table) == ()


@pytest.mark.spark
def test_a_replay_leaves_one_that_waits_where_it_is(table: World) -> None:
    """A redrive is its way into the table; one that was applied is not applied again."""
    select = {"name": "upper(name)"}
    table.declare(format={"type": "debezium"}, quarantine_rate={"stop_above": 1}, select=select)
    table.send(*created(1, 2), TRUNCATE, *created(3))
    table.run()
    table.declare(format=APPLY)
    table.send(*created(4), TRUNCATE, *created(5))

    table.replay()
    assert ids(table) == [1, 2, 3]
    assert prove(table).differences == ()
    table.run()
    table.replay()

    assert ids(table) == [5]
    kinds = [each.kind for each in table.ledger if each.kind != "schema"]
    assert kinds == ["ingest", "replay", "truncate", "ingest", "replay"]
    assert redrive(table).waiting == 1
    assert ids(table) == [5]
    assert find_problems(table) == ()


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_read_again_of_before_stays_out(table: World, engine: str) -> None:
    """By a redrive, by a rewind, and into a new table."""
    table.settings = table.settings.model_copy(update={"merge_engine": engine})
    table.declare(extra_fields="reject", quarantine_rate={"stop_above": 1})
    table.send(*created(1, 2), BAD)
    table.run()
    table.send(*created(3), TRUNCATE, *created(2))
    table.run()
    table.declare(extra_fields="ignore")
    report = redrive(table)
    assert [each.counts["filtered"] for each in report.batches] == [1]
    assert ids(table) == [2]
    assert prove(table).differences == ()
    rewind(table.spec, table.settings, to="seq:1", reason="a test", run_id="r")
    assert ids(table) == [1, 2]
    assert prove(table).differences == ()
    table.run()
    assert ids(table) == [2]
    assert prove(table).differences == ()
    table.rebuild()

    assert ids(table) == [2]
    assert find_problems(table) == ()


def test_no_later_update_takes_a_value_from_before_it(table: World) -> None:
    """Neither the row's nor the old key's; what came before it in its batch is left out whole."""
    without = {**row(1, "__debezium_unavailable_value", 2)}
    moved = {"op": "u", "before": row(2, "n2"), "after": {**without, "id": 3}}
    table.declare(quarantine_rate={"stop_above": 1})
    table.send({"op": "u", "before": None, "after": {**without, "id": 4}}, moved)
    table.send(*created(1, 2), TRUNCATE)
    table.send({"op": "u", "before": None, "after": without}, moved, *created(6))

    report = table.run()

    assert ids(table) == [6]
    assert (report.total("filtered"), report.total("quarantined")) == (5, 2)
    assert {each["reason"] for each in table.quarantined()} == {"nothing_to_keep"}
    assert find_problems(table) == ()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_divided", [True, False], ids=["batches", "one batch"])
def test_deletes_from_before_it_mean_nothing(
    table: World, engine: str, *, is_divided: bool
) -> None:
    """To the table a key is new, by its order and by its row, in whatever batches they come."""
    lsn = {"format": {**APPLY, "columns": {"at": "source.lsn"}}, "sequence_by": ["at"]}
    table.declare(schema="id INT NOT NULL, name STRING, at BIGINT NOT NULL", **lsn)
    table.settings = table.settings.model_copy(update={"merge_engine": engine})
    events = [
        *(event(*each) for each in [("c", 3, 40), ("d", 3, 50), ("t", 0, 60), ("c", 3, 45)]),
        *(event(*each) for each in [("d", 4, 70), ("c", 4, 65)]),
    ]
    for each in events:
        table.send(each)
        if is_divided:
            table.run()

    table.run()

    assert ids(table) == [3]
    assert find_problems(table) == ()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_divided", [True, False], ids=["batches", "one batch"])
def test_a_row_like_one_from_before_waits_to_leave_its_key(
    table: World, engine: str, *, is_divided: bool
) -> None:
    """The table alone may have the one from before. The record waits on when that is redriven."""
    table.settings = table.settings.model_copy(update={"merge_engine": engine})
    table.declare(format={"type": "debezium"}, quarantine_rate={"stop_above": 1})
    moved = {"op": "u", "before": row(1, "n2"), "after": row(2, "n2")}
    made = {"op": "c", "before": None, "after": row(1, "n2")}
    for each in [*created(2), TRUNCATE, made, moved, deleted(2), *created(3)]:
        table.send(each)
        if is_divided:
            table.run()
    table.run()

    assert [each["reason"] for each in table.quarantined()] == ["truncate", "moved_key"]
    assert ids(table) == [2, 3]
    assert find_problems(table) == ()
    table.declare(format=APPLY)
    assert redrive(table).waiting == 2
    assert prove(table).differences == ()
    assert [each["reason"] for each in table.quarantined()] == ["truncate", "moved_key"]


def test_one_that_waited_in_quarantine_is_applied_where_it_was(table: World) -> None:
    """Rows that a later record has written stay."""
    table.declare(format={"type": "debezium"}, quarantine_rate={"stop_above": 1})
    table.send(*created(1, 2), TRUNCATE, changed(1), *created(3))
    table.run()
    assert (ids(table), len(table.quarantined())) == ([1, 2, 3], 1)
    table.declare(format=APPLY)

    redrive(table)

    assert ids(table) == [1, 3]
    assert find_problems(table) == ()


def test_one_that_was_applied_stays_so_whatever_is_declared_later(table: World) -> None:
    """The next one waits, and the proof of the first is the same."""
    table.send(*created(1), TRUNCATE, *created(2))
    table.run()
    table.declare(format={"type": "debezium"}, quarantine_rate={"stop_above": 1})
    assert prove(table).differences == ()
    table.send(TRUNCATE, *created(3))
    table.run()

    assert (ids(table), [each["reason"] for each in table.quarantined()]) == ([2, 3], ["truncate"])
    assert find_problems(table) == ()


def test_a_run_that_dies_behind_it_applies_it_again(table: World) -> None:
    """The rows are gone, and the batch is not there yet: the next one is."""
    table.send(*created(1, 2))
    table.run()
    table.send(*created(3), TRUNCATE, *created(4))
    with crashing_at(Failpoint.SOURCE_TRUNCATED), pytest.raises(PlannedError):
        table.run()
    assert ids(table) == []
    # Which the next run heals.
    assert [each.part for each in prove(table).differences] == ["ledger"]

    table.run()

    assert ids(table) == [4]
    kinds = [each.kind for each in table.ledger if each.kind != "schema"]
    assert kinds == ["ingest", "truncate", "ingest"]
    assert find_problems(table) == ()


@pytest.mark.kafka
@pytest.mark.parametrize(
    "place", [Failpoint.SOURCE_TRUNCATED, *twins(Failpoint.PREPARED, Failpoint.COMMITTED)]
)
def test_a_run_that_is_killed_around_it_is_made_whole(
    table: World, place: Failpoint, tmp_path: Path
) -> None:
    """By the next one, whose rows are the same."""
    table.send(*created(1, 2))
    table.run()
    table.send(*created(3), TRUNCATE, *created(2))
    table.write_declaration()
    crash = PlannedCrash(place=place, nth=1, way="kill_group", visits=str(tmp_path / "visits"))
    assert run_to_its_end(table, crash) == ("killed", ())
    table.send(*created(4), changed(2))

    table.run()

    assert ids(table) == [2, 4]
    assert find_problems(table) == ()


def test_a_batch_in_parts_applies_it_in_its_own(
    table: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the parts before it have written goes."""
    monkeypatch.setattr(local_engine, "LARGEST_BATCH_BYTES", 3_000)
    table.send(*created(*range(20)), TRUNCATE, *created(*range(20, 40)))

    report = table.run()

    assert ids(table) == [*range(20, 40)]
    assert len(report.batches) > 2
    assert (report.total("ignored"), report.total("quarantined")) == (1, 0)
    assert find_problems(table) == ()


def test_nothing_is_taken_over_from_before_it(table: World) -> None:
    """An update that came before it needs no row; one behind it finds none."""
    table.declare(quarantine_rate={"stop_above": 1})
    table.send(*created(1, 3))
    table.run()
    left_out = [{"op": "u", "before": None, "after": row(n, UNAVAILABLE)} for n in (1, 2)]
    table.send(left_out[0], *created(2), TRUNCATE, left_out[1], *created(3))

    report = table.run()

    assert ids(table) == [3]
    assert (report.total("filtered"), report.total("quarantined")) == (2, 1)
    assert find_problems(table) == ()


def test_rows_of_a_topic_that_was_read_before_stay(table: World) -> None:
    """Its offsets say nothing of those of another."""
    before, now = table.topic, table.add_topic("b")
    topics = {"topic": None, "topics": [before, now], "format": {"type": "debezium"}}
    table.declare(name=before, **topics)
    table.send(*created(1, 2))
    beside = replace(table, topic=now)
    beside.send(*created(11, 12, 13))
    beside.run()
    beside.declare(topic=now, topics=[], format=APPLY)
    beside.send(TRUNCATE, *created(14))

    beside.run()

    assert sorted(ids(beside)) == [1, 2, 14]
    assert find_problems(beside) == ()


def test_a_refused_batch_empties_nothing(table: World) -> None:
    """As its message says: too many of its records are bad."""
    table.send(*created(1))
    table.run()
    table.declare(extra_fields="reject", quarantine_rate={"stop_above": 0.1})
    table.send(BAD, TRUNCATE)

    with pytest.raises(TooManyBadRecordsError):
        table.run()

    assert ids(table) == [1]


def differences(world: World) -> Sequence[str]:
    """Return what the proof says, in words."""
    return [each.what for each in prove(world).differences]


def test_the_proof_finds_one_that_was_not_applied(
    table: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its rows stayed, or what came before it in its batch."""
    table.send(*created(1))
    table.run()
    with monkeypatch.context() as patched:
        patched.setattr(batch.BatchWriter, "_apply_truncates", _forget)
        table.send(*created(2), TRUNCATE)
        table.run()

    assert "a TRUNCATE of the source was not applied" in differences(table)


def test_the_proof_finds_a_row_that_stayed_though_its_record_is_gone(
    table: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka still has the truncate, or the ledger knows of it."""
    table.send(*created(1, 2))
    table.run()
    keys_before = truncates._keys_before
    with monkeypatch.context() as patched:
        patched.setattr(truncates, "_keys_before", lambda *given: keys_before(*given).slice(1))
        table.send(TRUNCATE, *created(3))
        table.run()
    table.forget_before(0, 2)

    assert ids(table) == [1, 3]
    assert differences(table) == ["is in the table, and a truncate came behind it"]


def _forget(self: batch.BatchWriter, engine: Any) -> None:
    batch.take_truncates(engine, self._spec)


def test_the_proof_finds_one_that_nobody_sent(
    table: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is empty, and should not be."""
    table.send(*created(1, 2, 3))
    table.run()
    table.send(*created(4, 5))
    with monkeypatch.context() as patched:
        at = Offsets({TopicPartition(table.topic, 0): 4})
        patched.setattr(batch, "take_truncates", lambda *_: at)
        table.run()

    assert "the table was emptied, and no record says so" in differences(table)


def test_a_topic_of_several_partitions_is_refused(world: World) -> None:
    """Which of the other partition's records came before, nobody knows."""
    world.declare(format=APPLY)
    world.send(*created(1))
    world.run()
    world.send(TRUNCATE)

    with pytest.raises(SourceTruncatedError, match="several partitions") as refused:
        world.run()

    assert "oncelake rebuild" in str(refused.value.remedy)
    assert [each["id"] for each in world.rows()] == [1]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"mode": "append", "keys": []}, "mode: upsert"),
        ({"deletes": "soft"}, "deletes: hard"),
        ({"sink": "kafka"}, "cannot delete its rows"),
        ({"topics": ["a", "b"], "topic": None}, "one table of the source"),
    ],
)
def test_what_cannot_be_emptied_is_refused_in_the_file(fields: dict[str, Any], why: str) -> None:
    """With what to write instead."""
    declared = {"name": "orders", "topic": "orders", "schema": "id INT NOT NULL", "keys": ["id"]}
    declared = {**declared, "format": APPLY, **fields}

    with pytest.raises(ValidationError, match=why) as refused:
        StreamSpec.model_validate({n: each for n, each in declared.items() if each is not None})

    assert "write `stop`, or `quarantine`" in str(refused.value)
