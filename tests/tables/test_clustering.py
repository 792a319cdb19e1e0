"""A stream into a clustered table is proven, and each file has a range of values of its own."""

from __future__ import annotations

import datetime as dt
import random
from itertools import pairwise
from typing import Any, Final

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.delta.files import read_delta
from oncelake.ingestion.delta.vectors import PROVIDER, living_files
from oncelake.ingestion.errors import SchemaChangedError
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.recovery.schema_diff import plan_schema_change
from oncelake.ingestion.sinks import files
from oncelake.ingestion.sinks.delta.compaction import compact
from oncelake.ingestion.sinks.iceberg.table import IcebergTable
from tests.support.long import IS_LONG, only_long, twins
from tests.support.proof import find_problems
from tests.support.world import World
from tests.tables.test_partitions import COLUMNS, MODES, pairs_of, play, record, send
from tests.tables.test_tables_of_others import ALL, ask_for, make_table, row

LAYOUTS: Final = {
    "key": ["id"],
    "text": ["name"],
    "moment": ["moment"],
    "few values": ["region", "at"],
    "ours": ["_partition", "_offset"],
}
# Of texts that begin alike, a bound that is cut short says nothing.
URL: Final = "https://shop.example.org/a/path/that/is/long"
BOTH: Final = pytest.mark.parametrize("sink", ["delta", "iceberg"])


@pytest.fixture
def sink() -> str:
    """The one whose tables Spark clusters, too."""
    return "delta"


@BOTH
@pytest.mark.parametrize("vectors", [False, *twins(True)])
@pytest.mark.parametrize(("layout", "mode"), pairs_of(LAYOUTS))
@pytest.mark.parametrize("seed", range(4 if IS_LONG else 1))
def test_every_layout_holds_in_every_mode(
    world: World, layout: str, mode: str, seed: int, vectors: bool
) -> None:
    """Updates, moves, deletes, upkeep, and records that are read again end as the proof folds."""
    world.declare(schema=COLUMNS, cluster_by=LAYOUTS[layout], **MODES[mode])
    if vectors:
        world.declare(deletion_vectors=True)

    play(world, random.Random(f"{layout} {mode} {seed}"), mode)

    assert [*world.paths.table.sort_by()] == LAYOUTS[layout]


def ranges_of(world: World, name: str) -> list[tuple[Any, Any]]:
    """Return the lowest and highest value of each file, in order."""
    if isinstance(table := world.paths.table, IcebergTable):
        begun = table.begin(world.ledger[-1].seq + 1)
        ends = begun.ends(name)
        assert ends is not None
        return sorted(map(ends, begun.files))
    adds = DeltaTable(str(world.paths.data)).get_add_actions(flatten=True)
    ends = (adds[f"{end}.{name}"].to_pylist() for end in ("min", "max"))
    return sorted(zip(*ends, strict=True))


def providers_of(world: World) -> list[str | None]:
    """Return who has clustered each file, as the log says."""
    snapshot = read_delta(world.paths.data)
    return [add.get(PROVIDER) for add in living_files(world.paths.data, snapshot).values()]


def keep_up(world: World) -> int:
    """Maintain the table with small files; return how many versions that took."""
    before = world.paths.table.log().newest_version
    if isinstance(table := world.paths.table, IcebergTable):
        return table.maintain(dt.timedelta(7), target_bytes=20_000, is_clustered=True)["compacted"]
    compact(world.paths.data, target_bytes=20_000, is_clustered=True)
    return world.paths.table.log().newest_version - before


@BOTH
@pytest.mark.parametrize("by", ["id", *twins("name")])
@pytest.mark.parametrize("vectors", [False, True], ids=["files", "vectors"])
def test_upkeep_gives_each_file_a_range_of_its_own(
    world: World, vectors: bool, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the keys came; upkeep that finds nothing to do changes nothing."""
    monkeypatch.setattr(files, "_ROWS_IN_GROUP", 1_000)
    dice = random.Random(1)
    ids = dice.sample(range(20_000), 12_000)
    world.declare(schema=COLUMNS, cluster_by=[by, "at"], deletion_vectors=vectors)
    for nth in range(6):
        some = ids[nth * 2_000 : (nth + 1) * 2_000]
        world.send(*({**record(id, nth, dice), "name": f"{URL}/{dice.random()}"} for id in some))
        world.run()
    assert any(high > low for (_, high), (low, _) in pairwise(ranges_of(world, by)))

    assert keep_up(world) > 0

    ranges = ranges_of(world, by)
    assert len(ranges) > 3
    assert all(high <= low for (_, high), (low, _) in pairwise(ranges))
    assert keep_up(world) == 0
    assert find_problems(world) == ()


@pytest.mark.parametrize("vectors", [False, True], ids=["files", "vectors"])
def test_an_alter_clusters_a_table_in_one_commit(world: World, vectors: bool) -> None:
    """The plan shows it, and a run is refused until then; a rewind brings the layout back."""
    dice = random.Random(2)
    world.declare(schema=COLUMNS, deletion_vectors=vectors)
    for _ in range(3):
        send(world, dice, 30, deletes=True)
        world.run()
    world.declare(cluster_by=["moment", "id"])
    send(world, dice, 30, deletes=True)
    with pytest.raises(SchemaChangedError, match=r"cluster_by is \[moment, id\], and the table's"):
        world.run()
    assert plan_schema_change(world.spec, world.paths).effect == "alter"
    before, version = world.rows(), world.paths.table.log().newest_version

    done = alter(world.spec, world.settings, drops=(), run_id="a")

    assert [change.field for change in done.changes] == ["cluster_by"]
    log = world.paths.table.log()
    assert (log.newest_version, world.rows()) == (version + 1, before)
    moments = [
        each for batch in world.paths.table.scan(["moment"]) for each in batch["moment"].to_pylist()
    ]
    known = [each for each in moments if each is not None]
    assert moments == [None] * (len(moments) - len(known)) + sorted(known)
    world.run()
    assert find_problems(world) == ()
    rewind(world.spec, world.settings, to="seq:2", reason="why not", run_id="r")
    assert world.paths.table.sort_by() == ()
    alter(world.spec, world.settings, drops=(), run_id="b")
    world.run()
    assert find_problems(world) == ()


@BOTH
def test_upkeep_waits_for_an_alter_that_is_due(world: World) -> None:
    """It does not sort all rows by columns that are declared no more."""
    dice = random.Random(5)
    world.declare(schema=COLUMNS, cluster_by=["at"])
    for nth in range(3):
        world.send(*(record(id, nth, dice) for id in range(nth * 9, nth * 9 + 9)))
        world.run()
    world.declare(cluster_by=["moment"])

    maintain(world.spec, world.settings, run_id="m")

    assert world.paths.table.sort_by() == ("at",)
    assert "oncelake" not in (
        [] if isinstance(world.paths.table, IcebergTable) else providers_of(world)
    )
    assert find_problems(world) == ()


def test_a_column_by_which_a_table_was_clustered_may_go(world: World) -> None:
    """No statistics are kept of it then, since Spark takes no name that is no column's."""
    dice = random.Random(6)
    world.declare(schema=COLUMNS, cluster_by=["moment"])
    send(world, dice, 20, deletes=False)
    world.run()
    world.declare(cluster_by=["name"])
    alter(world.spec, world.settings, drops=(), run_id="a")
    world.declare(schema=COLUMNS.replace("moment TIMESTAMP, ", ""))

    alter(world.spec, world.settings, drops=["moment"], run_id="b")

    said = DeltaTable(str(world.paths.data)).metadata().configuration
    assert said["delta.dataSkippingStatsColumns"] == "`id`,`_offset`,`_seq`,`name`"
    world.run()
    assert find_problems(world) == ()


def test_a_partitioned_table_is_not_clustered(world: World) -> None:
    """An alter says so, and changes nothing."""
    world.declare(schema=COLUMNS, partition_by=["id"])
    send(world, random.Random(3), 9, deletes=False)
    world.run()
    world.declare(cluster_by=["at"], partition_by=[])

    with pytest.raises(SchemaChangedError, match="`sink: delta` clusters no table with partitions"):
        alter(world.spec, world.settings, drops=(), run_id="a")

    assert world.paths.table.sort_by() == ()


@pytest.mark.kafka
@pytest.mark.spark
def test_a_table_that_others_cluster_is_theirs_to_cluster(world: World) -> None:
    """Upkeep does it where the declaration names the columns, and leaves what Spark has sorted."""
    ask_for(world, "local")
    make_table(world, ALL, "CLUSTER BY (name)")
    for nth in range(4):
        world.send(*(row(id, f"{id * 7 % 50}") for id in range(nth * 40, nth * 40 + 40)))
        world.run()
    maintain(world.spec, world.settings, run_id="m")
    assert providers_of(world) == [None]
    world.declare(cluster_by=["name"])
    for nth in range(4, 6):
        world.send(*(row(id, f"{id * 7 % 50}") for id in range(nth * 40, nth * 40 + 40)))
        world.run()

    maintain(world.spec, world.settings, run_id="m")

    assert providers_of(world) == ["oncelake"]
    names = [
        each for batch in world.paths.table.scan(["name"]) for each in batch["name"].to_pylist()
    ]
    assert names == sorted(names)
    assert find_problems(world) == ()


@only_long
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("vectors", [False, True], ids=["files", "vectors"])
def test_spark_knows_a_clustered_table_and_goes_on_with_it(world: World, vectors: bool) -> None:
    """It reads it, names its columns, optimizes it and merges into it."""
    ask_for(world, "local")
    dice = random.Random(4)
    world.declare(schema=COLUMNS, cluster_by=["moment", "name"], deletion_vectors=vectors)
    for _ in range(3):
        send(world, dice, 30, deletes=True)
        world.run()
    maintain(world.spec, world.settings, run_id="m")
    table = f"delta.`{world.paths.data}`"

    detail = world.spark.sql(f"DESCRIBE DETAIL {table}").toArrow().to_pylist()[0]

    assert detail["clusteringColumns"] == ["moment", "name"]
    read = world.spark.sql(f"SELECT id, at FROM {table} ORDER BY id").toArrow().to_pylist()
    rows = sorted(world.rows(), key=lambda each: each["id"])
    assert read == [{"id": each["id"], "at": each["at"]} for each in rows]
    world.spark.sql(f"OPTIMIZE {table}")
    world.spark.sql(f"OPTIMIZE {table} FULL")
    world.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('some' = 'thing')")
    ask_for(world, "spark")
    send(world, dice, 30, deletes=True)
    world.run()
    ask_for(world, "local")
    send(world, dice, 30, deletes=True)
    world.run()
    maintain(world.spec, world.settings, run_id="n")
    assert find_problems(world) == ()
