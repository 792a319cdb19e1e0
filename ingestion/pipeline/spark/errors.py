"""Spark's failures in a person's words, with what to do next."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException, PySparkValueError, PythonException

from oncelake.ingestion.declaration.files.loader import locating_problems
from oncelake.ingestion.declaration.gate import rule_of
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.integrity import refuse_unreadable
from oncelake.ingestion.errors import (
    BadFieldError,
    DependencyError,
    KafkaSettingsError,
    RefusedError,
    TableSettingsError,
)
from oncelake.ingestion.kafka.client import missing_right
from oncelake.ingestion.kafka.java import first_cause
from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.pipeline.schema.types import sentence_of
from oncelake.ingestion.pipeline.spark.cluster import is_of_cluster, translate_cluster_errors
from oncelake.ingestion.pipeline.spark.session import jvm_has_ended
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.damage import damaged_table
from oncelake.ingestion.storage.volumes import is_storage_error, translate_disk_errors

_DAMAGE = re.compile(
    r"ChecksumException|FAILED_READ_FILE|FileNotFoundException|is not a Parquet file"
    r"|DELTA_FILE_NOT_FOUND|DELTA_VERSIONS_NOT_CONTIGUOUS|DELTA_TRUNCATED_TRANSACTION_LOG"
)

# The classes that stand before what is said, each wrapped in another.
_EXCEPTIONS: Final = re.compile(r"^[:\s]*((\w+\.)+\w+: )+")
# What follows is the query's plan, which names Kafka whatever has failed.
_PLAN: Final = "=== Streaming Query ==="
_KAFKAS: Final = re.compile(
    r"org\.apache\.kafka\.|kafka010|KAFKA_|KafkaAdminClient|kafka consumer|startingOffsets"
    r"|Kafka (topic|data source|start offset)"
)
# Without it a task cannot read, though the driver has found the topic's offsets.
_REFUSED: Final = re.compile(r"TopicAuthorizationException: .*topics: \[(.+?)\]")
# What only Java's client can lack, surely by the settings: the other one has connected before it.
# ``{0}`` is the variable that says where Kafka is.
_OF_SETTINGS: Final = {
    r"unable to find valid certification path": "set {0}_SSL_CA to the authorities that vouch for "
    "the brokers: without it Java's client trusts those of the JVM",
    r"Invalid PEM truststore": "correct {0}_SSL_CA, which Java's client cannot read",
    r"Invalid PEM keystore": "correct {0}_SSL_CERTIFICATE, {0}_SSL_KEY and {0}_SSL_KEY_PASSWORD, "
    "which Java's client cannot read (docs/settings.md)",
    r"No LoginModule found|configuration sasl\.\S+: Class \S+ could not be found": "name the jar "
    "of the login by spark.jars in the file of ONCELAKE_SPARK_DEFAULTS (docs/settings.md)",
}
# ``{0}`` is the state folder.
_GONE: Final = r"[^\s:]*{0}/checkpoints/\S+ (does not exist|\(No such file or directory\))"
# A producer that takes nanoseconds for milliseconds sends these.
_TOO_LATE: Final = re.compile(
    r"Record at topic (\S+) partition (\d+) offset (\d+) has timestamp value (-?\d+) that overflows"
)
# States of SQL that say: the values do not suit the expression. Others are of the machine.
_OF_DATA: Final = re.compile(r"SQLSTATE: (22|42|P0)")
# In a traceback of a worker: our own code, and not that of a declared function.
_OWN: Final = "/oncelake/ingestion/"
_LONGEST: Final = 400
_LAST_BREATH_SECONDS: Final = 2.0
# The statements that are declared, by their fields.
_Statements = Mapping[tuple[str, ...], str]


@contextmanager
def translate_engine_errors(stream: Stream) -> Iterator[None]:
    """Translate what Spark, the readers of a table and its volumes raise under an operation.

    Raises:
        DependencyError: Kafka failed under Spark, the JVM or a cluster's executors died, or a
            volume fails.
        DamagedTableError: a file of a table is not as it was written.
    """
    with (
        translate_cluster_errors(stream.name, stream.settings),
        translate_spark_errors(stream.name, stream.settings),
        translate_damage(stream.paths),
        translate_disk_errors(stream.name, *stream.paths.written, stream.settings.state),
        locating_problems(stream.settings.streams),
    ):
        yield


@contextmanager
def translate_expression_errors(
    spec: StreamSpec, planned: Sequence[Range], constraints: Mapping[str, str]
) -> Iterator[None]:
    """Translate what a declared expression, or function, raises on a record of a batch.

    Spark does not say which record that is: all that is known are the ranges of the batch.

    Args:
        spec: The declaration.
        planned: What the batch covers; nothing when it comes from the quarantine.
        constraints: What the table asks of each row, as SQL by name.

    Raises:
        BadFieldError: an expression fails on a record; nothing was written.
        TableSettingsError: a constraint of the table does.
    """
    names = ("where", "apply_as_deletes", "transform")
    statements: dict[tuple[str, ...], Any] = {(name,): getattr(spec, name) for name in names}
    statements |= {("select", name): sql for name, sql in spec.select.items()}
    statements |= {("expect", name, "rule"): each.rule for name, each in spec.expect.items()}
    declared = {at: text for at, text in statements.items() if text}
    declared = declared or ({("value_schema",): spec.value_ddl} if spec.value_ddl else {})
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        which = ", ".join(str(each) for each in planned if len(each)) or "the quarantine"
        failing = [name for name, sql in constraints.items() if _is_quoted(error, sql)]
        for name in (name for name in failing if rule_of(name) is None):
            raise TableSettingsError(
                spec.name,
                f"constraint {name} of the table fails on a record of {which}: "
                f"{_said_of_record(error)} Nothing was written.",
                remedy="drop it, or set one of which no value makes Spark fail (try_cast, "
                "try_divide, try_element_at); then the same command again",
            ) from error
        if not _is_of_expression(error, declared):
            raise
        field, *others = _fields_of(error, declared)
        or_other = f"it, or {', '.join(map('.'.join, others))}, " if others else ""
        raise BadFieldError(
            spec.name,
            field,
            f"{or_other}fails on a record of {which}: {_said_of_record(error)} Nothing was "
            "written. Next: write it so that no value makes it fail (try_cast, try_divide, "
            "try_element_at, or a `where` that leaves such records out), then the same command "
            "again",
        ) from error


@contextmanager
def translate_spark_errors(stream: str, settings: Settings) -> Iterator[None]:
    """Translate failures that a rerun may cure; the others pass as they are.

    Args:
        stream: The stream that is run.
        settings: Where Kafka is, and who asks.

    Raises:
        RefusedError: a record's time stamp is beyond what Spark can hold.
        MissingRightError: Kafka's ACLs refuse a topic's records.
        KafkaSettingsError: Java's client cannot log in with them.
        DependencyError: Kafka failed under Spark, or the JVM died.
    """
    again = f"Nothing is lost. Next: oncelake run {stream}"
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, TypeError) as error:
        if _is_of_dead_jvm(error):
            raise DependencyError(
                f"{stream}: the Spark JVM died or was killed ({error}). {again}; if it dies again, "
                "it may want more memory: ONCELAKE_SPARK_DRIVER_MEMORY"
            ) from error
        if not isinstance(error, PySparkException | Py4JJavaError):
            raise
        if found := _TOO_LATE.search(str(error)):
            raise _too_late(stream, *found.groups()) from error
        if refused := _REFUSED.search(str(error)):
            raise missing_right(settings, f"READ on topic {refused[1]!r}") from error
        if gone := re.search(_GONE.format(re.escape(str(settings.state))), str(error)):
            raise DependencyError(
                f"{stream}: somebody has removed Spark's checkpoint, which the next run makes "
                f"anew, while it was in use ({gone[0]}). {again}"
            ) from error
        said = _kafkas_word(str(error))
        if said is None:
            raise
        trace = getattr(error, "_stackTrace", None) or str(error)
        raise _of_kafka(stream, settings, said, trace) from error


def _is_of_dead_jvm(error: Exception) -> bool:
    """Tell whether no JVM answers.

    PySpark takes one that is gone for one that lacks a class, a class for a package, and silence
    for a type that it does not know.
    """
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    is_answer = isinstance(error, PySparkException | Py4JJavaError)
    is_silence = isinstance(error, PySparkValueError) or not is_answer
    return is_silence and jvm_has_ended(_LAST_BREATH_SECONDS)


def _too_late(stream: str, topic: str, partition: str, offset: str, sent: str) -> RefusedError:
    return RefusedError(
        stream,
        f"the time stamp of {topic}-{partition} offset {offset} is {sent}, and no moment in "
        "milliseconds: Spark reads neither it nor what follows.",
        remedy="let a small max_offsets_per_trigger commit what lies before; then "
        f"kafka-delete-records up to offset {int(offset) + 1}, and oncelake accept {stream} "
        "--reason '…'",
    )


def _of_kafka(stream: str, settings: Settings, said: str, trace: str) -> DependencyError:
    # Why a client could not be made, or not log in.
    cause = first_cause(trace)[:_LONGEST]
    said = said if cause in said else f"{said} ({cause})"
    kafka = f"{stream}: Kafka at {settings.bootstrap_servers()} failed under Spark: {said}."
    for pattern, remedy in _OF_SETTINGS.items():
        if re.search(pattern, trace):
            mends = remedy.format(settings.kafka.variable_of())
            return KafkaSettingsError(f"{kafka} Next: {mends}; then oncelake run {stream}")
    return DependencyError(
        f"{kafka} Check the brokers. Nothing is lost. Next: oncelake run {stream}"
    )


@contextmanager
def recheck_kafka_on_failure(look: Callable[[], object]) -> Iterator[None]:
    """When Kafka failed under Spark, let ``look`` refuse with what it finds there now.

    Spark knows neither topic ids nor what retention deletes after it has planned, and says of
    both only that it cannot read.

    Raises:
        RefusedError: whatever ``look`` refuses for; where it finds nothing, the failure itself.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if _kafkas_word(str(error)) is not None:
            # A Kafka that cannot be asked either leaves the failure to speak for itself.
            with suppress(DependencyError):
                look()
        raise


@contextmanager
def translate_damage(paths: StreamPaths) -> Iterator[None]:
    """Translate what an engine says of a table's file that it cannot read as it was written.

    Raises:
        DamagedTableError: names the table, and the file in the engine's own words.
    """
    tables = (paths.data, paths.quarantine, paths.tombstones)
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        said = next((line.strip() for line in text.splitlines() if _DAMAGE.search(line)), None)
        table = next((each for each in tables if f"{each}/" in text), None)
        if said is None or table is None:
            raise
        words = _EXCEPTIONS.sub("", said)
        raise damaged_table(table, f"Spark says: {words[:300]}") from error
    except (DeltaError, pa.ArrowException, duckdb.Error):
        for table in tables:
            # Neither always names the file.
            refuse_unreadable(table)
        raise


def _is_of_expression(error: Exception, declared: _Statements) -> bool:
    """Tell whether a failure, while a batch is computed, comes of what a person declared."""
    text = str(error)
    is_of_data = _OF_DATA.search(text) is not None
    if not declared or _kafkas_word(text) is not None:
        return False
    # A text of the data may read like a failure of a volume, or of a cluster.
    if (is_storage_error(error) or is_of_cluster(error)) and not is_of_data:
        return False
    if isinstance(error, PythonException):
        # Our stages are Python, too; what they raise is no fault of the declared function.
        return ("transform",) in declared and _OWN not in text
    return isinstance(error, PySparkException) or is_of_data


def _fields_of(error: Exception, declared: _Statements) -> list[tuple[str, ...]]:
    """Return the fields that may have the expression, as far as Spark quotes it."""
    if isinstance(error, PythonException):
        return [("transform",)]
    return [at for at, text in declared.items() if _is_quoted(error, text)] or list(declared)


def _is_quoted(error: Exception, sql: str) -> bool:
    """Tell whether Spark quotes a part of an expression as what has failed."""
    quotes = error.getQueryContext() if isinstance(error, PySparkException) else ()
    parts = (each.fragment() for each in quotes if str(each.contextType()).endswith("SQL"))
    return any(part and part in sql for part in parts)


def _said_of_record(error: Exception) -> str:
    if isinstance(error, PythonException):
        lines = [line.strip() for line in str(error).splitlines()]
        return next(line for line in reversed(lines) if line and "SQLSTATE" not in line) + "."
    return sentence_of(error)


def _kafkas_word(text: str) -> str | None:
    """Return what was said last before Kafka's client, or Spark's source, shows up in a trace."""
    said = ""
    for line in map(str.strip, text.partition(_PLAN)[0].splitlines()):
        is_frame = line.startswith("at ")
        said = said if is_frame else line or said
        if _KAFKAS.search(line):
            return said.strip(": ")[-_LONGEST:]
    return None
