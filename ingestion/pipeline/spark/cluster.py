"""A cluster of Spark's: what its executors need, and whether they have it.

Nothing is read before executors have shown that they run this code and, where the lake is a folder,
that it is the same folder there. And no wait is for ever: Spark itself waits for executors until
somebody gives it some.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
import time
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import oncelake.ingestion
from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.errors import DependencyError, SetupError
from oncelake.ingestion.local.jars import store_jars
from oncelake.ingestion.modes.engines.frame_cache import COPIES
from oncelake.ingestion.pipeline.spark.stores import is_on_s3
from oncelake.ingestion.settings import Settings, variable
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.storage.processes import scratch_of_this_process
from oncelake.ingestion.storage.volumes import make_folder

# What Spark says of a job that `_watch` has cancelled, and of no other.
_STARVED: Final = "as part of cancellation of all jobs"
_LOST: Final = re.compile(
    r"ExecutorLostFailure|[Ll]ost executor|FetchFailed|BLOCK_(ID_)?NOT_FOUND|CHECKPOINT_RDD"
    r"|maximum allowable number of times|SparkContext was shut down|stopped SparkContext"
    r"|Master removed our application|masters are unresponsive"
)
# A jar of nothing, by which an executor shows that it has the lake.
_TOKEN: Final = "shared.jar"
_EMPTY_ZIP: Final = b"PK\5\6" + bytes(18)
_CONNECT_SECONDS: Final = 10.0
_LOOK_EVERY_SECONDS: Final = 1.0
_MODULE: Final = re.compile(r"No module named '([\w.]+)'")
_PYTHON: Final = re.compile(r'Cannot run program "([^"]+)"|PYTHON_VERSION_MISMATCH[^\n]*')


def for_executors(
    settings: Settings, jars: Sequence[Path], chosen: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings by which executors get jars, zone and a place for copies of batches.

    Args:
        settings: Where the lake is.
        jars: Those of every session.
        chosen: The user's own settings, which may add to these.
    """
    place = Location.of(settings.lake)
    of_store = store_jars(settings.jars) if is_on_s3(settings.lake) else ()
    theirs = filter(None, [chosen.get("spark.jars")])
    elsewhere = chosen.get("spark.checkpoint.dir")
    copies = (
        f"{elsewhere}/oncelake" if elsewhere else f"{'file://' * place.is_local}{place}/.scratch"
    )
    options = [chosen.get("spark.executor.extraJavaOptions"), "-Duser.timezone=UTC"]
    return {
        "spark.jars": ",".join([*map(str, (*jars, *of_store)), *theirs]),
        "spark.executor.extraJavaOptions": " ".join(filter(None, options)),
        COPIES: copies,
    }


def joined_cluster(builder: Any, settings: Settings) -> SparkSession:
    """Start an application on the cluster, or return the session this process already has.

    Args:
        builder: Has every setting of the session.
        settings: Where the cluster, the lake and the scratch folder are.

    Raises:
        DependencyError: the cluster does not answer, or gives no executor.
        SetupError: an executor lacks Python's packages, or the lake.
    """
    if SparkContext._active_spark_context is not None:
        session: SparkSession = builder.getOrCreate()
        return session
    with _translate_failed_start(settings.spark_master):
        session = builder.getOrCreate()
    try:
        session.sparkContext.addPyFile(str(_packed(settings)))
        threading.Thread(target=_watch, args=(session, settings), daemon=True).start()
        _meet_executors(session, settings)
    except BaseException:
        # Who asks again is to meet them again.
        session.stop()
        raise
    return session


def refuse_silent_master(master: str) -> None:
    """Check that a cluster can be reached, before a JVM is started for it.

    Of a standalone master Spark would say after a minute that its own context has stopped.

    Raises:
        DependencyError: nobody answers there.
        SetupError: nothing says where YARN is.
    """
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise SetupError(
            "nothing says where YARN is. Next: set HADOOP_CONF_DIR to the folder with yarn-site.xml"
        )
    if not master.startswith("spark://"):
        return
    problems = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.partition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            problems.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise DependencyError(
        f"no Spark master answers ({'; '.join(problems)}). Next: start it, or set "
        f"{variable('spark_master')}"
    )


@contextmanager
def _translate_failed_start(master: str) -> Iterator[None]:
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise DependencyError(
            f"{master} started no application for us: {_cause(error)} Next: look at its own log; "
            "its Spark must be of the same version, and reach this process at spark.driver.host"
        ) from error


def _packed(settings: Settings) -> Path:
    """Write the engine as a zip, so that executors run the very code of the driver."""
    package = Path(oncelake.__file__).parent
    folder = scratch_of_this_process(settings.state)
    make_folder(folder, "the state folder")
    packed = folder / "oncelake.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for file in (package / "__init__.py", *(package / "ingestion").rglob("*.py")):
            archive.write(file, file.relative_to(package.parent))
    return packed


def _meet_executors(session: SparkSession, settings: Settings) -> None:
    """Let executors import what decodes and, where the lake is a folder, leave a file there."""
    lake = Location.of(settings.lake)
    if not lake.is_local:
        _answers(session, settings, None)
        return
    _refuse_other_file_system(session, settings)
    make_folder(lake.path, "the lake")
    folder = lake.path / f".probe-{uuid.uuid4().hex}"
    # As the folder of a table is made, which Spark's user must be able to write in, too.
    folder.mkdir()
    try:
        for host, name, problem in _answers(session, settings, str(folder)):
            if problem or not (folder / name).is_file():
                raise _not_shared(lake.path, host, problem)
    finally:
        shutil.rmtree(folder)
    _demand_of_later_executors(session, lake / ".scratch")


def _demand_of_later_executors(session: SparkSession, scratch: Location) -> None:
    """Let an executor that joins later take no task unless it has the folder, too.

    What it wrote would otherwise be in a commit, and on its own disk. Each copies the jars of the
    application first; one that is `local` is copied from where that host has it.
    """
    with suppress(FileExistsError):
        (scratch / _TOKEN).create(_EMPTY_ZIP)
    context: Any = session.sparkContext._jsc
    context.addJar(f"local:{scratch / _TOKEN}")


def _refuse_other_file_system(session: SparkSession, settings: Settings) -> None:
    """Spark takes a path without a scheme for one of the cluster's default file system."""
    jvm: Any = session.sparkContext._jvm
    context: Any = session.sparkContext._jsc
    default = jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(context.hadoopConfiguration())
    if default.getScheme() != "file":
        raise SetupError(
            f"the lake {settings.lake} is a folder, and the cluster's default file system is "
            f"{default}. Next: put the lake in a store ({variable('lake')}=s3://…), or write "
            f"`spark.hadoop.fs.defaultFS file:///` in the file of {variable('spark_defaults')}"
        )


def _answers(
    session: SparkSession, settings: Settings, folder: str | None
) -> list[tuple[str, str, str]]:
    """Probe one executor, and then as many as there are by then."""
    context: Any = session.sparkContext
    answers = []
    for is_first in (True, False):
        tasks = 1 if is_first else 2 * executor_count(context)
        with _translate_failed_probe(settings):
            ids = context.parallelize(range(tasks), tasks)
            answers += ids.mapPartitions(partial(_answer, folder)).collect()
    return answers


def _answer(folder: str | None, _: Iterable[int]) -> Iterator[tuple[str, str, str]]:
    """Return, on an executor, its host, and the file that it left; or what hindered it."""
    for each in FORMATS.values():
        import_module(each.module)
    host, name = socket.gethostname(), uuid.uuid4().hex
    try:
        if folder is not None:
            (Path(folder) / name).touch(exist_ok=False)
    except OSError as error:
        yield host, name, error.strerror or str(error)
    else:
        yield host, name, ""


def _not_shared(lake: Path, host: str, problem: str) -> SetupError:
    found = f"it cannot write there ({problem})" if problem else "what it writes there is not here"
    return SetupError(
        f"the lake {lake} is a folder that the executor on {host} does not share: {found}. Next: "
        f"put the lake in a store ({variable('lake')}=s3://…), or on a file system that is mounted "
        "at the same path on every host and that Spark's user may write"
    )


def executor_count(context: SparkContext) -> int:
    """Return how many executors the cluster has given us by now."""
    jvm_context: Any = context._jsc
    return int(jvm_context.sc().getExecutorIds().size())


@contextmanager
def _translate_failed_probe(settings: Settings) -> Iterator[None]:
    """Say what an executor lacks."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        text = str(error)
        if _STARVED in text:
            raise _starved(settings) from error
        module, python = _MODULE.search(text), _PYTHON.search(text)
        lacks = (module and f"has no package {module[1]}") or (
            python and f"is missing: {python[0]}"
        )
        if lacks:
            raise SetupError(
                f"the Python of the executors {lacks}. Next: give them an environment with the "
                "packages of requirements.lock: in their image, at the same path as here, or by "
                "spark.archives and spark.pyspark.python in the file of "
                f"{variable('spark_defaults')}"
            ) from error
        raise DependencyError(
            f"{settings.spark_master}: an executor failed before anything was read: "
            f"{_cause(error)} Next: look at its log"
        ) from error


def is_of_cluster(error: Exception) -> bool:
    """Tell whether a job failed since executors did, or since there was none."""
    text = str(error)
    return any(mark in text for mark in (_STARVED, _TOKEN)) or _LOST.search(text) is not None


@contextmanager
def translate_cluster_errors(stream: str, settings: Settings) -> Iterator[None]:
    """Translate that executors failed oftener than Spark tries again, or that there is none.

    Raises:
        DependencyError: says so; what was not committed is read again.
    """
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        if not settings.on_cluster or not is_of_cluster(error):
            raise
        if _STARVED in str(error):
            raise _starved(settings) from error
        if f".scratch/{_TOKEN}" in str(error):
            raise _not_shared(Path(settings.lake), "a host that joined late", "") from error
        raise DependencyError(
            f"{stream}: executors of {settings.spark_master} failed oftener than Spark tries "
            f"again: {_cause(error)} Nothing is lost. Next: oncelake run {stream}; if they die "
            "again, look at their logs: they may want more spark.executor.memory"
        ) from error


def _starved(settings: Settings) -> DependencyError:
    return DependencyError(
        f"{settings.spark_master} gave no executor within {settings.spark_timeout_seconds:g} s. "
        "Nothing is lost. Next: see that it has free cores, and on one host the memory of "
        "spark.executor.memory, then the same command again; "
        f"{variable('spark_timeout_seconds')} is how long to wait"
    )


def _watch(session: SparkSession, settings: Settings) -> None:
    """Cancel the jobs that have waited too long for a first executor; ends with the context."""
    context, since = session.sparkContext, None
    while True:
        time.sleep(_LOOK_EVERY_SECONDS)
        try:
            jvm_context: Any = context._jsc
            waits = jvm_context.sc().statusTracker().getActiveJobIds() and not executor_count(
                context
            )
            since = (since or time.monotonic()) if waits else None
            if since and time.monotonic() - since > settings.spark_timeout_seconds:
                jvm_context.sc().cancelAllJobs()
                since = None
        except (Py4JError, OSError, AttributeError):
            # The context or its JVM is gone, as whoever runs a job there is told.
            return


def _cause(error: Exception) -> str:
    """Return what the innermost failure says."""
    cause = getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    said = str(error if cause is None else cause.getMessage() or cause.toString())
    return f"{said.strip().splitlines()[0][:400].rstrip('.')}."
