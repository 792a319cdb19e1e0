"""A table outside the lake is made anew beside itself, or in another sink, and ends the same."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.errors import (
    DamagedTableError,
    ForeignTableError,
    IdentityChangedError,
    RefusedError,
)
from oncelake.ingestion.operations.decisions import reset
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rebuild import RebuildReport
from oncelake.ingestion.storage.failpoints import Failpoint
from oncelake.ingestion.tables.table import SinkTable
from tests.support.long import twins
from tests.support.proof import find_problems, prove
from tests.support.world import World, row
from tests.trials.failpoints import PlannedError, crashing_at


def fill(world: World) -> None:
    """Write a table, from a bad record and a delete among others."""
    world.send(row(1, "a"), row(2, "b"), b"not JSON", {**row(1, "c"), "city": "Rome"})
    world.send(row(3, "d"), partition=1)
    world.send(None, id=2)
    world.run()


def begin_rebuild(world: World, **fields: Any) -> None:
    """Rebuild by a declaration of another day, and stop behind the first batch."""
    declared, stop = {**world.declared, "max_offsets_per_trigger": 1, **fields}, threading.Event()
    begun = replace(world, declared=declared)
    begun.rebuild(stop=stop, on_batch=lambda row, lag: stop.set())


def old_table(world: World, done: RebuildReport) -> SinkTable:
    """Open the table that a rebuild has replaced, by the name that it tells."""
    part = world.spec.sink.declared.model_copy(update={"table": done.old.renamed})
    return world.paths.at(SinkSpec(**{world.spec.sink.name: part})).table


def origins(world: World) -> list[dict[str, Any]]:
    """Read the rows, and of which record each is."""
    names = ["id", "name", "at", "_partition", "_offset"]
    found = [row for each in world.paths.table.scan(names) for row in each.to_pylist()]
    return sorted(found, key=lambda row: int(row["id"]))


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("sink", ["postgres", *twins("iceberg")])
def test_a_new_table_takes_the_place_of_the_old(world: World, sink: str) -> None:
    """One that was begun for another purpose is thrown away; the old one has another name."""
    fill(world)
    old = world.paths.table.log().table_id()
    begin_rebuild(world, where="name <> 'c'")
    world.declare(schema="id INT NOT NULL, name STRING, city STRING")

    done = world.rebuild()

    assert world.rows() == [
        {"id": 1, "name": "c", "city": "Rome"},
        {"id": 3, "name": "d", "city": None},
    ]
    assert old_table(world, done).log().table_id() == old
    assert find_problems(world) == ()


# Where a rebuild dies, and how often it comes there before.
PLACES: list[Any] = [
    *((Failpoint.TABLE_CREATED, 1), (Failpoint.COMMITTED, 2)),
    *((Failpoint.SWAP_BEGUN, 1), (Failpoint.SWAP_CLEARED, 1)),
    *twins((Failpoint.LOOKING, 1), (Failpoint.PREPARED, 1), (Failpoint.COMMITTED, 1)),
    *twins((Failpoint.LEDGER_WRITTEN, 1), (Failpoint.BATCH_DONE, 2)),
    *twins((Failpoint.REPORTED, 1), (Failpoint.REPORTED, 2)),
]


@pytest.mark.parametrize("sink", ["iceberg"])
def test_a_rebuild_that_dies_goes_on_where_it_was(world: World) -> None:
    """Wherever that is, runs go on meanwhile, and every old table is kept by a tag."""
    world.declare(max_offsets_per_trigger=2)
    fill(world)
    expected = world.rows()
    for at, (place, nth) in enumerate(PLACES, 30):
        with crashing_at(place, nth), pytest.raises(PlannedError):
            world.rebuild()
        # Where the swap had begun, the run ends it.
        world.send(row(at, f"{place}"))
        world.run()
        expected = [*expected, row(at, f"{place}")]
        assert world.rows() == expected, place

        done = world.rebuild()

        assert world.rows() == expected, place
        assert done.old.renamed is not None
    assert find_problems(world) == ()
    refs = world.paths.table._entry.loaded().metadata.refs  # type: ignore[attr-defined]
    # A swap that had begun before is another rebuild than the one behind it.
    assert len(refs) - 1 == len(PLACES) + 2


@pytest.mark.parametrize("sink", ["iceberg"])
def test_a_reset_takes_the_branch_of_a_rebuild_with_it(world: World) -> None:
    """The rebuild is refused, or begins anew; it does not take the place of the next table."""
    world.declare(max_offsets_per_trigger=1)
    fill(world)

    def reset_meanwhile(*_: Any) -> None:
        if world.paths.table.log().exists:
            reset(world.name, world.settings, run_id="r", sink=world.spec.sink)

    with pytest.raises(RefusedError, match=r"could not go on where it was.*It was removed"):
        world.rebuild(on_batch=reset_meanwhile)
    assert not world.paths.table.log().exists

    world.run()
    reset_table = world.paths.table.log().table_id()
    world.rebuild()

    assert [each["name"] for each in world.rows()] == ["c", "d"]
    assert world.paths.table.log().table_id() != reset_table
    assert find_problems(world) == ()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize(
    ("sink", "old", "new"),
    [
        pytest.param("postgres", "delta", "postgres", id="to postgres"),
        pytest.param("kafka", "delta", "kafka", id="to kafka"),
        *twins(
            pytest.param("iceberg", "delta", "iceberg", id="to iceberg"),
            pytest.param("postgres", "postgres", "delta", id="from postgres"),
            pytest.param("postgres", "iceberg", "postgres", id="between"),
        ),
    ],
)
def test_a_stream_that_moves_ends_as_one_that_began_there(world: World, old: str, new: str) -> None:
    """A changed `sink` is refused until then; a table outside the lake keeps its name."""
    world.declare(sink=old)
    fill(world)
    world.declare(sink=new)
    with pytest.raises(IdentityChangedError, match=f"`sink: {old}`; .*oncelake rebuild .* reset"):
        world.run()

    done = world.rebuild()
    world.send(row(4, "e"), row(1, "f"))
    world.run()

    began = replace(world, declared={**world.declared, "name": f"{world.topic}_2"})
    began.run()
    assert origins(world) == origins(began)
    assert [each["name"] for each in world.rows()] == ["f", "d", "e"]
    assert (done.old.renamed is None) == (old == "delta")
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ["postgres", *twins("iceberg")])
def test_a_stream_moves_to_another_table_of_its_sink(world: World, sink: str) -> None:
    """It is refused as a move to another sink is, and the old table keeps its name."""
    fill(world)
    old = world.paths.table
    world.declare(sink={sink: {"table": f"public.{world.name}_2"}})
    with pytest.raises(IdentityChangedError, match=f"are in a table of {re.escape(old.where)}; "):
        world.run()

    done = world.rebuild()

    assert done.old.renamed == old.where
    assert old.log().last_seq(world.name) == 1
    assert [each["name"] for each in world.rows()] == ["c", "d"]
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ["postgres"])
def test_what_was_erased_does_not_come_back_in_another_sink(world: World) -> None:
    """The new table leaves it out as the old one does, and foreign rows are in nobody's way."""
    world.declare(sink="delta")
    fill(world)
    erase(world.spec, world.settings, key='{"id": 1}', reason="a request", run_id="e")
    world.declare(sink="postgres")
    address = world.settings.postgres
    assert address is not None
    with psycopg.connect(address.get_secret_value()) as connection:
        connection.execute(f"CREATE TABLE public.{world.name} AS SELECT 1 AS id")
        connection.commit()
        with pytest.raises(ForeignTableError, match="no commit in its log is of this stream"):
            world.rebuild()
        connection.execute(f"DROP TABLE public.{world.name}")

    world.rebuild()

    assert world.rows() == [row(3, "d")]
    assert prove(world).holds


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("sink", ["kafka"])
def test_a_topic_is_not_filled_for_two_purposes(world: World) -> None:
    """What is in it stays there, until a person has deleted it."""
    world.declare(sink="delta")
    fill(world)
    world.declare(sink="kafka")
    begin_rebuild(world)

    with pytest.raises(RefusedError, match=r"holds batches of this stream, .* delete oncelake\."):
        begin_rebuild(world, where="name <> 'd'")


@pytest.mark.parametrize("sink", ["postgres"])
def test_a_table_with_a_damaged_note_is_reset_as_the_message_says(world: World) -> None:
    """Whose it is, its head tells; the next run reads the topic into another."""
    world.send(row(1, "a"))
    world.run()
    address = world.settings.postgres
    assert address is not None
    with psycopg.connect(address.get_secret_value()) as others:
        damage = "replace(note, '\"epoch\": 1', '\"epoch\": 2')"
        others.execute(
            f"UPDATE oncelake_notes SET note = {damage} WHERE note LIKE '%{world.topic}%'".encode()
        )
    with pytest.raises(DamagedTableError, match=f"oncelake reset {world.name}"):
        world.run()

    assert reset(world.name, world.settings, run_id="r", sink=world.spec.sink).named
    world.run()

    assert find_problems(world) == ()
