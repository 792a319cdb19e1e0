"""The session is the engine's own, and keeps to its folder."""

from __future__ import annotations

import datetime as dt
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from oncelake.ingestion.pipeline.spark.session import SMALL_BACKLOG_RECORDS, jvm_options
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.verify.read.snapshot import rows_in
from tests.support.world import JARS, ROOT


@pytest.mark.parametrize(
    ("backlog", "options"),
    [
        pytest.param(1, ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"), id="one record"),
        pytest.param(
            SMALL_BACKLOG_RECORDS, ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"), id="the bound"
        ),
        pytest.param(SMALL_BACKLOG_RECORDS + 1, ("-XX:+UseParallelGC",), id="beyond it"),
        pytest.param(None, ("-XX:+UseParallelGC",), id="unknown"),
    ],
)
def test_a_small_backlog_is_compiled_quickly_and_a_large_one_well(
    backlog: int | None, options: tuple[str, ...]
) -> None:
    """A JVM that soon ends compiles with its first compiler only."""
    assert jvm_options("", backlog) == options


@pytest.mark.parametrize("backlog", [1, None])
def test_the_options_of_a_user_win(backlog: int | None) -> None:
    """They come last, and a collector of theirs replaces ours: Java refuses two."""
    chosen = "-XX:TieredStopAtLevel=4 -XX:+UseG1GC"

    options = jvm_options(chosen, backlog)

    assert options[-1] == chosen
    assert not any(option.endswith("GC") for option in options[:-1])


@pytest.mark.parametrize(
    ("java", "says"),
    [
        pytest.param(None, r"no java in JAVA_HOME .*Next: install a JDK", id="none"),
        pytest.param(
            "echo no room >&2; exit 1",
            r"needs Java 17 or newer.*Next: install a JDK",
            id="one that fails",
        ),
    ],
)
def test_a_machine_without_a_fit_java_is_told_so(
    java: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run says is what the doctor would: not that a gateway has exited."""
    (tmp_path / "bin").mkdir()
    if java:
        (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\n{java}\n")
        (tmp_path / "bin" / "java").chmod(0o755)

    ended = start_elsewhere(tmp_path, JAVA_HOME=str(tmp_path))

    assert re.search(rf"SetupError: .*{says}", ended.stderr), ended.stderr
    assert ("no room" in ended.stderr.splitlines()) == bool(java)


# A host whose own name nobody resolves, as a container's may be: it takes root to make one.
_NAMELESS = ("unshare", "--uts", "sh", "-c", 'hostname nosuchhost && exec "$@"', "sh")
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a host another name")


@only_root
@pytest.mark.spark
def test_a_host_whose_own_name_does_not_resolve_runs_spark(tmp_path: Path) -> None:
    """Spark on one machine looks nobody up, and so it starts."""
    started = start_elsewhere(tmp_path, on=_NAMELESS)

    assert (started.returncode, started.stderr) == (0, "")


@only_root
@pytest.mark.spark
def test_a_host_whose_own_name_does_not_resolve_must_name_it_where_aws_keys_are(
    tmp_path: Path,
) -> None:
    """Spark looks it up to say whose keys these are; Java is not to blame."""
    keys = {"AWS_ACCESS_KEY_ID": "a-key", "AWS_SECRET_ACCESS_KEY": "a-secret"}
    refused = start_elsewhere(tmp_path, on=_NAMELESS, **keys)

    assert "this host's own name, nosuchhost, and that does not resolve" in refused.stderr
    assert "Next: set nosuchhost in /etc/hosts to the address of this host" in refused.stderr


@only_root
def test_a_driver_of_a_cluster_without_an_address_is_told_what_to_set(tmp_path: Path) -> None:
    """It is not Java that is missing; where it is set, the name is not to blame any more."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as master:
        cluster = {
            "ONCELAKE_SPARK_MASTER": f"spark://127.0.0.1:{master.getsockname()[1]}",
            "ONCELAKE_LAKE": "s3://bucket/lake",
            "JAVA_HOME": str(tmp_path),
        }
        refused = start_elsewhere(tmp_path, on=_NAMELESS, **cluster)
        mended = start_elsewhere(tmp_path, on=_NAMELESS, **cluster, SPARK_LOCAL_IP="127.0.0.1")

    assert "this host's own name, nosuchhost, and that does not resolve" in refused.stderr
    assert "Next: set SPARK_LOCAL_IP to the address" in refused.stderr
    assert "nosuchhost" not in mended.stderr
    assert "needs Java 17 or newer" in mended.stderr


def start_elsewhere(
    state: Path, *, on: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Start Spark in another process, ``on`` another host where a command makes one."""
    script = (
        "from oncelake.ingestion.settings import load_settings; "
        "from oncelake.ingestion.pipeline.spark.session import start_session; "
        f"start_session(load_settings(state={str(state)!r}, jars={str(JARS)!r}))"
    )
    return subprocess.run(
        [*on, sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.spark
def test_spark_starts_without_a_word(tmp_path: Path) -> None:
    """No warning of modules, and no advice on log levels, for who reads a run's progress."""
    started = start_elsewhere(tmp_path)

    assert (started.returncode, started.stdout, started.stderr) == (0, "", "")


KILLED = """
import contextlib, sys, threading, time
import psutil
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from oncelake.ingestion.pipeline.spark.session import SharedSpark, start_session
from oncelake.ingestion.settings import Settings

def kill_it_as_soon_as_it_can_be_asked():
    while SparkContext._gateway is None:
        time.sleep(0.001)
    for each in psutil.Process().children(recursive=True):
        each.kill()

shared = SharedSpark(lambda backlog: start_session(Settings(state=sys.argv[1], jars=sys.argv[2])))
assert not shared.has_died
threading.Thread(target=kill_it_as_soon_as_it_can_be_asked).start()
with contextlib.suppress(PySparkException, Py4JError, OSError, TypeError):
    shared.of("orders")(0)
    print("started")
psutil.wait_procs(psutil.Process().children(), 10)
print(shared.has_died)
"""


@pytest.mark.spark
def test_a_jvm_that_is_killed_while_it_starts_has_died(tmp_path: Path) -> None:
    """PySpark would ask it again for as long as the process lives, and in vain."""
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(JARS)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.stdout == "True\n", ended.stderr


@pytest.mark.spark
def test_spark_leaves_nothing_in_the_machines_temporary_folder(spark: SparkSession) -> None:
    """A JVM that is killed cannot tidy up, so all that it writes lies where the next one looks."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    folder = Path(jvm.System.getProperty("java.io.tmpdir"))

    assert folder.parent.name == "scratch"
    assert folder.is_dir()
    assert Path(spark.sparkContext.getConf().get("spark.local.dir") or "") == folder


FAR = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)


def write_far_moment(spark: SparkSession, to: Path) -> None:
    """Write a table of one moment, as late as there are any."""
    moment = spark.sql(f"SELECT TIMESTAMP '{FAR}' AS at")
    moment.write.format("delta").save(str(to))


@pytest.mark.spark
def test_a_moment_beyond_nanoseconds_is_read_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whoever reads the table by Arrow gets what Spark has written."""
    write_far_moment(spark, tmp_path / "table")

    assert DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist() == [{"at": FAR}]


@pytest.mark.spark
def test_the_proof_reads_moments_of_files_that_are_older(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A table that was written in Spark's own way is proved like any other."""
    written_as = "spark.sql.parquet.outputTimestampType"
    ours = spark.conf.get(written_as)
    spark.conf.set(written_as, "INT96")
    try:
        write_far_moment(spark, tmp_path / "table")
    finally:
        spark.conf.set(written_as, ours or "")

    table = DeltaSinkTable("table", Location.of(tmp_path / "table"))
    assert list(rows_in(table.scan(["at"]))) == [[(FAR,)]]
