"""The Spark session: its jars and settings, each in this one place.

The jars are where the settings say, or are fetched to there before the first JVM.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, Final

import pyspark
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from oncelake.ingestion.errors import SetupError
from oncelake.ingestion.kafka.java import find_java
from oncelake.ingestion.local.class_archive import archive_options, class_path
from oncelake.ingestion.local.jars import require_jars
from oncelake.ingestion.pipeline.spark.cluster import (
    for_executors,
    joined_cluster,
    refuse_silent_master,
)
from oncelake.ingestion.pipeline.spark.defaults import read_spark_defaults
from oncelake.ingestion.pipeline.spark.stores import append_store_jars, store_config
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.processes import scratch_of_this_process, sweep_scratch
from oncelake.ingestion.storage.volumes import make_folder

# Returns a session for a backlog of so many records; what runs already is not started again.
SessionFor = Callable[[int], SparkSession]

SMALL_BACKLOG_RECORDS: Final = 100_000

_LOG4J = Path(__file__).with_name("log4j2.properties")
_FOR_SMALL_BACKLOGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_FOR_LARGE_BACKLOGS = ("-XX:+UseParallelGC",)
_STDERR: Final = 2
_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_ADDRESS: Final = "SPARK_LOCAL_IP"
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


def jvm_options(chosen: str, backlog: int | None = None) -> tuple[str, ...]:
    """Return the options of compiler and garbage collector, and then those that a user chose.

    Of two options Java takes the later one; but two collectors it refuses, so ours gives way.

    Args:
        chosen: The user's own options.
        backlog: Records to read; ``None`` when that is not known, or the JVM is to last.
    """
    is_small = backlog is not None and backlog <= SMALL_BACKLOG_RECORDS
    ours = _FOR_SMALL_BACKLOGS if is_small else _FOR_LARGE_BACKLOGS
    has_collector = _COLLECTOR.search(chosen) is not None
    kept = (option for option in ours if not (has_collector and _COLLECTOR.match(option)))
    return (*kept, *filter(None, [chosen]))


# What the promise hangs on; `ingestion.pipeline.spark.defaults` says why.
_REQUIRED: Final[Mapping[str, str]] = {
    # Delta verifies each commit's checksum in full unless this zone and the JVM's are UTC.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.ansi.enabled": "true",
    # A batch's outcomes are read off the version before it, which may be older than the rewind
    # window, and whose files are there: nothing removes those of the version that it follows.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
    # With a bound on bytes, Spark measures a growing batch after each of its rows: 20 of the 25
    # microseconds that a record cost. Records bound it instead: to 1 GB where each has 1 MB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # By default moments are 96 bits, which Arrow reads as nanoseconds: 9999-12-31 is beyond.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Spark's default pattern, and what a JAAS line or a PEM key would give away.
    "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|jaas|keystore[.]key",
}
# What is recommended, and gives way to the user's own.
_RECOMMENDED: Final[Mapping[str, str]] = {
    "spark.app.name": "oncelake",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A batch generates some 80 classes; Spark's default of 100 would throw away those of the
    # last batch while compiling the next, and every batch would start cold.
    "spark.sql.codegen.cache.maxEntries": "5000",
    # Streams that run side by side get turns, each in a pool of its own.
    "spark.scheduler.mode": "FAIR",
}
_ON_ONE_MACHINE: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A cluster's defaults are 200 shuffle tasks, and 50 for each snapshot. With so few as here
    # there is nothing for adaptive execution to adapt, and waiting for it between stages took a
    # third of a small batch.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.merge.materializeSource.rddStorageLevel": "MEMORY_AND_DISK",
}


def spark_config(settings: Settings, backlog: int | None = None) -> dict[str, str]:
    """Return every setting the engine needs of Spark, less those that the user's file makes.

    Args:
        settings: Where the jars, the scratch folder and that file are, and how much memory there
            is.
        backlog: Records to read, which decides how the JVM compiles.

    Raises:
        SetupError: the jars are not there.
        InvalidSpecError: the file sets what is not the user's to set.
    """
    jars = class_path(settings.jars)
    if not jars:
        raise SetupError(f"no jars for Spark in {settings.jars / 'spark'}. Next: oncelake jars")
    scratch = scratch_of_this_process(settings.state)
    chosen = read_spark_defaults(settings.spark_defaults)
    recommended = {
        **_RECOMMENDED,
        **({} if settings.on_cluster else _ON_ONE_MACHINE),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **store_config(settings, scratch),
    }
    return {
        **{key: value for key, value in recommended.items() if key not in chosen},
        **_REQUIRED,
        "spark.master": settings.spark_master,
        "spark.driver.memory": settings.spark_driver_memory,
        "spark.driver.extraJavaOptions": " ".join(
            [
                "-Duser.timezone=UTC",
                f'"-Djava.io.tmpdir={scratch}"',
                f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
                *archive_options(settings.jars),
                *jvm_options(settings.spark_java_options, backlog),
            ]
        ),
        # A class path, and not `spark.jars`: so Spark starts in two thirds of the time.
        "spark.driver.extraClassPath": ":".join(map(str, jars)),
        **(for_executors(settings, jars, chosen) if settings.on_cluster else {}),
    }


def start_session(
    settings: Settings, more: Mapping[str, str] | None = None, *, backlog: int | None = None
) -> SparkSession:
    """Start Spark, or return the session this process already has.

    Args:
        settings: Where the jars and the scratch folder are, and how much memory there is.
        more: Settings of Spark's own beside the engine's.
        backlog: Records to read, which decides how a JVM that is started now compiles.

    Raises:
        SetupError: the jars are not there, or Java is not, or is not one that Spark runs on; or
            an executor lacks Python's packages, or the lake.
        InvalidSpecError: the user's file sets what is not theirs to set.
        DependencyError: a cluster does not answer, or has no executor for us.
    """
    if SparkContext._gateway is None:
        find_java()
        require_jars(settings, "spark")
    if SparkContext._active_spark_context is None:
        refuse_silent_master(settings.spark_master)
    config: dict[str, Any] = {**(more or {}), **spark_config(settings, backlog)}
    # Left alone, the workers that decode Avro run whatever `python3` the PATH has.
    python = read_spark_defaults(settings.spark_defaults).get("spark.pyspark.python")
    os.environ.setdefault("PYSPARK_PYTHON", python or sys.executable)
    # Otherwise Spark's script starts a Python to find out.
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).resolve().parent))
    # A JVM before the JVM: it only assembles the command.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(_FOR_SMALL_BACKLOGS))
    append_store_jars(settings)
    # Java makes no folder for its temporary files.
    make_folder(scratch_of_this_process(settings.state), "the state folder")
    sweep_scratch(settings.state)
    # What Spark raises is told as an error of ours; its log would say it before, and at length.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    with _signals_left_alone(), _translate_absent_jvm(settings):
        if SparkContext._gateway is None:
            SparkContext._ensure_initialized(gateway=_launch_jvm(config, settings))
        session = SparkSession.builder.config(map=config)
        return joined_cluster(session, settings) if settings.on_cluster else session.getOrCreate()


def _launch_jvm(config: Mapping[str, str], settings: Settings) -> JavaGateway:
    """Start the JVM, whose warning of a module that Spark adds helps nobody and has no switch.

    It reads the user's file, and no other: what lies beside some installation of Spark may set
    what the promise hangs on. Not by options, which others see in a list of processes.
    """
    given = os.environ.copy()
    nothing = scratch_of_this_process(settings.state) / "spark-defaults.conf"
    nothing.touch()
    file = shlex.join(["--properties-file", str(settings.spark_defaults or nothing)])
    os.environ[_ARGUMENTS] = f"{file} {given.get(_ARGUMENTS) or 'pyspark-shell'}"
    if not settings.on_cluster:
        # Else Spark looks up its host's own name, and a container's may be none that resolves.
        os.environ.setdefault(_ADDRESS, "127.0.0.1")
    reader, writer = os.pipe()
    threading.Thread(target=_pass_errors_on, args=(reader,), daemon=True).start()
    try:
        conf = SparkConf(loadDefaults=False).setAll(list(config.items()))
        return launch_gateway(conf, {"stderr": writer})  # type: ignore[no-untyped-call]
    finally:
        os.close(writer)
        for name in (_ARGUMENTS, _ADDRESS):
            os.environ.pop(name, None)
            if name in given:
                os.environ[name] = given[name]


def _pass_errors_on(reader: int) -> None:
    with open(reader, "rb") as lines:
        for line in lines:
            if b"WARNING: Using incubator modules" not in line:
                os.write(_STDERR, line)


class SharedSpark:
    """One JVM for streams that run side by side, each in a thread of its own.

    The settings of a session decide what a commit carries (txn, metadata), so no two streams
    share one. A stream keeps its own: the JVM remembers something of every session.
    """

    def __init__(self, start: SessionFor) -> None:
        self._start = start
        self._starting = threading.Lock()
        self._first: SparkSession | None = None
        self._sessions: dict[str, SparkSession] = {}

    def of(self, stream: str) -> SessionFor:
        """Return what gives a stream its session, to be asked in the thread of its run."""

        def session(backlog: int) -> SparkSession:
            with self._starting:
                self._first = self._first or self._start(backlog)
                if stream not in self._sessions:
                    self._sessions[stream] = self._first.newSession()
            own = self._sessions[stream]
            # Both hold for the thread: what Delta takes for the session, and whose turn it is.
            jvm: Any = own.sparkContext._jvm
            jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(own._jsparkSession)
            own.sparkContext.setLocalProperty("spark.scheduler.pool", stream)
            return own

        return session

    @property
    def has_died(self) -> bool:
        """Tell whether the JVM has ended, be it while it started, or lost its cluster for good."""
        return jvm_has_ended() or (self._first is not None and _has_stopped(self._first))


def jvm_has_ended(within_seconds: float = 0.0) -> bool:
    """Tell whether the JVM that this process started has ended, or does so in a moment."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(within_seconds)
    except TimeoutExpired:
        return False
    return True


def _has_stopped(session: SparkSession) -> bool:
    """Tell whether the context has stopped, as it does when a cluster removes its application."""
    jvm_context: Any = session.sparkContext._jsc
    return jvm_context is None or bool(jvm_context.sc().isStopped())


@contextmanager
def _translate_absent_jvm(settings: Settings) -> Iterator[None]:
    """Say what is wrong where PySpark only knows that no JVM came up."""
    try:
        yield
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        name = socket.gethostname()
        why, remedy = (
            "which needs Java 17 or newer",
            "install a JDK, version 17, 21 or 25, and point JAVA_HOME to it; see oncelake doctor",
        )
        # With keys, Spark looks it up to say whose they are, whatever its address is set to.
        has_keys = "AWS_SECRET_ACCESS_KEY" in os.environ
        needs_name = has_keys or (settings.on_cluster and _ADDRESS not in os.environ)
        if needs_name and not _resolves(name):
            why = f"which looks up this host's own name, {name}, and that does not resolve"
            where = f"{name} in /etc/hosts" if has_keys else _ADDRESS
            remedy = f"set {where} to the address of this host (on a cluster, one executors reach)"
        raise SetupError(
            f"{find_java()} did not start Spark, {why}; what it said is above. Next: {remedy}"
        ) from error


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


@contextmanager
def _signals_left_alone() -> Iterator[None]:
    """Undo PySpark's own handling of interrupts, which would cancel jobs behind our back."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        # Outside the main thread this is refused; PySpark changed nothing there either.
        with suppress(ValueError):
            signal.signal(signal.SIGINT, before)
