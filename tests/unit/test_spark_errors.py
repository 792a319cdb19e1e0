"""Failures under Spark are told by what a person should do about them."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from ingestion.errors import DependencyError
from ingestion.spark_errors import told_apart


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), "the Spark JVM died"),
        (ConnectionRefusedError(111, "refused"), "the Spark JVM died"),
        (
            PySparkException(
                "x\n\tat org.apache.kafka.A\norg.apache.kafka.common.errors.Timeout: y"
            ),
            "Kafka at broker:9092 failed under Spark: x",
        ),
        (
            PySparkException("assertion failed: startingOffsets must name\n\tat a.B"),
            "Kafka at broker:9092 failed under Spark: assertion failed: startingOffsets",
        ),
        (
            PySparkException("stage failed: Timeout: offset 1 in 3 ms\n\tat o.a.s.sql.kafka010.X"),
            "Kafka at broker:9092 failed under Spark: stage failed: Timeout: offset 1 in 3 ms",
        ),
    ],
    ids=["connection to the JVM", "JVM gone", "Kafka", "partitions added", "a task of Kafka's"],
)
def test_what_may_pass_is_transient(error: Exception, said: str) -> None:
    """A dead JVM and a failing Kafka say that the same command may be run again."""
    with (
        pytest.raises(DependencyError, match=said) as raised,
        told_apart("orders", kafka="broker:9092"),
    ):
        raise error

    assert "oncelake run orders" in str(raised.value)


def test_any_other_failure_passes_as_it_is() -> None:
    """What nobody knows a remedy for keeps its own words."""
    with pytest.raises(PySparkException, match="a bug"), told_apart("orders", kafka="broker:9092"):
        raise PySparkException("a bug")
