"""One set of security settings, translated for both Kafka clients.

Spark's source uses the Java client's options, confluent-kafka those of librdkafka. Both must
connect in the same way or not at all: settings that only one of them could use are refused before
either connects (``InvalidSpecError``), and so are settings that only seem to protect. Of other
options only those of ``ingestion.kafka.properties`` can be set, which excludes JNDI logins and
config providers.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from pydantic import SecretStr

from oncelake.ingestion.errors import DependencyError, InvalidSpecError, SetupError, first_line
from oncelake.ingestion.kafka.properties import java_properties, librdkafka_properties
from oncelake.ingestion.settings import KafkaCluster, Settings

_KAFKAS: Final = "org.apache.kafka.common.security"
_MSK: Final = "software.amazon.msk.auth.iam"
_LOGIN_MODULES: Final = {
    "PLAIN": f"{_KAFKAS}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_KAFKAS}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_KAFKAS}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_KAFKAS}.oauthbearer.OAuthBearerLoginModule",
    "AWS_MSK_IAM": f"{_MSK}.IAMLoginModule",
}
_JAAS_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"})
_PASSWORD: Final = ("sasl_username", "sasl_password")
_OAUTH: Final = (
    *("oauth_token_endpoint", "oauth_client_id", "oauth_client_secret"),
    *("oauth_scope", "oauth_ca"),
)
# What a mechanism logs in with, and how many of these it needs; others want a name and a password.
_LOGINS: Final = {"OAUTHBEARER": (_OAUTH, 3), "AWS_MSK_IAM": ((), 0)}
_MSK_REGION: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")
_SSL: Final = (
    *("ssl_ca", "ssl_certificate", "ssl_key"),
    "ssl_key_password",
)


def java_options(settings: Settings) -> dict[str, str]:
    """Return the options with which Spark's Kafka source connects.

    Authorities, certificate and key are passed as contents: the Java client reads a PEM key store
    from one file only, and these are two; and executors may run on other hosts.
    """
    cluster = settings.kafka
    _refuse_contradictions(cluster)
    properties = java_properties(cluster.properties, variable=cluster.variable_of())
    options: dict[str, str | None] = {f"kafka.{name}": each for name, each in properties.items()}
    options["kafka.security.protocol"] = cluster.security_protocol
    if cluster.sasl_mechanism:
        options["kafka.sasl.mechanism"] = cluster.sasl_mechanism
        options["kafka.sasl.jaas.config"] = _jaas(cluster)
    if cluster.sasl_mechanism == "OAUTHBEARER":
        options["kafka.sasl.login.callback.handler.class"] = (
            f"{_KAFKAS}.oauthbearer.OAuthBearerLoginCallbackHandler"
        )
        options["kafka.sasl.oauthbearer.token.endpoint.url"] = cluster.oauth_token_endpoint
        for wait in ("connect.timeout", "read.timeout", "retry.backoff.max"):
            milliseconds = int(settings.kafka_timeout_seconds * 1000)
            options[f"kafka.sasl.login.{wait}.ms"] = str(milliseconds)
    if cluster.sasl_mechanism == "AWS_MSK_IAM":
        options["kafka.sasl.client.callback.handler.class"] = f"{_MSK}.IAMClientCallbackHandler"
    if cluster.ssl_ca:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.certificates"] = cluster.ssl_ca.read_text()
    if cluster.ssl_certificate and cluster.ssl_key:
        options["kafka.ssl.keystore.type"] = "PEM"
        options["kafka.ssl.keystore.certificate.chain"] = cluster.ssl_certificate.read_text()
        options["kafka.ssl.keystore.key"] = cluster.ssl_key.read_text()
        options["kafka.ssl.key.password"] = _revealed(cluster.ssl_key_password)
    return {name: value for name, value in options.items() if value}


def librdkafka_options(settings: Settings) -> dict[str, Any]:
    """Return the options with which confluent-kafka connects."""
    cluster = settings.kafka
    _refuse_contradictions(cluster)
    mechanism = cluster.sasl_mechanism
    is_oauth = mechanism == "OAUTHBEARER"
    options = {
        "security.protocol": cluster.security_protocol,
        "sasl.mechanism": "OAUTHBEARER" if mechanism == "AWS_MSK_IAM" else mechanism,
        "sasl.username": cluster.sasl_username,
        "sasl.password": _revealed(cluster.sasl_password),
        "sasl.oauthbearer.method": "oidc" if is_oauth else None,
        "sasl.oauthbearer.token.endpoint.url": cluster.oauth_token_endpoint,
        "sasl.oauthbearer.client.id": cluster.oauth_client_id,
        "sasl.oauthbearer.client.secret": _revealed(cluster.oauth_client_secret),
        "sasl.oauthbearer.scope": cluster.oauth_scope,
        "https.ca.location": cluster.oauth_ca or (_system_ca() if is_oauth else None),
        "ssl.ca.location": cluster.ssl_ca,
        "ssl.certificate.location": cluster.ssl_certificate,
        "ssl.key.location": cluster.ssl_key,
        "ssl.key.password": _revealed(cluster.ssl_key_password),
    }
    return {
        **librdkafka_properties(cluster.properties, variable=cluster.variable_of()),
        **{name: str(value) for name, value in options.items() if value},
        **({"oauth_cb": _msk_token(settings)} if mechanism == "AWS_MSK_IAM" else {}),
    }


def _system_ca() -> str | None:
    """Return where this system has its authorities; librdkafka's wheel knows one distribution's."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath


def _msk_token(settings: Settings) -> Callable[[str], tuple[str, float]]:
    """Return the signer of tokens for MSK, by AWS's own library and the credentials it finds."""
    try:
        library = import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    except ModuleNotFoundError as error:
        raise SetupError(
            "AWS_MSK_IAM needs AWS's library, which is not installed. Next: pip install "
            "aws-msk-iam-sasl-signer-python; docs/settings.md says what Spark needs"
        ) from error
    region = _MSK_REGION.search(settings.bootstrap_servers())
    if region is None:
        raise InvalidSpecError(
            f"{settings.kafka.variable_of()} names no region, and AWS_MSK_IAM needs it. "
            "Next: write the addresses that MSK shows, …kafka.REGION.amazonaws.com:9098"
        )

    def sign(_: str) -> tuple[str, float]:
        token, expires_ms = library.generate_auth_token(region[1])
        return token, expires_ms / 1000

    try:
        sign("")
    except Exception as error:
        raise DependencyError(
            f"AWS's library signs no login to {settings.bootstrap_servers()}: {first_line(error)}. "
            "Next: give this process credentials of AWS; then run the same command again"
        ) from error
    return sign


_LONGER_THAN_WORDS: Final = 12


def redact(text: str, settings: Settings) -> str:
    """Remove every secret from a text, in each spelling that a client may use."""
    secrets = {spelling for secret in _secrets(settings) for spelling in _spellings(secret)}
    for secret in sorted(secrets, key=len, reverse=True):
        # A short one may be a piece of a word, such as `sasl_plaintext`: there it is no secret.
        is_word = secret.isalpha() and len(secret) < _LONGER_THAN_WORDS
        whole = r"(?<![A-Za-z]){}(?![A-Za-z])" if is_word else "{}"
        text = re.sub(whole.format(re.escape(secret)), "***", text)
    return text


def _jaas(cluster: KafkaCluster) -> str:
    """Write the login as Java's client takes it.

    Its HTTPS client for the token endpoint takes options of TLS from there, too.
    """
    ca = cluster.oauth_ca
    options = {
        "username": cluster.sasl_username,
        "password": _revealed(cluster.sasl_password),
        "clientId": cluster.oauth_client_id,
        "clientSecret": _revealed(cluster.oauth_client_secret),
        "scope": cluster.oauth_scope,
        "ssl.truststore.type": "PEM" if ca else None,
        "ssl.truststore.certificates": ca.read_text() if ca else None,
    }
    written = (
        f' {name}="{value.translate(_JAAS_ESCAPES)}"' for name, value in options.items() if value
    )
    module = _LOGIN_MODULES[cluster.sasl_mechanism or ""]
    return f"{module} required{''.join(written)};"


def _revealed(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""


def _secrets(settings: Settings) -> Iterator[str]:
    for part in (settings, settings.kafka, settings.sink_kafka):
        given = (getattr(part, name) for name in type(part).model_fields)
        yield from (each.get_secret_value() for each in given if isinstance(each, SecretStr))
    login = f"{settings.schema_registry_username}:{_revealed(settings.schema_registry_password)}"
    yield base64.b64encode(login.encode()).decode()
    with suppress(OSError):
        text = settings.kafka.ssl_key.read_text(errors="replace") if settings.kafka.ssl_key else ""
        yield text.strip()
        yield from re.findall(r"^[A-Za-z0-9+/=]{16,}$", text, flags=re.MULTILINE)


def _spellings(secret: str) -> set[str]:
    if not secret:
        return set()
    as_json = (json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    return {secret, secret.translate(_JAAS_ESCAPES), repr(secret)[1:-1], *as_json}


def _refuse_contradictions(cluster: KafkaCluster) -> None:
    protocol = cluster.security_protocol or "PLAINTEXT"
    problems = (
        *_protocol_problems(cluster, protocol),
        *_certificate_problems(cluster),
        *_file_problems(cluster),
    )
    if problems:
        raise InvalidSpecError("the environment or .env is wrong:\n" + "\n".join(problems))


def _protocol_problems(cluster: KafkaCluster, protocol: str) -> Iterator[str]:
    mechanism = cluster.sasl_mechanism
    takes, needed = _LOGINS.get(mechanism or "", (_PASSWORD, len(_PASSWORD)))
    by_protocol = ("security_protocol", "SASL_SSL (or SASL_PLAINTEXT)")
    login = ("sasl_mechanism", *_PASSWORD, *_OAUTH)
    if not protocol.startswith("SASL_"):
        yield from _useless(cluster, login, f"{protocol} sends it nowhere", by_protocol)
    else:
        if not mechanism:
            yield from _unset(cluster, ("sasl_mechanism",), protocol)
        yield from _unset(cluster, takes[:needed], mechanism or protocol)
        others = [name for name in (*_PASSWORD, *_OAUTH) if name not in takes]
        fits = "OAUTHBEARER" if takes == _PASSWORD else "PLAIN or SCRAM-SHA-512"
        why = f"{mechanism or protocol} sends it nowhere"
        yield from _useless(cluster, others, why, ("sasl_mechanism", fits))
    if not protocol.endswith("SSL"):
        by = ("security_protocol", "SSL or SASL_SSL")
        yield from _useless(cluster, _SSL, f"{protocol} encrypts nothing", by)


def _unset(cluster: KafkaCluster, names: Sequence[str], needs: str) -> Iterator[str]:
    for name in names:
        if not getattr(cluster, name):
            yield f"{cluster.variable_of(name)} is not set, and {needs} needs it"


def _useless(
    cluster: KafkaCluster, names: Sequence[str], why: str, by: tuple[str, str]
) -> Iterator[str]:
    """Name the settings without effect, and the setting and value that would give them one."""
    other, fits = cluster.variable_of(by[0]), by[1]
    for name in names:
        if getattr(cluster, name):
            useless = cluster.variable_of(name)
            yield f"{useless} is set, and {why}; set {other} to {fits}, or remove {useless}"


def _certificate_problems(cluster: KafkaCluster) -> Iterator[str]:
    of = cluster.variable_of
    certificate, key, password = _SSL[1:]
    for name, other in ((certificate, key), (key, certificate), (password, key)):
        if getattr(cluster, name) and not getattr(cluster, other):
            yield f"{of(name)} is set without {of(other)}; set both, or neither"


def _file_problems(cluster: KafkaCluster) -> Iterator[str]:
    of = cluster.variable_of
    for name in (*_SSL[:3], "oauth_ca"):
        marker = "PRIVATE KEY" if name == "ssl_key" else "CERTIFICATE"
        path = getattr(cluster, name)
        if path is None:
            continue
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not PEM text"
            yield f"{of(name)} names {path}, which cannot be read: {reason}"
            continue
        if f"{marker}-----" not in text:
            yield f"{of(name)} names {path}, which contains no PEM {marker.lower()}"
        elif name == "ssl_key":
            yield from _key_problems(text, cluster)


def _key_problems(text: str, cluster: KafkaCluster) -> Iterator[str]:
    """Find keys that librdkafka can read and the Java client cannot."""
    name, password = (
        cluster.variable_of("ssl_key"),
        cluster.variable_of("ssl_key_password"),
    )
    if not re.search(r"BEGIN (ENCRYPTED )?PRIVATE KEY-----", text):
        yield (
            f"{name} is not PKCS#8, which the Java client needs; convert it: "
            f"openssl pkcs8 -topk8 -nocrypt -in {cluster.ssl_key} -out key.pem"
        )
    elif "BEGIN ENCRYPTED" in text and not cluster.ssl_key_password:
        yield f"{password} is not set, and the key of {name} is encrypted"
    elif "BEGIN ENCRYPTED" not in text and cluster.ssl_key_password:
        yield f"{password} is set, and the key of {name} is not encrypted; remove {password}"
