"""Failures under Spark are told by what a person should do about them."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkValueError, PythonException

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import BadFieldError, DependencyError, KafkaSettingsError
from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.pipeline.spark.errors import (
    translate_expression_errors,
    translate_spark_errors,
)
from oncelake.ingestion.settings import Settings

PLANNED = (Range(topic="orders", partition=0, start=0, end=2),)


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
        (
            PySparkException(
                "Failed to create new KafkaAdminClient\nCaused by: x.LoginException: y\n"
                "Caused by: java.io.IOException: code 401"
            ),
            r"KafkaAdminClient \(java.io.IOException: code 401\)\. Check",
        ),
        (
            PySparkException(
                "org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed\n"
                "Caused by: javax.net.ssl.SSLHandshakeException: Remote host terminated the "
                "handshake\nCaused by: java.io.EOFException: SSL peer shut down incorrectly"
            ),
            r"SSL handshake failed \(java.io.EOFException: .*\)\. Check the brokers",
        ),
        (
            PySparkException(
                "org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed\n"
                "Caused by: javax.net.ssl.SSLHandshakeException: PKIX path validation failed: x\n"
                "Caused by: java.security.cert.CertificateExpiredException: NotAfter: y"
            ),
            r"CertificateExpiredException: NotAfter: y\)\. Check the brokers",
        ),
    ],
    ids=[
        *("connection to the JVM", "JVM gone", "Kafka", "partitions added", "a task of Kafka's"),
        *("a login", "a handshake that is cut", "the brokers' certificate has expired"),
    ],
)
def test_what_may_pass_is_transient(error: Exception, said: str) -> None:
    """A dead JVM and a failing Kafka say that the same command may be run again."""
    with (
        pytest.raises(DependencyError, match=said) as raised,
        translate_spark_errors("orders", Settings(kafka="broker:9092")),
    ):
        raise error

    assert "oncelake run orders" in str(raised.value)
    assert raised.value.exit_code == 5


@pytest.mark.parametrize(
    ("causes", "remedy"),
    [
        (
            (
                "org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed",
                "javax.net.ssl.SSLHandshakeException: PKIX path building failed: sun.security."
                "provider.certpath.SunCertPathBuilderException: unable to find valid certification "
                "path to requested target",
            ),
            "set ONCELAKE_KAFKA_SSL_CA to .* trusts those of the JVM; then",
        ),
        (
            (
                "org.apache.kafka.common.errors.InvalidConfigurationException: Invalid PEM "
                "truststore configs",
                "java.io.IOException: Incomplete BER/DER data",
            ),
            "correct ONCELAKE_KAFKA_SSL_CA,",
        ),
        (
            (
                "org.apache.kafka.common.errors.InvalidConfigurationException: Invalid PEM "
                "keystore configs",
                "java.security.NoSuchAlgorithmException: PBES2 SecretKeyFactory not available",
            ),
            "correct ONCELAKE_KAFKA_SSL_CERTIFICATE, ONCELAKE_KAFKA_SSL_KEY and",
        ),
        (
            ("javax.security.auth.login.LoginException: No LoginModule found for a.b.LoginModule",),
            "name the jar of the login",
        ),
        (
            (
                "org.apache.kafka.common.config.ConfigException: Invalid value a.b.Handler for "
                "configuration sasl.client.callback.handler.class: Class a.b.Handler could not be "
                "found.",
            ),
            "name the jar of the login",
        ),
    ],
    ids=["authorities", "file of authorities", "key", "login module", "handler of a login"],
)
def test_what_java_cannot_log_in_with_is_of_the_settings(
    causes: tuple[str, ...], remedy: str
) -> None:
    """No second try mends it; the words are those of Spark 4.2 and Java 17."""
    first = "org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient"
    trace = "".join(f"\nCaused by: {each}" for each in causes)

    with (
        pytest.raises(KafkaSettingsError, match=f"failed under Spark: .*Next: {remedy}") as raised,
        translate_spark_errors("orders", Settings(kafka="broker:9092")),
    ):
        raise PySparkException(first + trace)

    assert (raised.value.exit_code, causes[-1] in str(raised.value)) == (2, True)


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("PythonSQLUtils does not exist in the JVM"),
        PySparkValueError("[CANNOT_PARSE_DATATYPE] PythonSQLUtils: Error while sending"),
    ],
    ids=["a class", "a type"],
)
@pytest.mark.parametrize("seconds", [0, 60], ids=["the JVM is gone", "the JVM lives"])
def test_what_is_missing_may_be_a_jvm_that_is_gone(
    seconds: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's misleading word is believed only while the JVM lives."""
    with subprocess.Popen(["sleep", str(seconds)]) as jvm:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
        expected = type(error) if seconds else DependencyError

        with (
            pytest.raises(expected, match="PythonSQLUtils"),
            translate_spark_errors("orders", Settings(kafka="broker:9092")),
        ):
            raise error
        jvm.kill()


@pytest.mark.parametrize(
    "said",
    [
        "File file:/state/checkpoints/orders/1/commits does not exist\n=== Streaming Query ===",
        "java.io.FileNotFoundException: /state/checkpoints/orders/1/offsets/3 "
        "(No such file or directory)",
    ],
    ids=["a folder", "a file"],
)
def test_a_checkpoint_that_somebody_removes_is_made_anew(said: str) -> None:
    """It holds nothing that the table's log does not."""
    with (
        pytest.raises(DependencyError, match=r"removed .*1/\w+.* Nothing is lost\. Next: oncelake"),
        translate_spark_errors("orders", Settings(kafka="broker:9092", state="/state")),
    ):
        raise PySparkException(said)


def test_any_other_failure_passes_as_it_is() -> None:
    """What nobody knows a remedy for keeps its own words."""
    with (
        pytest.raises(PySparkException, match="a bug"),
        translate_spark_errors("orders", Settings(kafka="broker:9092")),
    ):
        raise PySparkException("a bug")


def declared(**fields: Any) -> StreamSpec:
    """Return a stream with some expressions."""
    fields = {"topic": "orders", "schema": "id INT, total INT", "keys": ["id"], **fields}
    return StreamSpec.model_validate({"name": "orders", **fields})


@pytest.mark.parametrize(
    "error",
    [
        PythonException("OSError: [Errno 28] No space left on device\nSQLSTATE: 38000"),
        PySparkException("Job aborted: java.io.IOException: No space left on device"),
    ],
    ids=["in a worker", "in the JVM"],
)
def test_a_full_disk_is_no_fault_of_the_declaration(error: Exception) -> None:
    """What fails beside the declared function or expression keeps its own words."""
    spec = declared(transform="tests.support.transforms.doubling", where="id > 0")

    with pytest.raises(type(error)) as raised, translate_expression_errors(spec, PLANNED, {}):
        raise error

    assert raised.value is error


def test_a_record_that_reads_like_a_full_disk_is_a_record() -> None:
    """Spark quotes the value that does not fit, whatever it says."""
    said = "[CAST_INVALID_INPUT] 'No space left on device' is no INT. SQLSTATE: 22018"

    with (
        pytest.raises(BadFieldError, match=r"where: fails on a record of orders-0 \[0, 2\)"),
        translate_expression_errors(declared(where="id > 0"), PLANNED, {}),
    ):
        raise PySparkException(said)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PySparkException("Division by zero"), "where: it, or transform, fails on a record"),
        (PythonException("ZeroDivisionError: division by zero"), "transform: fails on a record"),
    ],
    ids=["SQL that Spark does not quote", "Python"],
)
def test_every_field_that_may_have_failed_is_named(error: Exception, says: str) -> None:
    """Where Spark quotes nothing all expressions are candidates, and none is accused alone."""
    spec = declared(transform="tests.support.transforms.doubling", where="id > 0")

    with pytest.raises(BadFieldError, match=says), translate_expression_errors(spec, PLANNED, {}):
        raise error
