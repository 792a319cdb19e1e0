"""Spark on S3: its commits overwrite none, whoever else commits, and its waits are bounded."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from oncelake.ingestion.delta.files import open_delta, storage_options
from oncelake.ingestion.errors import SetupError
from oncelake.ingestion.pipeline.spark.stores import (
    append_store_jars,
    refuse_missing_jars,
    store_config,
)
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.location import Location
from tests.support.long import IS_LONG, only_long, twins
from tests.support.spark_worker import SparkWorker
from tests.support.store import environment_of_store, make_bucket, use_store
from tests.support.store_proxy import COMMIT, StoreProxy
from tests.support.world import JARS, ROOT

# How often each of two writers commits, where both are JVMs, and where one is delta-rs.
JVM_COMMITS, MIXED_COMMITS = (25, 100) if IS_LONG else (8, 8)
LOCAL = ROOT / "ingestion" / "local"


@pytest.fixture(scope="module")
def proxy(store_address: str) -> Iterator[StoreProxy]:
    """The proxy by which all of this module reach the store."""
    with StoreProxy.before(store_address) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def worker(
    proxy: StoreProxy, store_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkWorker]:
    """A JVM that knows nothing of others."""
    yield from started_worker(proxy, tmp_path_factory.mktemp("worker"))


@pytest.fixture(scope="module")
def other_worker(
    proxy: StoreProxy, store_address: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkWorker]:
    """Another one."""
    yield from started_worker(proxy, tmp_path_factory.mktemp("worker"))


def started_worker(proxy: StoreProxy, state: Path) -> Iterator[SparkWorker]:
    """Start one that reaches the store by the proxy."""
    environment = {**os.environ, **environment_of_store(proxy.address)}
    with SparkWorker.started("s3://any/lake", state, **environment) as worker:
        yield worker
    shutil.rmtree(state, ignore_errors=True)


@pytest.fixture
def table(store_address: str, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a table that is not there yet."""
    use_store(proxy.address, monkeypatch)
    return f"s3://{make_bucket(store_address)}/lake/table"


def opened(table: str) -> DeltaTable:
    """Open a table by delta-rs."""
    return open_delta(Location.of(table))


def ids_in(table: str) -> list[int]:
    """Return the ids of a table, each as often as it is there."""
    ids: list[int] = opened(table).to_pyarrow_table()["id"].to_pylist()
    return sorted(ids)


def append_by_delta_rs(table: str, ids: range) -> list[int]:
    """Commit each id by itself, and return those that were acknowledged."""
    options = storage_options(Location.of(table))
    acknowledged = []
    for id_ in ids:
        rows = pa.table({"id": [id_], "value": ["new"]})
        while id_ not in acknowledged:
            try:
                write_deltalake(table, rows, mode="append", storage_options=options)
                acknowledged.append(id_)
            except CommitFailedError:
                continue
    return acknowledged


@pytest.mark.spark
@only_long
def test_spark_and_delta_rs_see_one_table(worker: SparkWorker, table: str) -> None:
    """What Spark has merged, delta-rs reads, and the other way about."""
    worker.append(table, range(3))
    worker.merge(table, range(2, 5), "merged")
    append_by_delta_rs(table, range(5, 6))
    worker.merge(table, range(5, 6), "merged")

    rows = worker.rows(table)

    assert rows == opened(table).to_pyarrow_table().sort_by("id").to_pylist()
    assert {row["id"]: row["value"] for row in rows} == {
        **dict.fromkeys(range(2), "new"),
        **dict.fromkeys(range(2, 6), "merged"),
    }


@pytest.mark.spark
@pytest.mark.skipif(not IS_LONG, reason="the JVM beside delta-rs is the same race")
def test_no_commit_of_two_jvms_is_lost(
    worker: SparkWorker, other_worker: SparkWorker, table: str
) -> None:
    """Of two that write one version, one is told so, and writes the next."""
    worker.append(table, range(1))
    ranges = [range(1, 1 + JVM_COMMITS), range(1 + JVM_COMMITS, 1 + 2 * JVM_COMMITS)]

    with ThreadPoolExecutor() as pool:
        acknowledged = list(
            pool.map(lambda each, ids: each.append(table, ids), (worker, other_worker), ranges)
        )

    assert ids_in(table) == [0, *acknowledged[0], *acknowledged[1]]
    assert opened(table).version() == 2 * JVM_COMMITS


@pytest.mark.spark
@only_long
def test_no_commit_of_a_jvm_and_delta_rs_is_lost(worker: SparkWorker, table: str) -> None:
    """They have nothing in common but the store."""
    worker.append(table, range(1))
    split, end = 1 + MIXED_COMMITS, 1 + 2 * MIXED_COMMITS

    with ThreadPoolExecutor() as pool:
        by_spark = pool.submit(worker.append, table, range(1, split))
        by_delta_rs = append_by_delta_rs(table, range(split, end))

    assert ids_in(table) == [0, *by_spark.result(), *by_delta_rs]
    assert opened(table).version() == 2 * MIXED_COMMITS


@pytest.mark.spark
@only_long
def test_a_commit_that_comes_late_overwrites_none(
    worker: SparkWorker, table: str, proxy: StoreProxy
) -> None:
    """It was prepared when its version was not there yet, and is put when it is."""
    worker.append(table, range(1))

    with ThreadPoolExecutor() as pool, proxy.fault("delay", COMMIT, times=1, seconds=5) as late:
        appended = pool.submit(worker.append, table, range(1, 2))
        while not late:
            assert not appended.done(), "it was not delayed"
            time.sleep(0.05)
        append_by_delta_rs(table, range(2, 3))
        appended.result()

    assert [request.status for request in late] == [412]
    assert ids_in(table) == [0, 1, 2]


@pytest.mark.spark
@pytest.mark.parametrize(
    "times", [pytest.param(1, id="once"), *twins(pytest.param(None, id="always"))]
)
def test_a_commit_whose_answer_is_lost_is_there_once(
    times: int | None, worker: SparkWorker, table: str, proxy: StoreProxy
) -> None:
    """The client repeats it, and is refused for what it has put itself."""
    worker.append(table, range(1))

    with proxy.fault("lost_answer", COMMIT, times=times) as lost:
        worker.append(table, range(1, 2))

    assert len(lost) == (times or len(lost))
    assert ids_in(table) == [0, 1]
    assert opened(table).version() == 1


@pytest.mark.spark
@only_long
def test_a_merge_asks_little_of_the_store(
    worker: SparkWorker, table: str, proxy: StoreProxy
) -> None:
    """Every request is paid for; nothing is renamed, and no new name is looked for first."""
    worker.append(table, range(3))

    with proxy.counted() as requests:
        worker.merge(table, range(2, 4), "merged")

    assert len(requests) <= 40, requests
    assert requests.counts.keys() == {"GET", "HEAD", "LIST", "PUT"}


@pytest.mark.spark
def test_no_empty_object_stands_for_a_folder(worker: SparkWorker, table: str) -> None:
    """Their names end with a slash; delta-rs's library lists them without, and deletes another."""
    worker.append(table, range(1))

    files = Location.of(table).files()

    assert all(files.values()), files


def test_no_setting_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's settings are shown and handed on; the keys stay in the environment."""
    use_store("http://store:9000", monkeypatch)
    secrets = {"AWS_SECRET_ACCESS_KEY": "geheim", "AWS_SESSION_TOKEN": "geheim"}
    for name, secret in secrets.items():
        monkeypatch.setenv(name, secret)

    config = store_config(Settings(lake="s3://bucket/lake"), Path("/scratch"))

    assert not [key for key, value in config.items() if "geheim" in value]
    assert config["spark.hadoop.fs.s3a.endpoint"] == "http://store:9000"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, {}, id="AWS, which tells the region of a bucket"),
        pytest.param({"AWS_REGION": "eu-central-1"}, {"endpoint.region": "eu-central-1"}, id="AWS"),
        pytest.param(
            {"AWS_ENDPOINT_URL": "https://store"},
            {
                "endpoint": "https://store",
                "endpoint.region": "us-east-1",
                "path.style.access": "true",
            },
            id="another store",
        ),
        pytest.param(
            {
                "AWS_ENDPOINT_URL_S3": "https://store",
                "AWS_DEFAULT_REGION": "here",
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
            },
            {"endpoint": "https://store", "endpoint.region": "here"},
            id="one with a host for each bucket",
        ),
    ],
)
def test_spark_reaches_the_store_that_delta_rs_reaches(
    given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are told by the same variables."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    config = store_config(Settings(lake="s3://bucket/lake"), Path("/scratch"))

    names = ("endpoint", "endpoint.region", "path.style.access")
    prefix = "spark.hadoop.fs.s3a."
    assert {name: config[prefix + name] for name in names if prefix + name in config} == expected


def test_a_lake_elsewhere_needs_nothing_of_s3(tmp_path: Path) -> None:
    """A folder has no settings of a store, and is not refused for want of its jars."""
    settings = Settings(lake=tmp_path / "lake", jars=tmp_path)

    refuse_missing_jars(settings, None)

    assert store_config(settings, tmp_path) == {}


@pytest.mark.parametrize(
    ("obstacle", "why"), [(None, "it is told to"), ("v is a VARIANT", "v is a VARIANT")]
)
def test_spark_is_refused_without_the_jars_for_s3(
    obstacle: str | None, why: str, tmp_path: Path
) -> None:
    """The sentence says why Spark is needed at all, and how to get them."""
    settings = Settings(lake="s3://bucket/lake", jars=tmp_path)

    with pytest.raises(SetupError, match=rf"\({why}\).*Next: oncelake jars --s3"):
        refuse_missing_jars(settings, obstacle)


def test_the_jars_for_s3_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the archive of classes, which was made without them, still fits; once is enough."""
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/opt/hadoop/*")
    settings = Settings(lake="s3://bucket/lake", jars=JARS)

    for _ in range(2):
        append_store_jars(settings)

    first, ours, *others = os.environ["SPARK_DIST_CLASSPATH"].split(":")
    assert (first, Path(ours).name) == ("/opt/hadoop/*", "spark_s3.jar")
    assert len(others) == len(list((JARS / "s3").glob("*.jar")))


def test_the_classes_of_ours_are_made_of_their_source(tmp_path: Path) -> None:
    """A change of the source is not forgotten in the jar; the JDK that it is made by is 17."""
    with zipfile.ZipFile(LOCAL / "spark_s3.jar") as jar:
        made = {name: jar.read(name) for name in jar.namelist()}
    sources = sorted(LOCAL.glob("*.java"))

    assert {source.name: source.read_bytes() for source in sources}.items() <= made.items()
    javac = shutil.which("javac")
    if javac and "javac 17." in subprocess.check_output([javac, "-version"], text=True):
        jars = (Path(*pyspark.__path__) / "jars", JARS / "spark", JARS / "s3")
        class_path = ":".join(f"{folder}/*" for folder in jars)
        command = [javac, "--release", "17", "-d", str(tmp_path), "-cp", class_path]
        subprocess.run([*command, *map(str, sources)], check=True)
        classes = {str(file.relative_to(tmp_path)): file for file in tmp_path.rglob("*.class")}
        compiled = {name: file.read_bytes() for name, file in classes.items()}
        assert compiled == {name: made[name] for name in made if name.endswith(".class")}
