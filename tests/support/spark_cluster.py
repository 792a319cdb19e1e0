"""A standalone cluster on loopback: a master and workers of one core each, from pip's PySpark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from oncelake.ingestion.kafka.java import find_java, pyspark_home
from oncelake.ingestion.local.process import launch, stop
from oncelake.ingestion.storage.processes import ProcessId
from tests.support.world import wait_until

_JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_STARTED = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
# What a person would write for two small executors on this machine.
DEFAULTS = """\
spark.driver.host                              127.0.0.1
spark.driver.bindAddress                       127.0.0.1
spark.executor.memory                          768m
spark.executor.extraJavaOptions                -XX:+UseSerialGC -XX:TieredStopAtLevel=1
spark.sql.shuffle.partitions                   4
spark.databricks.delta.snapshotPartitions      2
# Both are awaited, so that the probe meets both.
spark.cores.max                                2
spark.scheduler.minRegisteredResourcesRatio    1.0
"""


class SparkCluster:
    """The processes of one cluster; its folder has their logs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: dict[str, ProcessId] = {}
        self._started = 0
        self.master = ""
        self.defaults = folder / "spark-defaults.conf"
        self.defaults.write_text(DEFAULTS)

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[SparkCluster]:
        """Start a cluster, whose processes end with this one at the latest."""
        folder.mkdir(parents=True, exist_ok=True)
        cluster = cls(folder)
        master = cluster._start("master", "Master", "--port", "0")
        log = folder / "master.log"
        wait_until(lambda: _STARTED.search(log.read_text()) is not None, "the master never started")
        cluster.master = _STARTED.findall(log.read_text())[-1]
        try:
            for number in range(2):
                cluster.start_worker(f"worker-{number}", is_awaited=False)
            cluster.await_workers()
            yield cluster
        finally:
            for process in (*cluster._workers.values(), master):
                stop(process, grace_seconds=5)
            shutil.rmtree(folder / "work", ignore_errors=True)

    def start_worker(
        self, name: str, *, within: Sequence[str] = (), is_awaited: bool = True
    ) -> None:
        """Start a worker and wait until the master knows it.

        Args:
            within: The beginning of a command that runs it, as in a namespace of its own.
        """
        options = ["--cores", "1", "--memory", "1g", "--port", "0", self.master]
        options = ["--work-dir", str(self._folder / "work" / name), *options]
        self._workers[name] = self._start(name, "Worker", *options, within=within)
        self._started += 1
        if is_awaited:
            self.await_workers()

    def await_workers(self) -> None:
        """Wait until the master knows every worker that was started."""
        log = self._folder / "master.log"
        wait_until(
            lambda: log.read_text().count("Registering worker") >= self._started,
            "a worker never registered",
        )

    @contextmanager
    def with_worker(self, within: Sequence[str]) -> Iterator[Path]:
        """Have a third worker for a while, and yield the settings by which a run takes all three.

        Args:
            within: The beginning of the command that runs it, as in a namespace of its own.
        """
        self.start_worker("third", within=within)
        defaults = self._folder / "three.conf"
        defaults.write_text(f"{DEFAULTS}\nspark.cores.max 3\n")
        try:
            yield defaults
        finally:
            stop(self._workers.pop("third"), grace_seconds=5)

    def replace_lost_workers(self) -> None:
        """Start the workers again that were killed."""
        for name, process in list(self._workers.items()):
            if not process.is_alive():
                self.start_worker(name)

    def _start(self, name: str, kind: str, *options: str, within: Sequence[str] = ()) -> ProcessId:
        environment = {
            "SPARK_HOME": str(pyspark_home()),
            # Else found by Spark's scripts, which would start a JVM more for each.
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder / "work" / name),
        }
        assigned = [f"{key}={value}" for key, value in environment.items()]
        java = [find_java(), *_JVM, "-cp", f"{pyspark_home()}/jars/*"]
        server = [*java, f"org.apache.spark.deploy.{kind.lower()}.{kind}", "--host", "127.0.0.1"]
        # Executors get the driver's code from the driver.
        command = [
            *within,
            "env",
            "-u",
            "PYTHONPATH",
            *assigned,
            *server,
            "--webui-port",
            "0",
            *options,
        ]
        pid_file, log = self._folder / f"{name}.pid", self._folder / f"{name}.log"
        log.unlink(missing_ok=True)
        launch(command, pid_file=pid_file, log=log, tied=True)
        return ProcessId.of(int(pid_file.read_text()))
