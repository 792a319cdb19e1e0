"""Why there is no connection to Kafka, as far as this can be found, and the remedy.

librdkafka repeats a login until the time is over, says only that a certificate was not verified,
and nothing at all where it speaks to a port of TLS without TLS. A handshake of our own
distinguishes these; nothing is sent over it.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from oncelake.ingestion.settings import Settings

_PROBE_SECONDS: Final = 2.0
# What a client reports, and what a person does about it: to the settings, or elsewhere. ``{0}`` is
# the variable that says where that Kafka is.
_OF_SETTINGS: Final = {
    r"Unsupported SASL mechanism": "set {0}_SASL_MECHANISM to one of the brokers'",
    r"acquire SASL OAUTHBEARER token: .*(invalid_client|unauthorized_client|HTTP.* 40[13])": (
        "correct {0}_OAUTH_CLIENT_ID and {0}_OAUTH_CLIENT_SECRET"
    ),
    r"acquire SASL OAUTHBEARER token: .*invalid_scope": "correct {0}_OAUTH_SCOPE",
    r"acquire SASL OAUTHBEARER token: SSL certificate(?!.* has expired)": "set {0}_OAUTH_CA to "
    "the authorities that vouch for the token endpoint",
    r"SASL authentication error: \{": "correct {0}_OAUTH_TOKEN_ENDPOINT and {0}_OAUTH_SCOPE: the "
    "brokers do not take its tokens",
    r"SASL authentication error": "correct {0}_SASL_USERNAME and {0}_SASL_PASSWORD",
    r"alert (bad certificate|certificate \w+|unknown ca)": "set {0}_SSL_CERTIFICATE and "
    "{0}_SSL_KEY to a certificate that the brokers trust and that has not expired",
    r"ssl\.(key|certificate)\.location failed": "correct {0}_SSL_CERTIFICATE, {0}_SSL_KEY and "
    "{0}_SSL_KEY_PASSWORD",
    r"PLAINTEXT broker listener": "set {0}_SECURITY_PROTOCOL to PLAINTEXT or SASL_PLAINTEXT, or "
    "{0} to the brokers' port of TLS",
}
_ELSEWHERE: Final = {
    r"unexpired token": "compare the clocks of the token endpoint and of this machine",
    r"acquire SASL OAUTHBEARER token: SSL certificate": "renew it on the token endpoint",
    r"acquire SASL OAUTHBEARER token": "check {0}_OAUTH_TOKEN_ENDPOINT and {0}_OAUTH_CA, and that "
    "it answers",
}
# By OpenSSL's codes.
_EXPIRED: Final = 10
_ANOTHER_HOST: Final = (62, 64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """A problem, its remedy, and whether that is an edit of the settings."""

    cause: str
    remedy: str
    is_of_settings: bool


def diagnose(settings: Settings, reported: str) -> Diagnosis | None:
    """Return what is known of a request that no broker has answered.

    Args:
        reported: What the client has reported of it, or of its connections.
    """
    here = settings.kafka.variable_of()
    if settings.kafka.sasl_mechanism == "AWS_MSK_IAM" and "SASL auth" in reported:
        remedy = "let the AWS identity of this process kafka-cluster:Connect"
        return Diagnosis(cause=reported, remedy=remedy, is_of_settings=False)
    for reports, is_of_settings in ((_OF_SETTINGS, True), (_ELSEWHERE, False)):
        for pattern, remedy in reports.items():
            if re.search(pattern, reported):
                mends = remedy.format(here)
                return Diagnosis(cause=reported, remedy=mends, is_of_settings=is_of_settings)
    is_silent = not re.search(r"refused|resolve", reported)
    return _of_handshake(settings, reported) if is_silent else None


def _of_handshake(settings: Settings, reported: str) -> Diagnosis | None:
    """Try TLS with the broker that was reported, else with the first."""
    here, addresses = settings.kafka.variable_of(), settings.bootstrap_servers()
    host, _, port = addresses.partition(",")[0].strip().rpartition(":")
    if found := re.search(r"ssl://([^/]+):(\d+)/", reported):
        host, port = found.groups()
    host, expects_tls = host.strip("[]"), "SSL" in (settings.kafka.security_protocol or "")
    try:
        with _tls(host, int(port), settings, verify=expects_tls):
            pass
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(error, f"{host}:{port}", here)
    except (OSError, ValueError):
        return None
    if expects_tls:
        return None
    return Diagnosis(
        cause=f"{host}:{port} speaks TLS, and {here}_SECURITY_PROTOCOL does not",
        remedy=f"set {here}_SECURITY_PROTOCOL to SSL or SASL_SSL",
        is_of_settings=True,
    )


def _of_certificate(error: ssl.SSLCertVerificationError, where: str, here: str) -> Diagnosis:
    cause = f"the certificate of {where} is not valid: {error.verify_message.rstrip('.')}"
    if error.verify_code == _EXPIRED:
        return Diagnosis(cause=cause, remedy="renew it on the broker", is_of_settings=False)
    remedy = f"set {here}_SSL_CA to the authorities that vouch for the brokers"
    if error.verify_code in _ANOTHER_HOST:
        remedy = f"write the brokers in {here} by the names that their certificates have"
    return Diagnosis(cause=cause, remedy=remedy, is_of_settings=True)


@contextmanager
def _tls(host: str, port: int, settings: Settings, *, verify: bool) -> Iterator[None]:
    context = ssl.create_default_context(cafile=settings.kafka.ssl_ca)
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    seconds = min(_PROBE_SECONDS, settings.kafka_timeout_seconds)
    with socket.create_connection((host, port), timeout=seconds) as plain:
        address = plain.getpeername()
    # Wrapped before it connects: CPython leaves a socket open whose peer resets it in between.
    with context.wrap_socket(socket.socket(plain.family), server_hostname=host) as connection:
        connection.settimeout(seconds)
        connection.connect(address)
        yield
