"""No secret is written anywhere, whatever fails: not in output, logs, files, events or `ps`."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final
from urllib.parse import urlsplit

import dagster as dg
import obstore
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from dagster._core.remote_representation.external_data import RepositorySnap
from obstore.store import from_url
from pyspark.sql import SparkSession

from oncelake.assets import alerts
from oncelake.assets.definitions import definitions
from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.operations.status.status import StatusReader
from oncelake.ingestion.settings import load_settings, setting_fields, variable
from oncelake.ingestion.storage import location
from tests.cli.shell import declare, oncelake
from tests.support.http_server import Handler, served
from tests.support.http_sink import http_sink
from tests.support.long import IS_LONG
from tests.support.secure_broker import SecureBroker, unique
from tests.support.store import make_bucket
from tests.support.world import JARS, ROOT

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    # Pyiceberg's own, and Dagster's.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

_NOBODY: Final = "127.0.0.1:1"
_TABLE: Final = "schema: id INT NOT NULL, total INT\nkeys: [id]\n"
_STREAMS: Final = {
    "orders": f"topic: orders\n{_TABLE}",
    "pg": f"topic: orders\n{_TABLE}sink: {{postgres: {{table: public.orders}}}}\n",
    "ice": f"topic: orders\n{_TABLE}sink: iceberg\n",
    "out": f"topic: orders\n{_TABLE}sink: {{kafka: {{topic: orders.clean}}}}\n",
}
# Secrets of others, which their own libraries read.
_OF_OTHERS: Final = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("PYICEBERG_CATALOG__DEFAULT__TOKEN", "PYICEBERG_CATALOG__DEFAULT__CREDENTIAL"),
)


def of_secrets() -> tuple[str, ...]:
    """Return the settings that hold a secret, whatever there will be."""
    fields = setting_fields().items()
    return tuple(name for name, each in fields if "SecretStr" in str(each.annotation))


@dataclass
class Canaries:
    """One word for each secret, which must be found nowhere.

    Attributes:
        folder: Where all is written; what the test itself has planted lies beside it.
    """

    folder: Path
    words: dict[str, str] = field(default_factory=dict)

    def word(self, variable: str) -> str:
        """Return the word of a variable: letters and digits, which no spelling changes."""
        return self.words.setdefault(variable, f"Canary{secrets.token_hex(8)}")

    def value(self, name: str) -> str:
        """Return the value of a setting: its word among characters that are spelled differently."""
        word = self.word(variable(name))
        if name == "postgres":
            return f"postgresql://ingest:{word}%25%40@{_NOBODY}/shop"
        if name == "alert_webhook":
            return f"http://{_NOBODY}/{word}"
        # A header has no blank in it.
        return f'{word}{"" if name == "unity_token" else " "}"\\%/+'

    def found_in(self, text: bytes) -> set[str]:
        """Return the variables whose word is there in some spelling."""
        return {
            variable
            for variable, word in self.words.items()
            if any(spelling in text for spelling in _spellings(word))
        }

    def found_in_files(self) -> set[tuple[str, str]]:
        """Return what is in files: which variable's, and where."""
        files = (each for each in self.folder.rglob("*") if each.is_file())
        return {
            (variable, str(file.relative_to(self.folder)))
            for file in files
            for variable in self.found_in(file.read_bytes())
        }


def _spellings(word: str) -> Iterator[bytes]:
    """Yield a word as it is, and in encodings, wherever it begins in them."""
    yield from (word.encode(), word.encode().hex().encode(), word.encode("utf-16-le"))
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + word.encode())
        # Six bits a character: those that share bits with what stands around the word are not its.
        yield encoded[-(-before * 8 // 6) : (before + len(word)) * 8 // 6]


@pytest.fixture
def canaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Canaries:
    """Plant a word in every secret; let everything be written below one folder."""
    made = Canaries(tmp_path / "written")
    for name in ("tmp", "dagster"):
        (made.folder / name).mkdir(parents=True)
    (made.folder / "dagster.yaml").touch()
    monkeypatch.chdir(made.folder)
    monkeypatch.setattr(tempfile, "tempdir", str(made.folder / "tmp"))
    monkeypatch.setenv("TMPDIR", str(made.folder / "tmp"))
    for stream, text in _STREAMS.items():
        declare(made.folder, stream, text)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in _OF_OTHERS:
        monkeypatch.setenv(name, made.word(name))
    for name, value in {"URI": f"http://{_NOBODY}", "TYPE": "rest"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{name}", value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key-id")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("ONCELAKE_KAFKA", _NOBODY)
    monkeypatch.setenv("ONCELAKE_KAFKA_TIMEOUT_SECONDS", "1")
    location._store.cache_clear()
    return made


class _Echo(Handler):
    """Refuses, and says all that it was told: no server should, and some do."""

    def get(self) -> None:
        told = " ".join(f"{name}: {value}" for name, value in self.headers.items())
        body = f'{{"error_code": 40301, "message": "refused: {told.replace(chr(34), "")}"}}'
        if "AWS4" in told:
            request = f"<CanonicalRequest>{told}</CanonicalRequest>"
            body = f"<Error><Code>SignatureDoesNotMatch</Code>{request}</Error>"
        self.answer(403, body.encode(), type_="text/plain")


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """The address of a server that refuses and says all that it was told."""
    with served(_Echo) as url:
        yield url.removeprefix("http://")


@dataclass(frozen=True)
class Stage:
    """What a failure may need: the canaries, and servers that refuse."""

    canaries: Canaries
    broker: SecureBroker
    echo: str

    def login(self, mechanism: str = "scram", prefix: str = "", **changes: Any) -> dict[str, Any]:
        """Return the settings of a login with the planted password, secret and key."""
        plant, beside = self.canaries.value, self.canaries.folder.parent
        certificate = self.broker.certify("canary")
        key = load_pem_private_key(certificate.key.read_bytes(), None)
        encryption = BestAvailableEncryption(plant("kafka_ssl_key_password").encode())
        encrypted = beside / "key.pem"
        encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        login = self.broker.login(mechanism, user="canary", password="")
        login |= {
            "kafka_ssl_certificate": certificate.certificate,
            "kafka_ssl_key": encrypted,
            "kafka_ssl_key_password": plant(f"{prefix}kafka_ssl_key_password"),
        }
        for name in ("kafka_sasl_password", "kafka_oauth_client_secret"):
            if name in login:
                login[name] = plant(f"{prefix}{name}")
        given = {f"{prefix}{name}": value for name, value in login.items()}
        return {f"{prefix}kafka": self.broker.address(mechanism), **given, **changes}


Failing = Callable[[Stage], tuple[Mapping[str, Any], tuple[str, ...]]]
FAILURES: Final[dict[str, Failing]] = {
    "Kafka is not there": lambda at: (at.login(kafka=_NOBODY), ("status",)),
    "Kafka is not there, for init": lambda at: (
        at.login(kafka=_NOBODY),
        ("init", "orders", "--dry-run"),
    ),
    "Kafka is not there, for a doctor": lambda at: (at.login(kafka=_NOBODY), ("doctor",)),
    "the login is refused": lambda at: (at.login(), ("status", "orders")),
    "the login of PLAIN is refused": lambda at: (at.login("plain"), ("status", "orders", "--json")),
    "the token is refused": lambda at: (at.login("oauth"), ("status", "orders")),
    "half a login": lambda at: (at.login(kafka_sasl_username=None), ("status", "orders")),
    "no protocol": lambda at: (at.login(kafka_security_protocol=None), ("status", "orders")),
    "the key's password is wrong": lambda at: (
        at.login(kafka_ssl_key_password=at.canaries.value("sink_kafka_ssl_key_password")),
        ("status", "orders"),
    ),
    "the sinks' login is refused": lambda at: (
        {
            "kafka": at.broker.plaintext,
            **at.login(
                "plain",
                "sink_",
                sink_kafka_ssl_key_password=at.canaries.value("kafka_ssl_key_password"),
            ),
        },
        ("status", "out"),
    ),
    "the registry refuses": lambda at: (
        {
            "kafka": at.broker.plaintext,
            "schema_registry": f"http://{at.echo}",
            "schema_registry_username": "reader",
            "schema_registry_password": at.canaries.value("schema_registry_password"),
        },
        ("init", "{framed}"),
    ),
    "the registry's URL has a login": lambda at: (
        {"schema_registry": f"http://reader:{at.canaries.word('URL')}@{at.echo}"},
        ("status",),
    ),
    "PostgreSQL is not there": lambda at: (
        {"postgres": at.canaries.value("postgres")},
        ("status", "pg"),
    ),
    "no URL of PostgreSQL": lambda at: (
        {"postgres": at.canaries.value("postgres").replace("%40", "@")},
        ("status", "pg"),
    ),
    "a wrong option of PostgreSQL": lambda at: (
        {"postgres": f"{at.canaries.value('postgres')}?sslmode=nonsense"},
        ("status", "pg"),
    ),
    "another option of PostgreSQL": lambda at: (
        {"postgres": f"host=127.0.0.1 password='{at.canaries.word('ONCELAKE_POSTGRES')}"},
        ("status", "pg"),
    ),
    "Iceberg's catalog is not there": lambda at: ({}, ("status", "ice")),
    "the webhook is no URL": lambda at: (
        {"alert_webhook": at.canaries.word("ONCELAKE_ALERT_WEBHOOK")},
        ("status",),
    ),
    "the token of a catalog is on two lines": lambda at: (
        {
            "unity": "https://unity.invalid",
            "unity_token": f"{at.canaries.word('ONCELAKE_UNITY_TOKEN')}\nmore",
        },
        ("status",),
    ),
    "the store refuses": lambda at: (
        {"lake": "s3://bucket/lake", "AWS_ENDPOINT_URL": f"http://{at.echo}"},
        ("status", "orders"),
    ),
    "a login in the lake's URL": lambda at: (
        {"lake": f"s3://key:{at.canaries.word('URL')}@bucket/lake"},
        ("status",),
    ),
}

# Those by which a word was told once, and one of each kind.
_SHORT: Final = (
    *("Kafka is not there, for a doctor", "the token is refused", "the key's password is wrong"),
    *("the registry refuses", "the registry's URL has a login", "the store refuses"),
    *("PostgreSQL is not there", "a wrong option of PostgreSQL", "a login in the lake's URL"),
)


@pytest.mark.parametrize("failing", [each for each in FAILURES if each in _SHORT or IS_LONG])
def test_a_failure_shows_no_secret(
    failing: str,
    canaries: Canaries,
    secure_broker: SecureBroker,
    echo: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither what a command prints, nor what it leaves in files, has one in any spelling."""
    stage = Stage(canaries, secure_broker, echo)
    given, words = FAILURES[failing](stage)
    for name, value in given.items():
        if value is not None:
            monkeypatch.setenv(name if name.isupper() else variable(name), str(value))
    framed = unique("framed")
    if "{framed}" in words:
        make_topic(secure_broker, framed, b"\0\0\0\0\7\2")

    result = oncelake(*(each.replace("{framed}", framed) for each in words))

    assert result.exit_code != 0
    assert "unexpected" not in result.output
    assert canaries.words
    assert canaries.found_in(result.output.encode()) == set()
    assert canaries.found_in_files() == set()


def test_a_crash_leaves_no_secret_in_its_traceback(
    canaries: Canaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even an error that quotes all settings does, on the terminal or in the file."""
    monkeypatch.setenv("ONCELAKE_SINK_KAFKA", _NOBODY)
    monkeypatch.setenv("ONCELAKE_SCHEMA_REGISTRY_USERNAME", "reader")
    monkeypatch.setenv("ONCELAKE_UNITY", "https://unity.invalid")
    for name in of_secrets():
        monkeypatch.setenv(variable(name), canaries.value(name))

    def crash(*_: object) -> None:
        raise RuntimeError(f"{load_settings()!r} {load_settings().model_dump_json()}")

    monkeypatch.setattr(StatusReader, "read_status", crash)

    filed, shown = oncelake("status", "orders"), oncelake("--debug", "status", "orders")

    assert "traceback: " in filed.output
    assert "in crash" in shown.output
    assert {variable(name) for name in of_secrets()} <= {*canaries.words}
    assert canaries.found_in((filed.output + shown.output).encode()) == set()
    assert canaries.found_in_files() == set()


def test_dagster_keeps_no_secret(
    canaries: Canaries,
    secure_broker: SecureBroker,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Neither what its UI is told of, nor the events and logs of good and failed runs, has one."""
    del spark
    topic, login = reader_of_a_topic(canaries, secure_broker)
    declare(canaries.folder, "orders", f"topic: {topic}\n{_TABLE}")
    others = {name: canaries.value(name) for name in of_secrets() if "kafka" not in name}
    settings = {"kafka_timeout_seconds": 20, "jars": JARS, "spark_master": "local[2]"}
    settings |= {"schema_registry_username": "reader", "unity": "https://unity.invalid"}
    for name, value in {**others, **login, **settings}.items():
        monkeypatch.setenv(variable(name), str(value))
    monkeypatch.setattr(alerts, "_PAUSES_SECONDS", (0,))
    monkeypatch.setattr("oncelake.assets.assets.RETRY_AFTER_SECONDS", ())
    home = canaries.folder / "dagster"
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    repository = definitions().get_repository_def()

    with dg.DagsterInstance.from_config(str(home)) as instance:
        job = repository.get_job("ingest_job")
        for stream, succeeds in {"orders": True, "out": False, "pg": False}.items():
            selected = [dg.AssetKey(stream)]
            ended = job.execute_in_process(
                instance=instance, asset_selection=selected, raise_on_error=False
            )
            assert ended.success is succeeds
        with pytest.raises(DependencyError) as untold:
            alerts.post(canaries.value("alert_webhook"), "a run has failed")

    shown = dg.serialize_value(RepositorySnap.from_def(repository))
    assert "ONCELAKE_KAFKA_SASL_PASSWORD" in shown
    assert list(home.rglob("*.db"))
    said = "".join([shown, str(untold.value), *capfd.readouterr()])
    assert canaries.found_in(said.encode()) == set()
    assert canaries.found_in_files() == set()


@contextmanager
def command_lines() -> Iterator[set[bytes]]:
    """Collect the command lines of all processes while the block runs, as ``ps`` shows them."""
    seen, stop = set[bytes](), Event()

    def look() -> None:
        while not stop.wait(0.1):
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(file.read_bytes())

    thread = Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def test_a_run_leaves_no_secret(
    canaries: Canaries,
    secure_broker: SecureBroker,
    store_address: str,
    postgres_address: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two streams that are run and one that fails in Spark, no file, message or process has one.

    Kafka is reached by TLS, a certificate and a password, the lake is in a store, one sink is
    PostgreSQL; Spark writes its log of events, and OpenLineage and OpenTelemetry are told.
    """
    topic, login = reader_of_a_topic(canaries, secure_broker)
    for stream, more in {
        "orders": "",
        "pg": f"sink: {{postgres: {{table: public.{topic.replace('-', '_')}}}}}\n",
        "bad": "where: raise_error('no such order') IS NULL\n",
    }.items():
        declare(canaries.folder, stream, f"topic: {topic}\n{_TABLE}{more}")
    defaults = canaries.folder.parent / "spark-defaults.conf"
    events = canaries.folder / "events"
    events.mkdir()
    defaults.write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.compress false\nspark.eventLog.dir {events}\n"
    )
    bucket = make_bucket(store_address)
    server = urlsplit(postgres_address)
    word = canaries.word("ONCELAKE_POSTGRES")
    settings = {
        **login,
        "schema_registry_username": "reader",
        **{name: canaries.value(name) for name in ("schema_registry_password", "alert_webhook")},
        "kafka_timeout_seconds": 20,
        "postgres": f"postgresql://oncelake:{word}@{server.netloc.split('@')[1]}{server.path}",
        "lake": f"s3://{bucket}/lake",
        "jars": JARS,
        "spark_master": "local[2]",
        "spark_driver_memory": "1g",
        "spark_defaults": defaults,
    }
    for name, value in settings.items():
        monkeypatch.setenv(variable(name), str(value))
    monkeypatch.setenv("AWS_ENDPOINT_URL", store_address)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with http_sink() as posted, command_lines() as processes:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", posted.address)
        monkeypatch.setenv("OPENLINEAGE_URL", posted.address)
        command = [sys.executable, "-m", "ingestion", "--debug", "run", "orders", "pg", "bad"]
        ran = subprocess.run(command, capture_output=True, timeout=300, check=False)

    said = ran.stdout + ran.stderr
    told = b"".join(body for _, body in posted.posts)
    store = from_url(f"s3://{bucket}")
    objects = {each["path"] for each in chain.from_iterable(obstore.list(store))}
    kept = b"".join(bytes(store.get(path).bytes()) for path in objects)
    assert ran.returncode == 2, said.decode()
    assert said.count(b"balanced") == 2, said.decode()
    assert b"no such order" in said
    assert [each.name for each in events.iterdir()]
    assert b"oncelake.runs" in told
    assert b"errorMessage" in told
    assert any(b"org.apache.spark.deploy.SparkSubmit" in line for line in processes)
    assert "lake/orders/_delta_log/00000000000000000001.json" in objects
    for written in (said, told, kept, b"\n".join(processes)):
        assert canaries.found_in(written) == set()
    assert canaries.found_in_files() == set()


def reader_of_a_topic(canaries: Canaries, broker: SecureBroker) -> tuple[str, dict[str, Any]]:
    """Make a topic with records, and return it with the settings of a user who may read it."""
    user, topic = unique("canary"), unique("orders")
    login = broker.add_user(user, canaries.value("kafka_sasl_password"))
    make_topic(broker, topic, *(b'{"id": %d, "total": 1}' % n for n in range(5)))
    for made in broker.admin.create_acls([reads(user, topic)]).values():
        made.result(10)
    key = client_key(canaries, broker, user)
    return topic, {"kafka": broker.address("scram"), **login, **key}


def make_topic(broker: SecureBroker, name: str, *values: bytes) -> None:
    """Make a topic of one partition that holds these records."""
    broker.admin.create_topics([NewTopic(name, 1, 1)])[name].result(10)
    producer = Producer({"bootstrap.servers": broker.plaintext, "log_level": 0})
    for value in values:
        producer.produce(name, value)
    assert producer.flush(10) == 0


def reads(user: str, topic: str) -> AclBinding:
    """Let a user read a topic."""
    kinds = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
    return AclBinding(*kinds, f"User:{user}", "*", AclOperation.READ, AclPermissionType.ALLOW)


def client_key(canaries: Canaries, broker: SecureBroker, user: str) -> dict[str, Any]:
    """Return the settings of a certificate, whose key is encrypted as Java 17 can read it."""
    made, encrypted = broker.certify(user), canaries.folder.parent / "key.pem"
    password = canaries.value("kafka_ssl_key_password")
    command = ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", "stdin"]
    command += ["-in", str(made.key), "-out", str(encrypted)]
    subprocess.run(command, input=password.encode(), check=True)
    return {
        "kafka_ssl_certificate": made.certificate,
        "kafka_ssl_key": encrypted,
        "kafka_ssl_key_password": password,
    }
