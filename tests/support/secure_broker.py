"""A broker that lets clients in by TLS, certificates, passwords and tokens, and asks for rights.

One JVM a session, on loopback. ``secure_broker`` is the fixture::

    settings_in(tmp_path, secure_broker.address("scram"), **secure_broker.login("scram"))

gives settings of the super user ``LOADER`` by one of ``WAYS``. Everybody else may do nothing until
an ACL allows it (StandardAuthorizer); by ``way="scram"``::

    login = secure_broker.add_user("reader")         # a new user without any right
    secure_broker.admin.create_acls([...])           # what it may do; by the super user

``secure_broker.plaintext`` is a door without any security, whose user is super as well, for what a
test itself creates and produces.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from oncelake.ingestion.local import broker
from tests.support.certificates import Authority, Certificate
from tests.support.frail_broker import free_ports
from tests.support.token_server import AUDIENCE, TokenServer
from tests.support.world import JARS

LOADER: Final = "loader"
PASSWORD: Final = 'pa"ss\\w0rd of the loader'
# Known to PLAIN and the token server, and allowed nothing.
STRANGER: Final = "stranger"

# The listener behind each way in.
WAYS: Final = {
    "tls": "TLS",
    "mtls": "MTLS",
    "plain": "LOGIN_TLS",
    "scram": "LOGIN_TLS",
    "oauth": "LOGIN_TLS",
    "scram without TLS": "LOGIN",
}
# TLS whose certificate is not to be believed.
BAD_CERTIFICATES: Final = {"expired": "EXPIRED", "another host": "ELSEWHERE"}

_PROTOCOLS: Final = {
    "PLAINTEXT": "PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
    "LOGIN": "SASL_PLAINTEXT",
    "LOGIN_TLS": "SASL_SSL",
    **dict.fromkeys(("TLS", "MTLS", "EXPIRED", "ELSEWHERE"), "SSL"),
}
_MECHANISMS: Final = {
    "plain": "PLAIN",
    "scram": "SCRAM-SHA-512",
    "oauth": "OAUTHBEARER",
    "scram without TLS": "SCRAM-SHA-256",
}
_KAFKA_SECURITY: Final = "org.apache.kafka.common.security"


class SecureBroker:
    """The broker, its authority, and the token server that it trusts."""

    def __init__(self, folder: Path, tokens: TokenServer) -> None:
        """Make the certificates; ``start`` starts the broker."""
        self._folder = folder
        self._ports = dict(zip(_PROTOCOLS, free_ports(len(_PROTOCOLS)), strict=True))
        self.tokens = tokens
        self.authority = Authority(folder / "certificates", "authority")
        self.another_authority = Authority(folder / "another", "another authority")
        self.plaintext = f"127.0.0.1:{self._ports['PLAINTEXT']}"
        self.admin = AdminClient({"bootstrap.servers": self.plaintext, "log_level": 0})

    def address(self, way: str) -> str:
        """Return where a way of ``WAYS``, or a door of ``BAD_CERTIFICATES``, leads in."""
        return f"127.0.0.1:{self._ports[{**WAYS, **BAD_CERTIFICATES}[way]]}"

    def login(self, way: str, *, user: str = LOADER, password: str = PASSWORD) -> dict[str, Any]:
        """Return the settings (``kafka_…``) with which a user comes in by a way."""
        protocol = _PROTOCOLS[{**WAYS, **BAD_CERTIFICATES}[way]]
        given: dict[str, Any] = {"kafka_security_protocol": protocol}
        if protocol.endswith("SSL"):
            given["kafka_ssl_ca"] = self.authority.file
        if way == "mtls":
            made = self.certify(user)
            given |= {"kafka_ssl_certificate": made.certificate, "kafka_ssl_key": made.key}
        if way == "oauth":
            given |= {
                "kafka_sasl_mechanism": "OAUTHBEARER",
                "kafka_oauth_token_endpoint": self.tokens.url,
                "kafka_oauth_client_id": user,
                "kafka_oauth_client_secret": password,
                "kafka_oauth_scope": "kafka",
            }
        elif way in _MECHANISMS:
            given |= {
                "kafka_sasl_mechanism": _MECHANISMS[way],
                "kafka_sasl_username": user,
                "kafka_sasl_password": password,
            }
        return given

    def certify(self, user: str, *, valid: bool = True) -> Certificate:
        """Return a certificate whose holder the broker takes for a user."""
        return self.authority.certify(user, valid=valid)

    def add_user(self, name: str, password: str = PASSWORD) -> dict[str, Any]:
        """Add a user without rights, by SCRAM; return the settings of its login by ``scram``."""
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(mechanism, 4096)
            wanted = UserScramCredentialUpsertion(name, credential, password.encode())
            self.admin.alter_user_scram_credentials([wanted])[name].result(30)
        return self.login("scram", user=name, password=password)

    def start(self) -> None:
        """Start the broker, with the two users that PLAIN and the token server know."""
        # The launcher reads this variable; the broker fetches keys from no URL that is not named.
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.tokens.jwks_url}"
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("JDK_JAVA_OPTIONS", allowed)
            settings = self._configuration()
            broker.up(self._folder / "broker", jars=JARS, tied_to_caller=True, settings=settings)
        self.add_user(LOADER)
        self.tokens.clients |= dict.fromkeys((LOADER, STRANGER), PASSWORD)

    def stop(self) -> None:
        """Stop the broker."""
        broker.down(self._folder / "broker")

    def _configuration(self) -> dict[str, str]:
        here = {name: f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()}
        public = [each for name, each in here.items() if name != "CONTROLLER"]
        escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        users = "".join(f' user_{name}="{escaped}"' for name in (LOADER, STRANGER))
        plain = f"{_KAFKA_SECURITY}.plain.PlainLoginModule required{users};"
        scram = f"{_KAFKA_SECURITY}.scram.ScramLoginModule required;"
        oauth = f"{_KAFKA_SECURITY}.oauthbearer"
        names = _protocol_map()
        return {
            "listeners": ",".join(here.values()),
            "advertised.listeners": ",".join(public),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._ports['CONTROLLER']}",
            "listener.security.protocol.map": names,
            "inter.broker.listener.name": "PLAINTEXT",
            **_rights(),
            "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.login.scram-sha-256.sasl.jaas.config": scram,
            "listener.name.login_tls.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            # A properties file takes a backslash for an escape.
            "listener.name.login_tls.plain.sasl.jaas.config": plain.replace("\\", "\\\\"),
            "listener.name.login_tls.scram-sha-512.sasl.jaas.config": scram,
            "listener.name.login_tls.oauthbearer.sasl.jaas.config": (
                f"{oauth}.OAuthBearerLoginModule required;"
            ),
            "listener.name.login_tls.oauthbearer.sasl.server.callback.handler.class": (
                f"{oauth}.OAuthBearerValidatorCallbackHandler"
            ),
            "sasl.oauthbearer.jwks.endpoint.url": self.tokens.jwks_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            **self._certificates(),
        }

    def _certificates(self) -> dict[str, str]:
        here, sound = ("127.0.0.1", "localhost"), self.authority.certify
        broker_itself = sound("broker", *here)
        shown = {
            **dict.fromkeys(("login_tls", "tls", "mtls"), broker_itself),
            "expired": sound("expired", *here, valid=False),
            "elsewhere": sound("elsewhere", "kafka.elsewhere.test"),
        }
        stores = {
            f"listener.name.{listener}.ssl.keystore.{name}": value
            for listener, certificate in shown.items()
            for name, value in (("type", "PEM"), ("location", str(certificate.both)))
        }
        return {
            **stores,
            "listener.name.mtls.ssl.truststore.type": "PEM",
            "listener.name.mtls.ssl.truststore.location": str(self.authority.file),
            "listener.name.mtls.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+)$/$1/,DEFAULT",
        }


def _protocol_map() -> str:
    return ",".join(f"{name}:{protocol}" for name, protocol in _PROTOCOLS.items())


def _rights() -> dict[str, str]:
    """Let only super users do what no ACL allows; without a login a client is ANONYMOUS."""
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{LOADER}",
        "allow.everyone.if.no.acl.found": "false",
    }


def unique(what: str) -> str:
    """Return a name of the test's own, for a user, topic, group or stream, and in SQL."""
    return f"{what}_{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """One such broker a module: idle, it would take a fifth of a core from all that follow."""
    folder = tmp_path_factory.mktemp("secure")
    with TokenServer.started() as tokens:
        made = SecureBroker(folder, tokens)
        made.start()
        yield made
        made.stop()
    shutil.rmtree(folder, ignore_errors=True)
