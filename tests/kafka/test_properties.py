"""Further properties of Kafka's clients: few may be set, and each reaches both."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.kafka.client import client_options
from oncelake.ingestion.kafka.security import java_options, librdkafka_options
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.source.spark import _of_every_read


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of the properties."""
    return tmp_path / "client.properties"


def settings(file: Path, **more: str) -> Settings:
    """Return settings that name it."""
    return Settings.model_validate({"kafka": "k1:9092", "kafka_properties": file, **more})


def test_each_property_reaches_both_clients_by_its_name(file: Path) -> None:
    """Java's names are translated where librdkafka has others, and win over what is advised."""
    file.write_text(
        "# Of our network\n"
        "client.id=oncelake\n"
        "connections.max.idle.ms = 240000\n"
        "metadata.max.age.ms: 60000\n"
        "receive.buffer.bytes \\\n   65536\n"
        "max.partition.fetch.bytes=1048576\n"
    )
    same = {
        "client.id": "oncelake",
        "connections.max.idle.ms": "240000",
        "max.partition.fetch.bytes": "1048576",
    }

    java, python = java_options(settings(file)), librdkafka_options(settings(file))

    assert java == {
        **{f"kafka.{name}": value for name, value in same.items()},
        "kafka.metadata.max.age.ms": "60000",
        "kafka.receive.buffer.bytes": "65536",
    }
    assert python == {
        **same,
        "topic.metadata.refresh.interval.ms": "60000",
        "socket.receive.buffer.bytes": "65536",
    }
    assert java.items() <= _of_every_read(settings(file)).items()
    assert client_options(settings(file))["bootstrap.servers"] == "k1:9092"


def test_the_other_cluster_has_properties_of_its_own(file: Path) -> None:
    """What is set for the sources' cluster is not for the sinks', whose variable is named."""
    file.write_text("client.id=sources")
    there = file.with_name("sinks.properties")
    there.write_text("client.id=sinks\nacks=1")
    both = settings(file, sink_kafka="k2:9092", sink_kafka_properties=str(there))

    assert librdkafka_options(both) == {"client.id": "sources"}
    with pytest.raises(InvalidSpecError, match=r"ONCELAKE_SINK_KAFKA_PROPERTIES: .*line 2: acks: "):
        librdkafka_options(both.of_sink_cluster())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("bootstrap.servers=evil:9092", "set ONCELAKE_KAFKA instead"),
        ("request.timeout.ms=1", "set ONCELAKE_KAFKA_TIMEOUT_SECONDS instead"),
        ("security.protocol=PLAINTEXT", "set ONCELAKE_KAFKA_SECURITY_PROTOCOL"),
        ("ssl.truststore.location=ca.jks", "ONCELAKE_KAFKA_SSL_… instead"),
        ("sasl.oauthbearer.token.endpoint.url=file:/etc/passwd", "ONCELAKE_KAFKA_OAUTH_…"),
        ("ssl.endpoint.identification.algorithm=", "name are always checked"),
        ("enable.ssl.certificate.verification=false", "name are always checked"),
        ("sasl.jaas.config=com.sun.security.auth.module.JndiLoginModule required;", "load"),
        ("sasl.login.callback.handler.class=Evil", "load"),
        ("ssl.engine.factory.class=Evil", "load"),
        ("config.providers=file", "load"),
        ("interceptor.classes=Evil", "load"),
        ("metric.reporters=Evil", "load"),
        ("security.providers=Evil", "load"),
        ("plugin.library.paths=evil.so", "load"),
        ("key.deserializer=Evil", "which records are read"),
        ("group.id=another", "which records are read"),
        ("isolation.level=read_uncommitted", "which records are read"),
        ("auto.offset.reset=latest", "which records are read"),
        ("enable.auto.commit=true", "which records are read"),
        ("transactional.id=another", "which records are read"),
        ("socket.send.buffer.bytes=65536", "librdkafka's name; write send.buffer.bytes"),
        ("linger.ms=5", "none of those that may be set"),
        ("client.id=a b", "no value 'a b'"),
        ("fetch.max.bytes=much", "no value 'much'"),
        ("fetch.max.bytes=9999999999", "no value '9999999999'"),
        ("client\\.id=escaped", "none of those that may be set"),
        ("fetch.max.bytes=", "no value ''"),
        *(
            (f"{name}=0", "0 does not mean the same to both clients")
            for name in (
                *("connections.max.idle.ms", "metadata.max.age.ms"),
                *("receive.buffer.bytes", "send.buffer.bytes"),
            )
        ),
    ],
)
def test_any_other_property_is_refused_by_file_and_line(file: Path, line: str, why: str) -> None:
    """Each refusal says why, and what to do."""
    file.write_text(f"client.rack=a\n{line}\n")
    where = f"ONCELAKE_KAFKA_PROPERTIES: {file}, line 2: {line.partition('=')[0]}: "

    for options in (java_options, librdkafka_options):
        with pytest.raises(InvalidSpecError) as raised:
            options(settings(file))

        assert str(raised.value).startswith(where)
        assert why in str(raised.value)
        assert "Next: correct these lines" in str(raised.value)


def test_no_wait_before_a_client_connects_again_is_0(file: Path) -> None:
    """That means the same to both clients."""
    file.write_text("reconnect.backoff.ms=0\nreconnect.backoff.max.ms=0\n")
    no_wait = {"reconnect.backoff.ms": "0", "reconnect.backoff.max.ms": "0"}

    assert librdkafka_options(settings(file)) == no_wait
    assert java_options(settings(file)) == {f"kafka.{name}": "0" for name in no_wait}


@pytest.mark.parametrize(
    "line", ["client.dns.lookup=never", "reconnect.backoff.ms=60000", "fetch.max.bytes=10"]
)
def test_a_value_that_one_client_does_not_take_is_refused(file: Path, line: str) -> None:
    """The property is named by librdkafka, which knows its own ranges."""
    file.write_text(line)

    with pytest.raises(InvalidSpecError, match=line.partition("=")[0]) as raised:
        java_options(settings(file))

    assert str(raised.value).startswith(f"ONCELAKE_KAFKA_PROPERTIES: {file}: ")


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    """The variable and the path are in the message."""
    with pytest.raises(InvalidSpecError, match=rf"^ONCELAKE_KAFKA_PROPERTIES: {file} cannot be"):
        java_options(settings(file))
