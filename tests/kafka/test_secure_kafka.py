"""Every client comes in by every way: TLS, certificates, passwords and tokens; or says why not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import Producer
from py4j.java_gateway import JavaGateway
from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import DependencyError, KafkaSettingsError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Range, TopicPartition
from oncelake.ingestion.kafka.properties import _ALLOWED
from oncelake.ingestion.kafka.transactions import JavaAdmin, java_admin
from oncelake.ingestion.local.produce import create
from oncelake.ingestion.operations.init.initialize import initialize
from oncelake.ingestion.operations.status.lag import LagReader
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.kafka.writer import TopicPlace, TopicWriter
from oncelake.ingestion.verify.read.snapshot import OffsetRange
from oncelake.ingestion.verify.read.topic import TopicReader, is_compacted
from oncelake.ingestion.verify.verify import verify
from tests.cli.shell import oncelake
from tests.support.frail_broker import free_ports
from tests.support.long import twins
from tests.support.proxy import Proxy
from tests.support.secure_broker import PASSWORD, STRANGER, WAYS, SecureBroker, unique
from tests.support.token_server import TokenServer
from tests.support.world import World, changed, environment_of, row, settings_in

pytestmark = [pytest.mark.kafka]

GUESSED: Final = "guessed-5ecret"
# A client of the token server whose tokens come too late.
LATE: Final = "late"
PATIENCE_SECONDS: Final = 5.0
PROPERTIES: Final = {
    "client.dns.lookup": "use_all_dns_ips",
    "client.id": "oncelake",
    "client.rack": "eu-west-1a",
    "enable.metrics.push": "false",
    "metadata.recovery.strategy": "rebootstrap",
    "connections.max.idle.ms": "240000",
    "fetch.max.bytes": "104857600",
    "max.partition.fetch.bytes": "1048576",
    "metadata.max.age.ms": "60000",
    "receive.buffer.bytes": "65536",
    "send.buffer.bytes": "65536",
    "reconnect.backoff.max.ms": "1000",
    "reconnect.backoff.ms": "50",
    "retry.backoff.max.ms": "1000",
    "retry.backoff.ms": "50",
    "socket.connection.setup.timeout.ms": "5000",
}
RECORDS = [b'{"id": %d}' % number for number in range(3)]


class Door:
    """One way in: settings that lead through it, and a topic of ``RECORDS`` behind it."""

    def __init__(self, settings: Settings, topic: str, gateway: JavaGateway) -> None:
        """Take the settings, the topic, and the JVM of Java's client."""
        self.settings, self.topic, self.gateway = settings, topic, gateway
        self.at = TopicPartition(topic, 0)
        self.range = Range(topic=topic, partition=0, start=0, end=len(RECORDS))


@pytest.fixture(scope="module")
def topic(secure_broker: SecureBroker) -> str:
    """A topic with some records."""
    name = unique("orders")
    create(Settings(kafka=secure_broker.plaintext), name, partitions=1)
    producer = Producer({"bootstrap.servers": secure_broker.plaintext, "log_level": 0})
    for record in RECORDS:
        producer.produce(name, record)
    assert producer.flush(30) == 0
    return name


@pytest.fixture(scope="module")
def gateway(secure_broker: SecureBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The JVM of Java's client, as ``find_stalls`` starts it."""
    folder = tmp_path_factory.mktemp("java")
    with java_admin(settings_in(folder, secure_broker.plaintext)) as admin:
        yield admin._gateway


@pytest.fixture(params=WAYS)
def door(
    request: pytest.FixtureRequest,
    secure_broker: SecureBroker,
    tmp_path: Path,
    topic: str,
    gateway: JavaGateway,
) -> Door:
    """Each way in."""
    way = request.param
    settings = settings_in(tmp_path, secure_broker.address(way), **secure_broker.login(way))
    return Door(settings, topic, gateway)


def admin(door: Door) -> int:
    """What plans a run, and watches it."""
    kafka = Kafka(door.settings)
    partitions = kafka.topics("orders", [door.topic]).partitions
    return kafka.stable_end(partitions)[door.at]


def reader(door: Door) -> int:
    """What proves that offsets hold no record."""
    return len(list(Kafka(door.settings).messages_in([door.range])))


def proof(door: Door) -> int:
    """What ``verify`` reads by."""
    assert not is_compacted(door.settings, door.topic)
    topics = TopicReader(door.settings, partitions=1)
    try:
        ranges = [OffsetRange(door.at, 0, len(RECORDS), records=len(RECORDS), gaps=0)]
        return sum(map(len, topics.read(ranges)))
    finally:
        topics.close()


def java(door: Door) -> int:
    """What finds transactions that hang."""
    admin = JavaAdmin(door.gateway, door.settings)
    try:
        return len(RECORDS) if admin.log_sizes([door.at])[door.at] > 0 else 0
    finally:
        admin.close()


def init(door: Door) -> int:
    """What proposes a stream's file."""
    path = door.settings.streams / "orders.yaml"
    return len(initialize(door.topic, path, limit=10, settings=door.settings).sample.records)


def sensor(door: Door) -> int:
    """What starts runs for streams that are behind."""
    spec = StreamSpec.model_validate(
        {"name": "orders", "topic": door.topic, "schema": "id INT", "keys": ["id"]}
    )
    assert LagReader(door.settings).read([spec]) == {"orders": None}
    return len(RECORDS)


def sink(door: Door) -> int:
    """What commits batches to a topic: of the sinks' cluster, which has a login of its own."""
    apart = Settings(
        kafka="nobody.invalid:9092",
        kafka_timeout_seconds=10,
        sink_kafka=door.settings.kafka.model_dump(),
    )
    place = TopicPlace(
        stream="orders",
        topic=unique("rows"),
        settings=apart.of_sink_cluster(),
    )
    place.kafka.create_topic(place.notes.topic, {}, partitions=1)
    writer = TopicWriter(place, "id")
    with writer.transaction():
        writer.send(place.notes.topic, [{"value": record} for record in RECORDS])
    # The last offset is the transaction's marker.
    return place.kafka.stable_end([place.notes])[place.notes] - 1


CLIENTS: dict[str, Callable[[Door], int]] = {
    "admin": admin,
    "reader": reader,
    "proof": proof,
    "Java": java,
    "init": init,
    "sensor": sensor,
    "sink": sink,
}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_each_client_comes_in(door: Door, client: Callable[[Door], int]) -> None:
    """By each way a client finds what the topic holds."""
    assert client(door) == len(RECORDS)


@pytest.mark.parametrize("door", ["plain"], indirect=True)
def test_both_clients_know_every_property(door: Door, tmp_path: Path) -> None:
    """A client that does not know one only warns of it, and nobody would hear."""
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in PROPERTIES.items()))
    door.settings = changed(door.settings, kafka_properties=file)
    known = door.gateway.jvm.org.apache.kafka.clients.consumer.ConsumerConfig.configNames()

    assert set(PROPERTIES) == set(_ALLOWED)
    assert set(PROPERTIES) <= set(known)
    assert admin(door) == java(door) == len(RECORDS)


@pytest.mark.parametrize("door", ["oauth"], indirect=True)
def test_a_token_endpoint_has_authorities_of_its_own(
    secure_broker: SecureBroker, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clients trust those that are set; confluent-kafka's otherwise those of the system."""
    authority = secure_broker.authority
    with TokenServer.started(authority.certify("tokens", "127.0.0.1")) as tokens:
        tokens.act_for(secure_broker.tokens)
        unknown = changed(door.settings, kafka_oauth_token_endpoint=tokens.url)
        door.settings = changed(unknown, kafka_oauth_ca=authority.file)

        assert admin(door) == java(door) == len(RECORDS)
        with pytest.raises(KafkaSettingsError, match="Next: set ONCELAKE_KAFKA_OAUTH_CA to"):
            Kafka(unknown.model_copy(update={"kafka_timeout_seconds": 3.0})).cluster_id()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        assert Kafka(unknown).cluster_id()


@pytest.mark.spark
@pytest.mark.parametrize("way", ["oauth", *twins(*sorted(WAYS.keys() - {"oauth"}))])
def test_a_stream_is_run_and_proven(
    secure_broker: SecureBroker, tmp_path: Path, spark: SparkSession, way: str
) -> None:
    """By each way Spark reads what a run commits; the proof finds it right, or says why not."""
    with World.made(settings_in(tmp_path, secure_broker.plaintext), spark) as world:
        address = secure_broker.address(way)
        world.settings = settings_in(tmp_path, address, **secure_broker.login(way))
        world.send(row(1, "a"), row(2, "b"))

        world.run()

        assert world.rows() == [row(1, "a"), row(2, "b")]
        assert verify(world.spec, world.settings).holds
        if "kafka_sasl_mechanism" in secure_broker.login(way):
            given = {**secure_broker.login(way, password=GUESSED), "kafka_timeout_seconds": 2}
            with pytest.raises(KafkaSettingsError, match="Next: correct ONCELAKE_KAFKA_"):
                verify(world.spec, settings_in(tmp_path, address, **given))


class Refusal(NamedTuple):
    """A way in that leads nowhere: where to, with which settings, and what a person is told."""

    address: str
    given: dict[str, Any]
    exit_code: int
    cause: str
    remedy: str


def refusals(broker: SecureBroker, cut: str) -> dict[str, Refusal]:
    """Everything that is wrong with a login, a certificate or a connection."""
    address, login, variable = broker.address, broker.login, "ONCELAKE_KAFKA"
    guessed = {"password": GUESSED}
    expired = broker.certify("of-the-past", valid=False)
    plain = {"kafka_sasl_mechanism": "PLAIN"}
    no_tls = {"kafka_security_protocol": "SASL_PLAINTEXT", "kafka_ssl_ca": None}
    password = f"correct {variable}_SASL_USERNAME and {variable}_SASL_PASSWORD"
    certificate = f"set {variable}_SSL_CERTIFICATE and {variable}_SSL_KEY"
    speak_tls = f"set {variable}_SECURITY_PROTOCOL to SSL or SASL_SSL"
    of_past = {"kafka_ssl_certificate": expired.certificate, "kafka_ssl_key": expired.key}
    gone = {"kafka_oauth_token_endpoint": "http://127.0.0.1:1/token"}
    return {
        "wrong password, SCRAM": Refusal(
            address("scram"), login("scram", **guessed), 2, "invalid credentials", password
        ),
        "wrong password, PLAIN": Refusal(
            address("plain"), login("plain", **guessed), 2, "Invalid username", password
        ),
        "wrong client secret": Refusal(
            *(address("oauth"), login("oauth", **guessed), 2, "invalid_client"),
            f"correct {variable}_OAUTH_CLIENT_ID and {variable}_OAUTH_CLIENT_SECRET",
        ),
        "expired token": Refusal(
            address("oauth"), login("oauth", user=LATE), 5, "unexpired token", "compare the clocks"
        ),
        "no token endpoint": Refusal(
            *(address("oauth"), login("oauth") | gone, 5, "Could not connect"),
            f"check {variable}_OAUTH_TOKEN_ENDPOINT",
        ),
        "another mechanism": Refusal(
            *(address("scram without TLS"), login("scram without TLS") | plain, 2, "Unsupported"),
            f"set {variable}_SASL_MECHANISM",
        ),
        "expired certificate": Refusal(
            address("expired"), login("expired"), 5, "certificate has expired", "renew it"
        ),
        "another host": Refusal(
            *(address("another host"), login("another host"), 2, "not valid for '127.0.0.1'"),
            f"write the brokers in {variable}",
        ),
        "unknown authority": Refusal(
            address("tls"),
            login("tls") | {"kafka_ssl_ca": broker.another_authority.file},
            *(2, "local issuer certificate", f"set {variable}_SSL_CA"),
        ),
        "no certificate": Refusal(
            address("mtls"), login("tls"), 2, "alert bad certificate", certificate
        ),
        "expired certificate of ours": Refusal(
            address("mtls"), login("tls") | of_past, 2, "alert certificate", certificate
        ),
        "no TLS": Refusal(address("tls"), {}, 2, "speaks TLS", speak_tls),
        "a login without TLS": Refusal(
            address("scram"), login("scram") | no_tls, 2, "speaks TLS", speak_tls
        ),
        "TLS where there is none": Refusal(
            *(address("scram without TLS"), login("tls"), 2, "PLAINTEXT broker listener"),
            f"set {variable}_SECURITY_PROTOCOL to PLAINTEXT",
        ),
        "cut off": Refusal(
            cut, login("scram without TLS"), 5, "does not answer within", "SASL_PLAINTEXT"
        ),
        "no right": Refusal(
            address("plain"),
            login("plain", user=STRANGER),
            5,
            "lacks DESCRIBE on topic",
            "grant it",
        ),
    }


REFUSED: Final = (
    *("wrong password, SCRAM", "wrong password, PLAIN", "wrong client secret", "expired token"),
    *("no token endpoint", "another mechanism", "expired certificate", "another host"),
    *("unknown authority", "no certificate", "expired certificate of ours", "no TLS"),
    *("a login without TLS", "TLS where there is none", "cut off", "no right"),
)


@pytest.fixture(scope="module")
def outcomes(
    secure_broker: SecureBroker, tmp_path_factory: pytest.TempPathFactory, topic: str
) -> Iterator[dict[str, tuple[Refusal, DependencyError, float]]]:
    """What a client says to each refusal, and after how many seconds; all at once."""
    folder, (port,) = tmp_path_factory.mktemp("refused"), free_ports(1)
    secure_broker.tokens.clients[LATE] = PASSWORD
    secure_broker.tokens.late.add(LATE)

    def meet(refusal: Refusal) -> tuple[Refusal, DependencyError, float]:
        given = {"kafka_timeout_seconds": PATIENCE_SECONDS, **refusal.given}
        began = time.monotonic()
        with pytest.raises(DependencyError) as raised:
            Kafka(settings_in(folder, refusal.address, **given)).topics("orders", [topic])
        return refusal, raised.value, time.monotonic() - began

    behind = int(secure_broker.address("scram without TLS").rpartition(":")[2])
    with Proxy.between(behind, port=port) as proxy, ThreadPoolExecutor(len(REFUSED)) as threads:
        # After the answer that names the mechanisms.
        proxy.switch("cut", cut_after=40)
        asked = refusals(secure_broker, f"127.0.0.1:{port}")
        assert tuple(asked) == REFUSED
        yield dict(zip(asked, threads.map(meet, asked.values()), strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_sentence_with_its_remedy(
    outcomes: dict[str, tuple[Refusal, DependencyError, float]], name: str
) -> None:
    """It says what is wrong and which setting mends it, in time, with its exit code."""
    refusal, error, seconds = outcomes[name]

    said, _, remedy = str(error).partition(". Next: ")

    assert refusal.address in said
    assert refusal.cause in said
    assert refusal.remedy in remedy
    assert error.exit_code == refusal.exit_code
    assert seconds < PATIENCE_SECONDS + 5
    assert "\n" not in str(error)
    assert not any(secret in str(error) for secret in (GUESSED, PASSWORD))


def test_a_command_ends_as_the_login_was_refused(
    secure_broker: SecureBroker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line exits with 2, names the remedy, and shows no secret, nor does its JSON."""
    login = secure_broker.login("scram", password=GUESSED)
    settings = settings_in(home, secure_broker.address("scram"), kafka_timeout_seconds=2, **login)
    for name, value in environment_of(settings).items():
        if name.startswith("ONCELAKE_KAFKA"):
            monkeypatch.setenv(name, value)

    ran, status = oncelake("run", "orders"), oncelake("status", "orders", "--json")

    for result in (ran, status):
        assert result.exit_code == 2
        assert "correct ONCELAKE_KAFKA_SASL_USERNAME" in " ".join(result.output.split())
        assert GUESSED not in result.output
