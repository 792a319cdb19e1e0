"""A stream into a partitioned table is proven, however its rows move between partitions."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Collection
from contextlib import closing
from itertools import product
from typing import Any, Final

import pytest
from pydantic import ValidationError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from oncelake.ingestion.errors import RefusedError, SchemaChangedError, TableAlteredError
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.sinks.iceberg.files import StagedSnapshot
from tests.support.long import IS_LONG, only_long
from tests.support.proof import find_problems
from tests.support.world import World

LAYOUTS: Final = {
    "bucket of the key": ["bucket(4, id)"],
    "day": ["day(moment)"],
    "identity": ["region"],
    "truncate": ["truncate(2, name)"],
    "two fields": ["day(moment)", "bucket(3, id)"],
}
MODES: Final[dict[str, dict[str, Any]]] = {
    "upsert": {},
    "soft": {"deletes": "soft"},
    "partial": {"ignore_null_updates": True},
    "append": {"mode": "append", "keys": [], "tombstones": "ignore"},
    "scd2": {"mode": "scd2", "sequence_by": ["at"], "tombstones": "ignore"},
}
COLUMNS: Final = "id INT NOT NULL, at INT NOT NULL, moment TIMESTAMP, region STRING, name STRING"
MOMENTS: Final = [
    *("1969-12-31T23:59:59.999999Z", "1970-01-01T00:30:00+01:00", "1970-01-01T00:00:00Z"),
    *("2024-02-29T23:59:59-05:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", None),
]
REGIONS: Final = ["eu", "us", "a/b=c d", "", "..", "é😀", None]
NAMES: Final = ["", None, "é😀x", "é😀y", "é", "aa", "aab", "gone"]


@pytest.fixture
def sink() -> str:
    """The one that has partitions."""
    return "iceberg"


def pairs_of(layouts: Collection[str]) -> list[Any]:
    """Return each layout, and each mode with another of them; what is left takes long."""
    played = {*product(layouts, ["upsert"]), *zip(layouts, reversed(MODES), strict=True)}
    return [
        pytest.param(*pair, id=" ".join(pair), marks=() if pair in played else only_long)
        for pair in product(layouts, MODES)
    ]


def record(id: int, at: int, dice: random.Random) -> dict[str, Any]:
    """Make a record of any partition."""
    drawn = {"moment": MOMENTS, "region": REGIONS, "name": NAMES}
    return {"id": id, "at": at, **{name: dice.choice(of) for name, of in drawn.items()}}


def send(
    world: World,
    dice: random.Random,
    count: int,
    *,
    deletes: bool,
    make: Callable[[int, int, random.Random], dict[str, Any]] = record,
) -> None:
    """Send records of few keys, and null values of some."""
    for _ in range(count):
        id = dice.randrange(12)
        if deletes and dice.random() < 0.2:
            world.send(None, id=id)
        else:
            world.send(make(id, dice.randrange(50), dice))


def play(
    world: World,
    dice: random.Random,
    mode: str,
    make: Callable[[int, int, random.Random], dict[str, Any]] = record,
) -> None:
    """Update, move and delete rows, keep the table up, and read records again; prove the end."""
    deletes = mode in ("upsert", "soft", "partial")
    for _ in range(3):
        send(world, dice, 25, deletes=deletes, make=make)
        assert world.run().is_balanced
    maintain(world.spec, world.settings, run_id="m", window=dt.timedelta(0))
    if mode != "partial":
        world.replay()
    send(world, dice, 25, deletes=deletes, make=make)
    world.run()

    assert find_problems(world) == ()


@pytest.mark.parametrize(("layout", "mode"), pairs_of(LAYOUTS))
@pytest.mark.parametrize("seed", range(4 if IS_LONG else 1))
def test_every_layout_holds_in_every_mode(world: World, layout: str, mode: str, seed: int) -> None:
    """Updates, moves, deletes, upkeep, and records that are read again end as the proof folds."""
    world.declare(schema=COLUMNS, partition_by=LAYOUTS[layout], **MODES[mode])

    play(world, random.Random(f"{layout} {mode} {seed}"), mode)

    assert [*map(str, world.paths.table.partitions())] == LAYOUTS[layout]


def test_other_partitions_than_the_tables_are_refused(world: World) -> None:
    """Before anything is read; an alter, or a rebuild, makes them those that are declared."""
    dice = random.Random(0)
    world.declare(schema=COLUMNS, partition_by=["region"])
    send(world, dice, 20, deletes=True)
    world.run()
    world.declare(schema=COLUMNS, partition_by=["bucket(4, id)", "day(moment)"])
    send(world, dice, 20, deletes=True)

    with pytest.raises(SchemaChangedError) as refused:
        world.run()

    says = "partition_by is [bucket(4, id), day(moment)], and the table's is [region]"
    assert says in str(refused.value)
    alter_it = f"`oncelake alter {world.name} --yes` lets new files follow it, and older ones stay"
    as_it_is = "or write `partition_by: [region]`, as the table has it; or oncelake rebuild"
    assert f"Next: partition_by: {alter_it}; {as_it_is}" in str(refused.value)
    assert len(world.ledger) == 1
    world.rebuild()
    assert [*map(str, world.paths.table.partitions())] == ["bucket(4, id)", "day(moment)"]
    assert find_problems(world) == ()


def test_an_alter_divides_new_files_otherwise(world: World) -> None:
    """Older ones stay, and are found, and so it is when they become what they were."""
    dice = random.Random(2)
    world.declare(schema=COLUMNS, partition_by=["region"])
    send(world, dice, 30, deletes=True)
    world.run()
    before = spec_ids(world)
    world.declare(partition_by=["bucket(4, id)", "day(moment)"])

    done = alter(world.spec, world.settings, drops=(), run_id="a")
    send(world, dice, 30, deletes=True)
    world.run()

    assert [change.field for change in done.changes] == ["partition_by"]
    assert find_problems(world) == ()
    assert (before, spec_ids(world) >= {1}) == ({0}, True)
    world.declare(partition_by=["region"])
    alter(world.spec, world.settings, drops=(), run_id="b")
    send(world, dice, 30, deletes=True)
    world.run()
    assert find_problems(world) == ()
    maintain(world.spec, world.settings, run_id="m", window=dt.timedelta(0))
    assert find_problems(world) == ()
    assert [*map(str, world.paths.table.partitions())] == ["region"]
    assert table_of(world).metadata.default_spec_id == 0


def test_an_alter_sorts_new_files_and_upkeep_the_others(world: World) -> None:
    """A run is refused until then; a column of the order is neither renamed nor dropped."""
    dice = random.Random(3)
    world.declare(schema=COLUMNS, partition_by=["region"])
    send(world, dice, 30, deletes=True)
    world.run()
    world.declare(sort_by=["moment", "id"])
    send(world, dice, 30, deletes=True)
    with pytest.raises(SchemaChangedError) as refused:
        world.run()
    assert "sort_by is [moment, id], and the table's is []" in str(refused.value)
    alter_it = f"`oncelake alter {world.name} --yes` lets new files follow it, and older ones stay"
    assert f"sort_by: {alter_it}; or remove it, as the table has it; or" in str(refused.value)
    assert {task.file.sort_order_id for task in table_of(world).scan().plan_files()} == {None}

    done = alter(world.spec, world.settings, drops=(), run_id="a")
    world.run()
    maintain(world.spec, world.settings, run_id="m", window=dt.timedelta(0))

    assert [change.field for change in done.changes] == ["sort_by"]
    assert {task.file.sort_order_id for task in table_of(world).scan().plan_files()} == {1}
    assert find_problems(world) == ()
    world.declare(schema=COLUMNS.replace("moment", "then"), renamed_from={"then": "moment"})
    with pytest.raises(ValidationError, match=r"sort_by\.0: 'moment' is not a column of the table"):
        _ = world.spec
    world.declare(sort_by=["id"])
    kept = "then is moment in the table, which cannot rename it: the table is sorted by it"
    with pytest.raises(RefusedError, match=kept):
        alter(world.spec, world.settings, drops=(), run_id="b")


@pytest.mark.parametrize("mode", MODES)
def test_a_sorted_table_holds_in_every_mode(world: World, mode: str) -> None:
    """With batches of several row groups, upkeep, and records that are read again."""
    world.declare(schema=COLUMNS, sort_by=["name", "moment"], **MODES[mode])

    play(world, random.Random(mode), mode)

    assert world.paths.table.sort_by() == ("name", "moment")
    assert {task.file.sort_order_id for task in table_of(world).scan().plan_files()} == {1}


def event(op: str, before: str | None, after: str | None, at: int = 0, **row: Any) -> Any:
    """Make Debezium's event of a row that moves from one region to another, of which each tells."""
    sides = {"before": before, "after": after}
    rows = {side: {"id": 1, "region": of, "at": at, **row} for side, of in sides.items() if of}
    return {"op": op, "source": {"lsn": at}, "before": None, "after": None, **rows}


# The row is not where the last event's `before` says: docs/decisions/14-before-prunes-nothing.md.
MISLEADING: Final[dict[str, list[list[Any]]]] = {
    "an event comes again": [
        [event("c", None, "eu")],
        [event("u", "eu", "us")],
        [event("u", "eu", "us")],
    ],
    "an event waits": [
        [event("c", None, "eu")],
        [event("u", "eu", "us", name=[])],
        [event("u", "us", "asia")],
    ],
    "the source has filled a column": [
        [{"op": "c", "source": {"lsn": 0}, "before": None, "after": {"id": 1, "at": 0}}],
        [event("u", "eu", "us")],
    ],
    "the table was emptied": [
        [event("c", None, "eu")],
        [{"op": "t", "source": {"lsn": 0}, "before": None, "after": None}],
        [event("c", None, "us", name=[])],
        [event("u", "us", "asia")],
    ],
}


@pytest.mark.parametrize("history", MISLEADING)
def test_a_row_is_found_where_its_before_does_not_say(world: World, history: str) -> None:
    """And is there once."""
    format_ = {"type": "debezium", "columns": {"lsn": "source.lsn"}}
    quarantine = {"quarantine_rate": {"stop_above": 1}}
    ddl = "id INT NOT NULL, at INT, region STRING, name STRING, lsn BIGINT"
    world.declare(schema=ddl, format=format_, partition_by=["region"], **quarantine)

    for batch in MISLEADING[history]:
        world.send(*batch, id=1)
        assert world.run().is_balanced

    assert [row["region"] for row in world.rows()] == [
        MISLEADING[history][-1][0]["after"]["region"]
    ]
    assert find_problems(world) == ()


def test_a_row_is_found_where_an_event_that_waited_does_not_say(world: World) -> None:
    """It is stale by then."""
    format_ = {"type": "debezium", "columns": {"lsn": "source.lsn"}}
    ddl = "id INT NOT NULL, at INT, region STRING, name STRING, lsn BIGINT NOT NULL"
    world.declare(schema=ddl, format=format_, partition_by=["region"], sequence_by=["lsn"])
    world.send(event("c", None, "eu"), id=1)
    world.run()
    world.declare(schema=ddl.replace("name STRING", "name STRING NOT NULL"))
    world.send(event("u", "eu", "us", at=1), id=1)
    world.run()
    world.send(event("u", "us", "asia", at=2, name="a"), id=1)
    world.run()
    assert len(world.quarantined()) == 1
    world.declare(schema=ddl)

    world.redrive()

    assert [row["region"] for row in world.rows()] == ["asia"]
    assert find_problems(world) == ()


def table_of(world: World) -> Table:
    """Load the table as pyiceberg has it."""
    entry: Any = world.paths.table
    return entry._entry.loaded()


def spec_ids(world: World) -> set[int]:
    """Return by which specifications the files are divided."""
    return {task.file.spec_id for task in table_of(world).scan().plan_files()}


def test_a_stream_that_says_nothing_takes_the_tables_partitions(world: World) -> None:
    """And keeps them when its rows come back as they were, or are erased."""
    dice = random.Random(1)
    world.declare(schema=COLUMNS, partition_by=["truncate(1, name)"])
    send(world, dice, 30, deletes=False)
    world.run()
    world.declare(partition_by=[])
    send(world, dice, 30, deletes=True)
    world.run()
    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")
    world.run()
    assert find_problems(world) == ()
    erase(world.spec, world.settings, key='{"id": 3}', reason="asked", run_id="e")

    assert find_problems(world) == ()
    assert [*map(str, world.paths.table.partitions())] == ["truncate(1, name)"]


def test_a_rebuild_is_the_way_out_of_deletes_by_value(world: World) -> None:
    """The remedy that the refusal names is followed."""
    world.declare(schema="id INT NOT NULL, at INT")
    world.send({"id": 1, "at": 1}, {"id": 2, "at": 1})
    world.run()
    foreign = table_of(world)
    [task] = foreign.scan().plan_files()
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=task.file.file_path,
        file_format=FileFormat.PARQUET,
        partition=task.file.partition,
        record_count=1,
        file_size_in_bytes=task.file.file_size_in_bytes,
        equality_ids=[1],
    )
    file.spec_id = task.file.spec_id
    staged = StagedSnapshot(foreign, added=[file])
    with closing(foreign.catalog) as catalog:
        catalog.commit_table(foreign, (), staged.write(Operation.OVERWRITE))
    world.send({"id": 3, "at": 1})

    with pytest.raises(TableAlteredError):
        world.run()
    with pytest.raises(RefusedError) as refused:
        rewind(world.spec, world.settings, to="seq:0", reason="theirs", run_id="r")
    assert f"oncelake rebuild {world.name}" in refused.value.remedy
    world.rebuild()

    assert [row["id"] for row in world.rows()] == [1, 2, 3]
    assert find_problems(world) == ()
