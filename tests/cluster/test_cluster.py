"""Spark on a cluster: the same rows, whoever of it dies; and a word where it cannot work."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.local.jars import store_jars
from oncelake.ingestion.storage.failpoints import Failpoint
from tests.cluster.runs import on_cluster, run
from tests.modes.scenario import SCENARIOS, SCHEMA, Scenario, produce_records
from tests.support.long import IS_LONG, only_long, twins
from tests.support.proof import find_problems, prove
from tests.support.spark_cluster import SparkCluster
from tests.support.world import JARS, World, row
from tests.trials.failpoints import PlannedCrash, kills_in

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

# Each takes the cluster some ten seconds; the stream of the user's code is an upsert.
MODES = SCENARIOS if IS_LONG else ()
USER_CODE = "tests.cluster.user_code.with_place_of_code"


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """Streams that one command has run, and how it ended."""

    worlds: dict[str, World]
    ended: subprocess.CompletedProcess[str]
    kills: list[str]


def planned(cluster: SparkCluster, visits: Path, **more: Any) -> PlannedCrash:
    """Plan the kill of an executor, unless it is told otherwise, before a batch is committed."""
    crash = {"way": "kill_executor", "place": Failpoint.PREPARED, "visits": str(visits), **more}
    return PlannedCrash(master=cluster.master, **crash)


@pytest.fixture(scope="module")
def ingested(
    spark_cluster: SparkCluster, kafka_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ingested]:
    """Every write mode, and where there is time executors are killed in reading and merging."""
    folder = tmp_path_factory.mktemp("modes")
    settings, visits = on_cluster(folder, kafka_address, spark_cluster), folder / "visits"
    first = planned(spark_cluster, visits, place=Failpoint.BATCH_PLANNED, delay_seconds=0.5)
    kills = [first, replace(first, place=Failpoint.PREPARED, nth=3)]
    with World.made(settings, cast("Any", None)) as source:
        produce_records(source)
        declared = {each.name: {"schema": SCHEMA, **each.declared} for each in MODES}
        declared["user_code"] = {"schema": SCHEMA, "keys": ["id"], "transform": USER_CODE}
        declared["user_code"]["sequence_by"] = ["at"]
        worlds = {
            name: replace(source, declared={"name": name, **fields})
            for name, fields in declared.items()
        }
        ended = run(list(worlds.values()), *(kills if IS_LONG else ()))
        yield Ingested(worlds=worlds, ended=ended, kills=kills_in(visits))
    shutil.rmtree(folder, ignore_errors=True)


@only_long
def test_killed_executors_cost_time_and_not_the_run(ingested: Ingested) -> None:
    """Their part of the batch is computed again, from Kafka or from the copy of the batch."""
    assert ingested.ended.returncode == 0, ingested.ended.stderr[-3000:]
    assert len(ingested.kills) == 2


@pytest.mark.parametrize("scenario", MODES, ids=str)
def test_every_write_mode_is_right_on_a_cluster(ingested: Ingested, scenario: Scenario) -> None:
    """The proof finds the rows of the fold, and the books of each batch right."""
    world = ingested.worlds[scenario.name]

    if scenario.is_proven:
        assert find_problems(world) == ()
    else:
        assert prove(world).holds


def test_executors_run_the_code_of_the_driver_and_of_the_user(ingested: Ingested) -> None:
    """Neither is installed there: the one is sent as an archive, the other with the task."""
    assert ingested.ended.returncode == 0, ingested.ended.stderr[-3000:]
    table = DeltaTable(ingested.worlds["user_code"].paths.data.path)

    places = set(table.to_pyarrow_table(columns=["name"])["name"].to_pylist())

    assert {place.rpartition("/oncelake.zip/")[2] for place in places} == {
        "oncelake/ingestion/__init__.py"
    }


def test_copies_of_batches_do_not_stay(ingested: Ingested) -> None:
    """What a batch needed is deleted when it is done."""
    lake = ingested.worlds["user_code"].settings.lake

    assert list((lake / ".scratch").rglob("rdd-*")) == []
    assert list(lake.glob(".probe-*")) == []


@pytest.fixture
def world(spark_cluster: SparkCluster, kafka_address: str, tmp_path: Path) -> Iterator[World]:
    """A stream of a lake that the cluster writes."""
    settings = on_cluster(tmp_path, kafka_address, spark_cluster)
    with World.made(settings, cast("Any", None)) as made:
        yield made


@pytest.mark.skipif(not IS_LONG, reason="make cluster-kills plays more of these")
def test_the_run_after_a_killed_one_heals_though_a_worker_dies(
    world: World, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    """The first dies before its commit; the second loses a worker in its merge, and ends with 0."""
    visits = tmp_path / "visits"
    world.send(*(row(i % 50, f"n{i}", i) for i in range(200)), b"garbage")
    driver = planned(spark_cluster, visits, way="kill_group", delay_seconds=0.3)

    killed = run([world], driver)
    healed = run([world], replace(driver, way="kill_worker"))

    spark_cluster.replace_lost_workers()
    assert killed.returncode == -9
    assert healed.returncode == 0, healed.stderr[-3000:]
    assert len(kills_in(visits)) == 2
    assert find_problems(world) == ()


def without(lake: Path) -> list[str]:
    """Return the beginning of a command that has another, empty disk where the lake is."""
    lake.mkdir()
    return ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {lake} && exec "$@"', "sh"]


@pytest.mark.skipif(not IS_LONG, reason="the probe of executors runs in every test of a cluster")
def test_a_lake_that_executors_do_not_share_is_refused(
    world: World, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    """A worker that has another disk at the same path would write where nobody reads."""
    world.send(row(1, "a"))
    with spark_cluster.with_worker(without(tmp_path / "lake")) as defaults:
        refused = run([world], ONCELAKE_SPARK_DEFAULTS=str(defaults))

    assert refused.returncode == 2
    assert f"the lake {tmp_path}/lake is a folder that the executor on " in refused.stderr
    assert "Next: put the lake in a store" in refused.stderr
    assert not world.paths.data.exists()


@pytest.mark.skipif(not (IS_LONG and store_jars(JARS)), reason="a twin; and needs make setup-s3")
def test_a_cluster_writes_to_a_store(
    world: World, bucket: str, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    """Executors get the jars of the store, too, and an executor that dies takes no copy with it."""
    world.settings = world.settings.model_copy(update={"lake": bucket})
    for partition in range(2):
        world.send(*(row(i, f"n{i}", i) for i in range(1_000)), b"garbage", partition=partition)
    world.declare(sequence_by=["at"])
    visits = tmp_path / "visits"

    ended = run([world], planned(spark_cluster, visits, delay_seconds=0.5))

    assert ended.returncode == 0, ended.stderr[-3000:]
    assert kills_in(visits)
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    ("defaults", "code", "says"),
    [
        pytest.param(
            "spark.executor.memory 900g",
            5,
            r"gave no executor within 3 s\..*Next: see that it has free cores",
            id="no executor",
        ),
        *twins(
            pytest.param(
                "spark.pyspark.python /nowhere/python",
                2,
                r'Python of the executors is missing: Cannot run program "/nowhere/python".*give',
                id="no Python",
            )
        ),
    ],
)
def test_a_cluster_that_cannot_work_is_told_of(
    world: World,
    spark_cluster: SparkCluster,
    tmp_path: Path,
    defaults: str,
    code: int,
    says: str,
) -> None:
    """Spark would wait for ever, or name a task of its own."""
    world.send(row(1, "a"))
    file = tmp_path / "spark-defaults.conf"
    own = spark_cluster.defaults.read_text().replace("Ratio    1.0", "Ratio  0")
    file.write_text(f"{own}\n{defaults}\n")

    ended = run([world], ONCELAKE_SPARK_DEFAULTS=str(file), ONCELAKE_SPARK_TIMEOUT_SECONDS="3")

    assert (ended.returncode, bool(re.search(says, ended.stderr))) == (code, True), ended.stderr
