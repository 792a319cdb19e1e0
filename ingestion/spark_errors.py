"""What Spark's failures mean to a person: told once, here, with what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from ingestion.errors import DependencyError


@contextmanager
def told_apart(stream: str) -> Iterator[None]:
    """Translate failures that a rerun may cure; the others pass as they are.

    Raises:
        DependencyError: Kafka failed under Spark, or the JVM died.
    """
    again = f"Nothing is lost. Next: oncelake run {stream}"
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise DependencyError(
            f"{stream}: the Spark JVM died or was killed ({error}). {again}; if it dies again, it "
            "may want more memory: ONCELAKE_SPARK_DRIVER_MEMORY"
        ) from error
    except (PySparkException, Py4JJavaError) as error:
        said = _kafkas_word(str(error))
        if said is None:
            raise
        raise DependencyError(f"{stream}: Kafka failed under Spark: {said}. {again}") from error


def _kafkas_word(text: str) -> str | None:
    """Return the line in which Kafka's client, or Spark's source, says what failed."""
    marks = ("org.apache.kafka.", "KAFKA_DATA_LOSS", "kafka010")
    lines = (line.strip() for line in text.splitlines() if not line.lstrip().startswith("at "))
    return next((line[:300] for line in lines if any(mark in line for mark in marks)), None)
