"""Both clients connect alike, or neither tries."""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelake.ingestion.declaration.sinks import KafkaSink
from oncelake.ingestion.errors import (
    DependencyError,
    InvalidSpecError,
    KafkaSettingsError,
    SetupError,
)
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.client import client_options, unreachable
from oncelake.ingestion.kafka.diagnosis import diagnose
from oncelake.ingestion.kafka.security import java_options, librdkafka_options, redact
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.kafka.table import open_table
from oncelake.ingestion.storage.location import Location
from tests.support.certificates import Authority
from tests.support.token_server import TokenServer

CANARY = 'can"ary\\5ecret'
SASL: dict[str, Any] = {
    "kafka_security_protocol": "SASL_SSL",
    "kafka_sasl_mechanism": "SCRAM-SHA-512",
    "kafka_sasl_username": "loader",
    "kafka_sasl_password": CANARY,
}
OAUTH: dict[str, Any] = {
    "kafka_security_protocol": "SASL_SSL",
    "kafka_sasl_mechanism": "OAUTHBEARER",
    "kafka_oauth_token_endpoint": "https://login.example.com/token",
    "kafka_oauth_client_id": "loader",
    "kafka_oauth_client_secret": CANARY,
}
NO_USER = {"kafka_sasl_username": None, "kafka_sasl_password": None}
MSK: dict[str, Any] = {
    "kafka": "b-1.orders.abc.c2.kafka.eu-west-1.amazonaws.com:9098",
    "kafka_security_protocol": "SASL_SSL",
    "kafka_sasl_mechanism": "AWS_MSK_IAM",
}
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDcanary"


def pem(kind: str) -> str:
    """Return a PEM block of that kind; no client reads it here."""
    return f"-----BEGIN {kind}-----\n{BODY}\n-----END {kind}-----\n"


@pytest.fixture(autouse=True, scope="module")
def no_settings_of_this_machine() -> Iterator[None]:
    """Forget what the environment says of Kafka."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ONCELAKE_")]:
            patch.delenv(name)
        yield


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Return settings of TLS with a certificate of our own."""
    (tmp_path / "ca.pem").write_text(pem("CERTIFICATE"))
    (tmp_path / "cert.pem").write_text(pem("CERTIFICATE"))
    (tmp_path / "key.pem").write_text(pem("ENCRYPTED PRIVATE KEY"))
    return {
        "kafka_security_protocol": "SSL",
        "kafka_ssl_ca": tmp_path / "ca.pem",
        "kafka_ssl_certificate": tmp_path / "cert.pem",
        "kafka_ssl_key": tmp_path / "key.pem",
        "kafka_ssl_key_password": CANARY,
    }


def test_nothing_set_adds_nothing() -> None:
    """A plain Kafka needs no option of either client."""
    assert java_options(Settings()) == librdkafka_options(Settings()) == {}


def test_sasl_is_spelt_for_both_clients() -> None:
    """The Java client is told by a JAAS line, librdkafka by name."""
    settings = Settings(**SASL)

    assert java_options(settings) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="loader" password="can\\"ary\\\\5ecret";'
        ),
    }
    assert librdkafka_options(settings) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "loader",
        "sasl.password": CANARY,
    }


def test_plain_has_its_own_login() -> None:
    """Each mechanism names the login module that speaks it."""
    settings = Settings(**{**SASL, "kafka_sasl_mechanism": "PLAIN"})

    assert ".plain.PlainLoginModule required" in java_options(settings)["kafka.sasl.jaas.config"]


def test_tls_is_spelt_for_both_clients(files: dict[str, Any]) -> None:
    """The Java client is given certificate and key as contents, librdkafka as files."""
    settings = Settings(**files)

    assert java_options(settings) == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": files["kafka_ssl_ca"].read_text(),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": pem("CERTIFICATE"),
        "kafka.ssl.keystore.key": pem("ENCRYPTED PRIVATE KEY"),
        "kafka.ssl.key.password": CANARY,
    }
    assert librdkafka_options(settings) == {
        "security.protocol": "SSL",
        "ssl.ca.location": str(files["kafka_ssl_ca"]),
        "ssl.certificate.location": str(files["kafka_ssl_certificate"]),
        "ssl.key.location": str(files["kafka_ssl_key"]),
        "ssl.key.password": CANARY,
    }


def test_tokens_are_requested_by_both_clients() -> None:
    """The Java client reads the login from the JAAS line, and the address beside it."""
    settings = Settings(**OAUTH, kafka_oauth_scope="kafka", kafka_timeout_seconds=2)
    security, secret = "org.apache.kafka.common.security.oauthbearer", 'can\\"ary\\\\5ecret'

    java, python = java_options(settings), librdkafka_options(settings)

    assert java["kafka.sasl.jaas.config"] == (
        f'{security}.OAuthBearerLoginModule required clientId="loader" clientSecret="{secret}" '
        'scope="kafka";'
    )
    assert java["kafka.sasl.login.callback.handler.class"].startswith(security)
    assert java["kafka.sasl.login.read.timeout.ms"] == "2000"
    assert python["sasl.oauthbearer.client.secret"] == CANARY
    assert python["sasl.oauthbearer.token.endpoint.url"] == OAUTH["kafka_oauth_token_endpoint"]
    assert "5ecret" not in redact(java["kafka.sasl.jaas.config"], settings)


@pytest.mark.parametrize(
    "url", ["http://login.example.com/token", "file:///etc/passwd", "https://a:b@c/token", "ldap:"]
)
def test_a_token_endpoint_is_encrypted(url: str) -> None:
    """The client's secret goes to no other host in the clear, and no file is taken for a token."""
    for name in ("kafka_oauth_token_endpoint", "sink_kafka_oauth_token_endpoint"):
        with pytest.raises(ValueError, match="must be https://host/path"):
            Settings(**{name: url})


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({}, SetupError, "Next: pip install aws-msk-iam-sasl-signer-python"),
        ({"kafka_sasl_username": "loader"}, InvalidSpecError, "AWS_MSK_IAM sends it nowhere"),
    ],
    ids=["without AWS's library", "with a password"],
)
def test_iam_of_msk_needs_what_it_needs(
    changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    """The login is AWS's, and comes by AWS's library."""
    with pytest.raises(error, match=says):
        librdkafka_options(Settings(**{**MSK, **changes}))


def test_iam_of_msk_is_the_login_of_java() -> None:
    """Java's client loads AWS's classes, and has no login from us."""
    assert java_options(Settings(**MSK)) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "AWS_MSK_IAM",
        "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "kafka.sasl.client.callback.handler.class": (
            "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
        ),
    }


@pytest.mark.parametrize("given", [SASL, OAUTH], ids=["SCRAM", "OAUTHBEARER"])
def test_librdkafka_knows_every_option(given: dict[str, Any]) -> None:
    """The client itself accepts the names and values."""
    options = librdkafka_options(Settings(**given))
    AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **options})


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1), st.text(min_size=1))
def test_any_password_survives_the_jaas_line(username: str, password: str) -> None:
    """Read back as the Java client reads it, name and password are what was set."""
    settings = Settings(
        **{**SASL, "kafka_sasl_username": username, "kafka_sasl_password": password}
    )

    line = java_options(settings)["kafka.sasl.jaas.config"]

    assert "\n" not in line
    assert "\r" not in line
    quoted = re.fullmatch(r'\S+ required username="(.*)" password="(.*)";', line, re.DOTALL)
    assert quoted is not None
    assert [_unescaped(text) for text in quoted.groups()] == [username, password]


def _unescaped(text: str) -> str:
    """Undo what Java's StreamTokenizer undoes inside quotes; a bare quote would end the text."""
    parts = re.findall(r'\\.|[^\\"]', text, re.DOTALL)
    assert "".join(parts) == text
    return "".join({"\\n": "\n", "\\r": "\r"}.get(part, part[-1]) for part in parts)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        pytest.param({"kafka_sasl_mechanism": None}, ["SASL_MECHANISM"], id="no mechanism"),
        pytest.param({"kafka_sasl_username": None}, ["SASL_USERNAME"], id="no user"),
        pytest.param({"kafka_sasl_password": None}, ["SASL_PASSWORD"], id="no password"),
        pytest.param(
            {"kafka_security_protocol": None},
            ["SASL_USERNAME", "SECURITY_PROTOCOL"],
            id="no protocol",
        ),
        pytest.param({"kafka_security_protocol": "SSL"}, ["SASL_PASSWORD"], id="TLS only"),
        pytest.param(
            {"kafka_oauth_client_id": "loader"},
            ["OAUTH_CLIENT_ID is set, and SCRAM-SHA-512 sends it nowhere", "SASL_MECHANISM to OAU"],
            id="another login",
        ),
        pytest.param(
            {**OAUTH, "kafka_sasl_password": None},
            ["SASL_USERNAME is set, and OAUTHBEARER sends it nowhere", "SASL_MECHANISM to PLAIN"],
            id="a user beside a client",
        ),
        pytest.param(
            {**OAUTH, **NO_USER, "kafka_oauth_client_secret": None},
            ["OAUTH_CLIENT_SECRET is not set, and OAUTHBEARER needs it"],
            id="no client secret",
        ),
        pytest.param(
            {**OAUTH, **NO_USER, "kafka_oauth_ca": Path("gone.pem")},
            ["OAUTH_CA names"],
            id="no such authorities",
        ),
    ],
)
def test_half_a_login_is_refused(changes: dict[str, Any], names: list[str]) -> None:
    """A login that would be incomplete, or sent nowhere, is refused by its variable."""
    settings = Settings(**{**SASL, **changes})

    for options in (java_options, librdkafka_options):
        with pytest.raises(InvalidSpecError) as raised:
            options(settings)
        assert all(f"ONCELAKE_KAFKA_{name}" in str(raised.value) for name in names)
        assert CANARY not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"kafka_ssl_key": None}, "CERTIFICATE is set without .*_KEY;", id="no key"),
        pytest.param(
            {"kafka_ssl_certificate": None}, "KEY is set without .*_CERTIFICATE;", id="no cert"
        ),
        pytest.param({"kafka_ssl_key_password": None}, "is encrypted", id="no password"),
        pytest.param({"kafka_security_protocol": None}, "encrypts nothing", id="no protocol"),
        pytest.param(
            {"kafka_security_protocol": "PLAINTEXT"}, "SSL_CA is set, and PLAINTEXT", id="plaintext"
        ),
        pytest.param(
            {"kafka_ssl_ca": "gone.pem"}, "SSL_CA names .*gone.pem.*No such", id="no file"
        ),
        pytest.param({"kafka_ssl_ca": "."}, "SSL_CA names .*Is a directory", id="folder"),
        pytest.param({"kafka_ssl_ca": "key.pem"}, "contains no PEM certificate", id="wrong file"),
        pytest.param(
            {"kafka_ssl_key": "ca.pem"}, "contains no PEM private key", id="no key in the file"
        ),
        pytest.param({"kafka_ssl_key": "old.pem"}, "openssl pkcs8 -topk8", id="PKCS#1"),
        pytest.param({"kafka_ssl_key": "open.pem"}, "is not encrypted; remove", id="open key"),
    ],
)
def test_half_of_tls_is_refused(
    files: dict[str, Any], tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    """What only one client could use, or neither, is refused by its variable."""
    (tmp_path / "old.pem").write_text(pem("RSA PRIVATE KEY"))
    (tmp_path / "open.pem").write_text(pem("PRIVATE KEY"))
    changed = {
        name: tmp_path / value if isinstance(value, str) and "protocol" not in name else value
        for name, value in changes.items()
    }
    settings = Settings(**{**files, **changed})

    for options in (java_options, librdkafka_options):
        with pytest.raises(InvalidSpecError, match=says) as raised:
            options(settings)
        assert CANARY not in str(raised.value)


@pytest.mark.parametrize(
    "spell",
    [str, repr, json.dumps, lambda text: java_options(Settings(**SASL))["kafka.sasl.jaas.config"]],
    ids=["plain", "repr", "JSON", "JAAS"],
)
def test_a_secret_is_removed_in_every_spelling(spell: Any) -> None:
    """However a client writes the password into its message, it does not come out."""
    said = redact(f"login failed for {spell(CANARY)} at b:1", Settings(**SASL))

    assert "5ecret" not in said
    assert said.startswith("login failed for ")
    assert said.endswith(" at b:1")
    assert "***" in said


def test_a_key_is_removed_in_whole_and_in_part(files: dict[str, Any]) -> None:
    """The private key's contents do not come out, nor any line of it."""
    settings = Settings(**files)

    for text in (pem("ENCRYPTED PRIVATE KEY"), f"bad base64 in {BODY}", repr(BODY)):
        assert BODY not in redact(text, settings)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("unknown protocol sasl_plaintext", "unknown protocol sasl_plaintext"),
        ("explained plainly", "explained plainly"),
        ('password="plain";', 'password="***";'),
        ("login plain failed", "login *** failed"),
        ("user_plain", "user_***"),
    ],
)
def test_a_short_password_is_no_piece_of_a_word(said: str, shown: str) -> None:
    """The word stays readable; the password itself does not come out."""
    assert redact(said, Settings(**{**SASL, "kafka_sasl_password": "plain"})) == shown


def test_a_text_without_secrets_stays_as_it_is() -> None:
    """Where nothing is secret, nothing is changed."""
    assert redact("no broker", Settings()) == "no broker"


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ({}, "ONCELAKE_KAFKA_SECURITY_PROTOCOL=PLAINTEXT"),
        (
            SASL,
            "ONCELAKE_KAFKA_SECURITY_PROTOCOL=SASL_SSL, "
            "ONCELAKE_KAFKA_SASL_MECHANISM=SCRAM-SHA-512",
        ),
    ],
    ids=["by default", "as set"],
)
def test_a_kafka_that_does_not_answer_may_expect_other_security(
    of: dict[str, Any], expected: str
) -> None:
    """A broker hangs up on a client of another protocol, and says nothing: the settings do."""
    said = str(unreachable(Settings(kafka="k1:9092", **of), "timed out"))

    assert f"and that they expect {expected}; then run" in said
    assert CANARY not in said


def test_a_connection_that_is_reset_before_its_handshake_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that resets a connection at once is told as one that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as broker:

        def connect(*given: Any, **named: Any) -> socket.socket:
            connection = honest(*given, **named)
            accepted, _ = broker.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            return connection

        honest = socket.create_connection
        monkeypatch.setattr(socket, "create_connection", connect)

        found = diagnose(Settings(kafka="{}:{}".format(*broker.getsockname())), "timed out")

    # What is not closed is told when it is collected, and pytest makes a failure of it.
    gc.collect()
    assert found is None


@pytest.mark.parametrize(
    ("valid", "kind", "remedy"),
    [
        (True, KafkaSettingsError, "set ONCELAKE_KAFKA_OAUTH_CA"),
        (False, DependencyError, "renew it on the token endpoint;"),
    ],
    ids=["of an unknown authority", "expired"],
)
def test_a_certificate_of_a_token_endpoint_is_told_as_a_brokers_is(
    tmp_path: Path, *, valid: bool, kind: type[DependencyError], remedy: str
) -> None:
    """One that has expired is no fault of the settings; an unknown authority is."""
    authority, another = (Authority(tmp_path / name, name) for name in ("authority", "another"))
    with TokenServer.started(authority.certify("tokens", "127.0.0.1", valid=valid)) as tokens:
        settings = Settings(
            **{**OAUTH, "kafka_oauth_token_endpoint": tokens.url},
            kafka="127.0.0.1:1",
            kafka_oauth_ca=(another if valid else authority).file,
            kafka_timeout_seconds=2,
        )

        with pytest.raises(kind, match=f"SSL certificate .*Next: {remedy}") as raised:
            Kafka(settings).cluster_id()

    assert type(raised.value) is kind


def test_redaction_never_fails(files: dict[str, Any]) -> None:
    """A message is redacted also when the key's file has gone in the meantime."""
    settings = Settings(**files)
    files["kafka_ssl_key"].unlink()

    assert redact(f"said {CANARY}", settings) == "said ***"


def test_the_sinks_cluster_has_its_own_login() -> None:
    """Nothing of the sources' login goes there, and an error names the variables of its own."""
    settings = Settings(
        kafka="source:9092",
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_sasl_mechanism="PLAIN",
        kafka_sasl_username="reader",
        kafka_sasl_password="of-the-source",
        sink_kafka="sink:9092",
    )
    table = open_table("orders", KafkaSink(topic="t"), settings, Location.of("/no"))
    of_sink = table._place.settings

    options = client_options(of_sink)
    assert options["bootstrap.servers"] == "sink:9092"
    assert not [name for name in options if name.startswith(("sasl", "security"))]
    error = str(unreachable(of_sink, "timed out"))
    assert "check ONCELAKE_SINK_KAFKA, the brokers" in error
    assert "ONCELAKE_SINK_KAFKA_SECURITY_PROTOCOL=PLAINTEXT" in error
    assert "ONCELAKE_KAFKA_SASL_MECHANISM=PLAIN" in str(unreachable(settings, "timed out"))


def test_two_logins_to_one_cluster_are_told_apart() -> None:
    """The variables are those of the login, wherever it is for; no client is shared."""
    login = {
        f"{of}kafka_{name}": value
        for of in ("", "sink_")
        for name, value in {"sasl_username": f"{of}user", "sasl_password": "secret"}.items()
    }
    sources = Settings.model_validate({"kafka": "k:9092", "sink_kafka": "k:9092", **login})
    sinks = sources.of_sink_cluster().model_copy(update={"kafka_timeout_seconds": 1.0})

    assert "check ONCELAKE_KAFKA, the brokers" in str(unreachable(sources, "timed out"))
    for copy in (sinks, sinks.of_sink_cluster(), pickle.loads(pickle.dumps(sinks))):
        assert "check ONCELAKE_SINK_KAFKA, the brokers" in str(unreachable(copy, "timed out"))
        assert copy == sinks
    same = Settings(kafka="k:9092", sink_kafka="k:9092")
    assert len({same, same.of_sink_cluster(), same.of_sink_cluster()}) == 2


def test_half_a_login_of_the_sinks_cluster_is_named() -> None:
    """The variable that is missing is that of the sinks, not of the sources."""
    settings = Settings(
        kafka="source:9092", sink_kafka="sink:9092", sink_kafka_security_protocol="SASL_SSL"
    )

    with pytest.raises(InvalidSpecError, match="ONCELAKE_SINK_KAFKA_SASL_USERNAME is not set"):
        client_options(settings.of_sink_cluster())
