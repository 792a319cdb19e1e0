"""A stream keeps the same promises whatever keeps its rows: from Kafka to the proof."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.errors import (
    RefusedError,
    TableBusyError,
    TableReplacedError,
)
from oncelake.ingestion.lake.lock import Holder, held_by_jvm
from oncelake.ingestion.operations.decisions import reset
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.verify.verify import verify
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World, row

MERGING = ["iceberg", "postgres"]
# Where both take the same way, one stands for both when time is short.
ANY = ["postgres", *twins("iceberg")]


@pytest.mark.parametrize("sink", MERGING)
def test_an_upsert_ends_with_the_newest_row_of_each_key(world: World) -> None:
    """Rows are added, changed and deleted by several runs, and the proof holds."""
    world.send(row(1, "a"), row(2, "b"), row(2, "c"), b"not JSON")
    world.send(row(3, "d"), partition=1)
    first = world.run()
    world.send(row(1, "e"), None, id=1)
    world.send(row(4, "f"), partition=1)
    world.send(None, id=9)

    second = world.run()

    assert world.rows() == [row(2, "c"), row(3, "d"), row(4, "f")]
    assert (first.total("inserted"), first.total("superseded")) == (3, 1)
    assert (second.total("inserted"), second.total("deleted")) in {(1, 1), (1, 2)}
    assert first.is_balanced
    assert second.is_balanced
    assert find_problems(world) == ()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("sink", ["kafka", *twins(*MERGING)])
def test_an_update_that_changes_the_key_ends_the_old_row(world: World) -> None:
    """One record is a row and a delete, in whatever keeps the rows; the books count both."""
    world.declare(format="debezium")
    world.send(*({"op": "c", "before": None, "after": row(id, "a")} for id in (1, 2)))
    world.run()
    world.send({"op": "u", "before": row(1, "a"), "after": row(3, "b")})

    report = world.run()

    assert world.rows() == [row(2, "a"), row(3, "b")]
    counts = ("read", "exploded", "inserted", "deleted")
    assert [report.total(name) for name in counts] == [1, 1, 1, 1]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ANY)
def test_an_append_keeps_every_record(world: World) -> None:
    """Each record is a row, equal ones included, and the proof holds."""
    world.declare(mode="append", keys=[])
    world.send(row(1, "a"), row(1, "a"), b"not JSON")
    world.run()
    world.send(row(1, "b"))

    world.run()

    assert sorted(each["name"] for each in world.rows()) == ["a", "a", "b"]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ANY)
def test_a_late_record_changes_nothing(world: World) -> None:
    """A record older than the row, or than a delete that is remembered, is stale."""
    world.declare(sequence_by=["at"], apply_as_deletes="name = 'gone'")
    world.send(row(1, "new", at=5), row(2, "gone", at=5), row(3, "x", at=1))
    world.run()
    world.send(row(1, "old", at=4), row(2, "old", at=4), row(3, "y", at=2))

    report = world.run()

    assert world.rows() == [row(1, "new", 5), row(3, "y", 2)]
    assert (report.total("stale"), report.total("updated")) == (2, 1)
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ANY)
@pytest.mark.parametrize(
    "mode",
    [
        {"deletes": "soft"},
        *twins({"mode": "insert_only", "tombstones": "ignore"}, {"ignore_null_updates": True}),
    ],
    ids=str,
)
def test_every_write_mode_of_it_holds(world: World, mode: dict[str, Any]) -> None:
    """The write modes that a sink takes end as the proof folds them."""
    world.declare(**mode)
    world.send(row(1, "a", 1), row(2, "b", 1), row(1, None, 2))
    world.run()
    world.send(row(1, "c"), row(3, "d"))
    world.send(None, id=2)

    world.run()

    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", MERGING)
def test_versions_of_a_key_take_their_places(world: World) -> None:
    """Late records, deletes and a new beginning end as the proof folds them, read twice or not."""
    world.declare(mode="scd2", sequence_by=["at"], apply_as_deletes="name = 'gone'")
    world.send(row(1, "a", 10), row(2, "b", 10), row(1, "c", 30), row(3, "erased", 1))
    world.run()
    world.send(row(1, "late", 20), row(2, "gone", 15), row(3, "erased", 2))
    world.run()
    assert verify(world.spec, world.settings).holds
    world.send(row(2, "again", 40), row(1, "gone", 35))
    world.run()
    world.replay()
    erase(world.spec, world.settings, key='{"id": 3}', reason="asked", run_id="e")

    assert versions(world) == [
        (1, "a", 10, 20, False),
        (1, "c", 30, 35, False),
        (1, "late", 20, 30, False),
        (2, "again", 40, None, True),
        (2, "b", 10, 15, False),
    ]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", MERGING)
def test_records_are_folded_into_groups(world: World) -> None:
    """Each once: a total of all windows is that of all records, and the proof folds them again."""
    nested = {"names": "set(name)", "newest": "last(name)", "oldest": "first(at)"}
    world.declare(
        mode="aggregate",
        schema="id INT NOT NULL, name STRING, at INT NOT NULL, seen TIMESTAMP NOT NULL",
        sequence_by=["at"],
        aggregates={
            "n": "count(*)",
            "named": "count(name)",
            "total": "sum(at)",
            "mean": "avg(at)",
            "least": "min(name)",
            "most": "max(at)",
            **(nested if world.spec.sink.name == "iceberg" else {}),
        },
        window={"column": "seen", "every": "1 hour"},
    )

    def send(id: int, name: str | None, at: int, hour: int) -> None:
        world.send({**row(id, name, at), "seen": f"2024-01-01T{hour:02}:30:00Z"}, partition=at % 2)

    for nth in range(12):
        send(nth % 2, "abc"[nth % 3], nth, nth % 3)
    first = world.run()
    send(0, None, 99, 2)
    send(7, "z", -1, 0)
    second = world.run()

    assert (first.total("groups_new"), first.total("inserted")) == (6, 12)
    assert (second.total("groups"), second.total("groups_new")) == (2, 1)
    assert second.total("updated") == second.total("inserted") == 1
    names = [column.name for column in world.spec.table_columns]
    rows = [each for part in world.paths.table.scan(names) for each in part.to_pylist()]
    (late,) = (each for each in rows if each["id"] == 0 and each["most"] == 99)
    assert (late["n"], late["named"], late["total"]) == (3, 2, 2 + 8 + 99)
    assert late["mean"] == (2 + 8 + 99) / 3
    if "newest" in late:
        assert (late["newest"], late["oldest"], late["names"]) == (None, 2, ["c"])
    assert find_problems(world) == ()


def versions(world: World) -> list[tuple[Any, ...]]:
    """Read the versions of all keys."""
    names = ("id", "name", "valid_from", "valid_to", "current")
    parts = world.paths.table.scan(names)
    return sorted(tuple(each[n] for n in names) for part in parts for each in part.to_pylist())


@pytest.mark.parametrize(
    ("sink", "odd"),
    [("postgres", "a.b`c \"d'"), *twins(("iceberg", "a b,(@)"))],
    ids=lambda value: value if value in MERGING else "",
)
def test_the_deletes_of_unwrapped_events_are_applied(world: World, odd: str) -> None:
    """A field named as Debezium names what it adds is a column, as is any name that a sink has."""
    columns = f"id INT NOT NULL, __deleted STRING, __op STRING, {quoted(odd)} INT, __lsn BIGINT"
    world.declare(schema=columns, apply_as_deletes="__deleted = 'true'", sequence_by=["__lsn"])
    kept, gone = {"__deleted": "false", "__op": "u"}, {"__deleted": "true", "__op": "d"}
    world.send(*({"id": id, **kept, odd: id, "__lsn": 5} for id in (1, 2, 3)), {"id": 4})
    world.run()
    world.send({"id": 1, **gone, "__lsn": 6}, {"id": 2, **gone, "__lsn": 4})
    world.run()
    world.send({"id": 1, **kept, odd: 9, "__lsn": 5})

    world.run()

    assert [(row["id"], row[odd]) for row in world.rows()] == [(2, 2), (3, 3)]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ANY)
def test_a_redrive_and_a_replay_find_what_is_there(world: World) -> None:
    """Records that wait are sent in once, and what is read again adds nothing."""
    world.declare(schema="id INT NOT NULL, name STRING NOT NULL, at INT", schema_change="evolve")
    world.send(row(1, "a"), row(2, None))
    world.run()
    world.declare(schema="id INT NOT NULL, name STRING, at INT, more INT")
    world.run()

    redriven = world.redrive()
    replayed = world.replay()

    assert redriven.total("inserted") == 1
    assert replayed.total("inserted") == 0
    assert [each["id"] for each in world.rows()] == [1, 2]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", MERGING)
def test_a_wider_type_makes_the_table_wider(world: World) -> None:
    """Rows, and deletes that are remembered, are found by their keys, whichever type these had."""
    narrow = "id INT NOT NULL, f FLOAT, d DECIMAL(6, 2), at INT, gone BOOLEAN"
    wide = "id BIGINT NOT NULL, f DOUBLE, d DECIMAL(12, 2), at BIGINT, gone BOOLEAN"
    declared = {"sequence_by": ["at"], "apply_as_deletes": "gone", "schema_change": "evolve"}
    world.declare(schema=narrow, **declared)
    world.send(*({"id": n, "f": 0.5, "d": 1.25, "at": 5} for n in (1, 2, 3, 2**40)))
    world.run()
    world.send({"id": 2, "at": 6, "gone": True})
    world.run()
    world.declare(schema=wide, **declared)
    world.send({"id": 2, "f": 1.0, "at": 5}, {"id": 3, "f": 0.1, "d": 1e9, "at": 2**40})

    report = world.run()

    assert report.notices
    assert world.redrive().redriven == 1
    rows = {each["id"]: (each["f"], each["d"], each["at"]) for each in world.rows()}
    assert rows == {
        1: (0.5, Decimal("1.25"), 5),
        3: (0.1, Decimal(10**9), 2**40),
        2**40: (0.5, Decimal("1.25"), 5),
    }
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ["iceberg"])
def test_a_rewind_sets_rows_and_offsets_back_together(world: World) -> None:
    """The rows are those of the batch, and the next run reads on from its offsets."""
    world.send(row(1, "a"))
    world.run()
    world.send(row(1, "b"), row(2, "c"))
    world.run()

    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")

    assert world.rows() == [row(1, "a")]
    assert world.run().total("updated") == 1
    assert world.rows() == [row(1, "b"), row(2, "c")]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ["postgres"])
def test_what_a_sink_cannot_do_is_refused_with_the_reason(world: World) -> None:
    """Nothing is half done."""
    world.send(row(1, "a"))
    world.run()

    with pytest.raises(RefusedError, match="cannot rewind: PostgreSQL keeps no earlier state"):
        rewind(world.spec, world.settings, to="seq:0", reason="a test", run_id="r")


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("sink", ["postgres"])
def test_a_proof_compares_no_rows_but_those_it_has_folded(world: World) -> None:
    """Where no past is kept, a commit in between ends the proof, and says what to run."""
    world.send(row(1, "a"))
    world.run()
    world.send(row(1, "b"))
    world.run()
    DeltaTable(world.paths.ledger.path).delete("seq = 2")

    with pytest.raises(RefusedError, match=f"oncelake run {world.name}, which finishes it"):
        prove(world)
    with (
        held_by_jvm(world.spark, world.paths, Holder.me("run-x")),
        pytest.raises(TableBusyError, match="run run-x is committing"),
    ):
        prove(world)
    world.run()
    world.send(row(2, "c"))
    with pytest.raises(TableBusyError, match="it was committed to meanwhile"):
        verify(world.spec, world.settings, tell=lambda *_: world.run() and None)

    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ANY)
def test_a_reset_begins_a_new_table_and_keeps_the_old_one_by_another_name(world: World) -> None:
    """The next run reads the topic from its start."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()

    reset(world.name, world.settings, run_id="r", sink=world.spec.sink)

    assert not world.paths.table.log().exists
    assert world.run().total("inserted") == 2
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ANY)
def test_upkeep_changes_no_row(world: World) -> None:
    """Small files are put together, and the proof still holds."""
    for name in "abc":
        world.send(row(ord(name), name))
        world.run()
    rows = world.rows()

    maintain(world.spec, world.settings, run_id="r", window=dt.timedelta())

    assert world.rows() == rows
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ["postgres"])
def test_deletes_are_forgotten_where_nothing_can_be_rewound(world: World) -> None:
    """Those that newer ones cover, and old ones; the newest batch that wrote any stays whole."""
    world.declare(sequence_by=["at"], apply_as_deletes="name = 'gone'")
    for at, ids in enumerate([(2, 3, 4), (2, 4, 5), (2, 3)]):
        world.send(*(row(id, "gone", at=at) for id in ids), row(1, "a", at=at))
        world.run()

    def left_by_upkeep() -> list[tuple[int, int]]:
        maintain(world.spec, world.settings, run_id="r")
        deletes = DeltaTable(world.paths.tombstones.path).to_pyarrow_table().to_pylist()
        return sorted((each["at"], each["id"]) for each in deletes)

    covered = left_by_upkeep()
    world.declare(maintenance={"keep_tombstones_days": 30})
    ledger = DeltaTable(world.paths.ledger.path)
    ledger.update(updates={"committed_at": "committed_at - INTERVAL '31 days'"})
    aged = left_by_upkeep()

    assert covered == [(0, 3), (1, 2), (1, 4), (1, 5), (2, 2), (2, 3)]
    assert aged == [(2, 2), (2, 3)]
    world.send(row(3, "late", at=1))
    assert world.run().total("stale") == 1
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ANY)
def test_a_table_that_is_gone_is_refused(world: World) -> None:
    """The ledger remembers a table: a new one in its place would lack what it held."""
    world.send(row(1, "a"))
    world.run()
    world.paths.table.set_aside("lost")

    with pytest.raises(TableReplacedError, match="is gone"):
        world.run()
