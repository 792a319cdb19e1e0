"""Failures under Spark are told by what a person should do about them."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from ingestion.errors import DependencyError
from ingestion.pipeline.spark_errors import translate_spark_errors


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
        translate_spark_errors("orders", kafka="broker:9092"),
    ):
        raise error

    assert "oncelake run orders" in str(raised.value)


@pytest.mark.parametrize("seconds", [0, 60], ids=["the JVM is gone", "the JVM lives"])
def test_a_class_that_is_missing_may_be_a_jvm_that_is_gone(
    seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's misleading word is believed only while the JVM lives."""
    with subprocess.Popen(["sleep", str(seconds)]) as jvm:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
        expected = Py4JError if seconds else DependencyError

        with (
            pytest.raises(expected, match="PythonSQLUtils"),
            translate_spark_errors("orders", kafka="broker:9092"),
        ):
            raise Py4JError("PythonSQLUtils does not exist in the JVM")
        jvm.kill()


def test_any_other_failure_passes_as_it_is() -> None:
    """What nobody knows a remedy for keeps its own words."""
    with (
        pytest.raises(PySparkException, match="a bug"),
        translate_spark_errors("orders", kafka="broker:9092"),
    ):
        raise PySparkException("a bug")
