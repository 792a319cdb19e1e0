"""What Spark's failures mean to a person: told once, here, with what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import TimeoutExpired

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from ingestion.errors import DependencyError

_LAST_BREATH_SECONDS = 2.0


@contextmanager
def told_apart(stream: str) -> Iterator[None]:
    """Translate failures that a rerun may cure; the others pass as they are.

    Raises:
        DependencyError: Kafka failed under Spark, or the JVM died.
    """
    again = f"Nothing is lost. Next: oncelake run {stream}"
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        said = _kafkas_word(str(error))
        if said is None:
            raise
        raise DependencyError(f"{stream}: Kafka failed under Spark: {said}. {again}") from error
    except (Py4JError, ConnectionError, TypeError) as error:
        # PySpark takes a JVM that is gone for one that lacks a class, or a class for a package.
        if not (isinstance(error, Py4JNetworkError | ConnectionError) or _jvm_is_gone()):
            raise
        raise DependencyError(
            f"{stream}: the Spark JVM died or was killed ({error}). {again}; if it dies again, it "
            "may want more memory: ONCELAKE_SPARK_DRIVER_MEMORY"
        ) from error


def _jvm_is_gone() -> bool:
    """Tell whether the JVM that this process started has ended, or is ending just now."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(_LAST_BREATH_SECONDS)
    except TimeoutExpired:
        return False
    return True


def _kafkas_word(text: str) -> str | None:
    """Return the line in which Kafka's client, or Spark's source, says what failed."""
    marks = ("org.apache.kafka.", "KAFKA_DATA_LOSS", "kafka010")
    lines = (line.strip() for line in text.splitlines() if not line.lstrip().startswith("at "))
    return next((line[:300] for line in lines if any(mark in line for mark in marks)), None)
