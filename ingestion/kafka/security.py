"""One set of security settings, translated for both Kafka clients.

Spark's source uses the Java client's options, confluent-kafka those of librdkafka. Both must
connect in the same way or not at all: settings that only one of them could use are refused before
either connects (``InvalidSpecError``), and so are settings that only seem to protect. No other
``kafka.*`` option can be set, which excludes JNDI logins, config providers and token URLs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from pydantic import SecretStr

from ingestion.errors import InvalidSpecError
from ingestion.settings import Settings

_PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_JAAS_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"})
_SASL: Final = ("kafka_sasl_mechanism", "kafka_sasl_username", "kafka_sasl_password")
_SSL: Final = (
    *("kafka_ssl_ca", "kafka_ssl_certificate", "kafka_ssl_key"),
    "kafka_ssl_key_password",
)


def java_options(settings: Settings) -> dict[str, str]:
    """Return the options with which Spark's Kafka source connects.

    Authorities, certificate and key are passed as contents: the Java client reads a PEM key store
    from one file only, and these are two; and executors may run on other hosts.
    """
    _refuse_contradictions(settings)
    options: dict[str, str | None] = {"kafka.security.protocol": settings.kafka_security_protocol}
    if settings.kafka_sasl_mechanism:
        options["kafka.sasl.mechanism"] = settings.kafka_sasl_mechanism
        options["kafka.sasl.jaas.config"] = _jaas(settings)
    if settings.kafka_ssl_ca:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.certificates"] = settings.kafka_ssl_ca.read_text()
    if settings.kafka_ssl_certificate and settings.kafka_ssl_key:
        options["kafka.ssl.keystore.type"] = "PEM"
        options["kafka.ssl.keystore.certificate.chain"] = settings.kafka_ssl_certificate.read_text()
        options["kafka.ssl.keystore.key"] = settings.kafka_ssl_key.read_text()
        options["kafka.ssl.key.password"] = _revealed(settings.kafka_ssl_key_password)
    return {name: value for name, value in options.items() if value}


def variable_of(settings: Settings, name: str) -> str:
    """Return the variable of a setting of this cluster, the sources' or the sinks'."""
    return settings.kafka_variable + name.removeprefix("kafka").upper()


def librdkafka_options(settings: Settings) -> dict[str, str]:
    """Return the options with which confluent-kafka connects."""
    _refuse_contradictions(settings)
    options = {
        "security.protocol": settings.kafka_security_protocol,
        "sasl.mechanism": settings.kafka_sasl_mechanism,
        "sasl.username": settings.kafka_sasl_username,
        "sasl.password": _revealed(settings.kafka_sasl_password),
        "ssl.ca.location": settings.kafka_ssl_ca,
        "ssl.certificate.location": settings.kafka_ssl_certificate,
        "ssl.key.location": settings.kafka_ssl_key,
        "ssl.key.password": _revealed(settings.kafka_ssl_key_password),
    }
    return {name: str(value) for name, value in options.items() if value}


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


def _jaas(settings: Settings) -> str:
    login = _PLAIN_LOGIN if settings.kafka_sasl_mechanism == "PLAIN" else _SCRAM_LOGIN
    username = (settings.kafka_sasl_username or "").translate(_JAAS_ESCAPES)
    password = _revealed(settings.kafka_sasl_password).translate(_JAAS_ESCAPES)
    return f'{login} required username="{username}" password="{password}";'


def _revealed(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""


def _secrets(settings: Settings) -> Iterator[str]:
    yield _revealed(settings.kafka_sasl_password)
    yield _revealed(settings.kafka_ssl_key_password)
    with suppress(OSError):
        text = settings.kafka_ssl_key.read_text(errors="replace") if settings.kafka_ssl_key else ""
        yield text.strip()
        yield from re.findall(r"^[A-Za-z0-9+/=]{16,}$", text, flags=re.MULTILINE)


def _spellings(secret: str) -> set[str]:
    if not secret:
        return set()
    as_json = (json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    return {secret, secret.translate(_JAAS_ESCAPES), repr(secret)[1:-1], *as_json}


def _refuse_contradictions(settings: Settings) -> None:
    protocol = settings.kafka_security_protocol or "PLAINTEXT"
    problems = (
        *_protocol_problems(settings, protocol),
        *_certificate_problems(settings),
        *_file_problems(settings),
    )
    if problems:
        raise InvalidSpecError("the environment or .env is wrong:\n" + "\n".join(problems))


def _protocol_problems(settings: Settings, protocol: str) -> Iterator[str]:
    for name in _SASL:
        if protocol.startswith("SASL_") and not getattr(settings, name):
            yield f"{variable_of(settings, name)} is not set, and {protocol} needs it"
    if not protocol.startswith("SASL_"):
        why, others = f"{protocol} sends it nowhere", "SASL_SSL (or SASL_PLAINTEXT)"
        yield from _useless_settings(settings, _SASL, why, others)
    if not protocol.endswith("SSL"):
        why, others = f"{protocol} encrypts nothing", "SSL or SASL_SSL"
        yield from _useless_settings(settings, _SSL, why, others)


def _useless_settings(
    settings: Settings, names: tuple[str, ...], why: str, others: str
) -> Iterator[str]:
    of = partial(variable_of, settings)
    for name in names:
        if getattr(settings, name):
            useless, protocol = map(of, (name, "kafka_security_protocol"))
            yield f"{useless} is set, and {why}; set {protocol} to {others}, or remove {useless}"


def _certificate_problems(settings: Settings) -> Iterator[str]:
    certificate, key, password = _SSL[1:]
    of = partial(variable_of, settings)
    for name, other in ((certificate, key), (key, certificate), (password, key)):
        if getattr(settings, name) and not getattr(settings, other):
            yield f"{of(name)} is set without {of(other)}; set both, or neither"


def _file_problems(settings: Settings) -> Iterator[str]:
    of = partial(variable_of, settings)
    for name, marker in zip(_SSL[:3], ("CERTIFICATE", "CERTIFICATE", "PRIVATE KEY"), strict=True):
        path = getattr(settings, name)
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
        elif name == "kafka_ssl_key":
            yield from _key_problems(text, settings)


def _key_problems(text: str, settings: Settings) -> Iterator[str]:
    """Find keys that librdkafka can read and the Java client cannot."""
    name, password = (
        variable_of(settings, "kafka_ssl_key"),
        variable_of(settings, "kafka_ssl_key_password"),
    )
    if not re.search(r"BEGIN (ENCRYPTED )?PRIVATE KEY-----", text):
        yield (
            f"{name} is not PKCS#8, which the Java client needs; convert it: "
            f"openssl pkcs8 -topk8 -nocrypt -in {settings.kafka_ssl_key} -out key.pem"
        )
    elif "BEGIN ENCRYPTED" in text and not settings.kafka_ssl_key_password:
        yield f"{password} is not set, and the key of {name} is encrypted"
    elif "BEGIN ENCRYPTED" not in text and settings.kafka_ssl_key_password:
        yield f"{password} is set, and the key of {name} is not encrypted; remove {password}"
