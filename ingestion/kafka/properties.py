"""Properties of Kafka's clients that a person sets in a file, by the names that Java's client has.

Each one reaches both clients. Few are allowed, and they only cost or save time: with others a
client would read other records, check nobody's name, load classes, or log in to any address that a
file names (CVE-2023-25194, CVE-2024-31141, CVE-2025-27817, CVE-2025-27818).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException

from oncelake.ingestion.errors import InvalidSpecError

# 0 is for librdkafka the system's choice, or never; Java's client fails by it, or never waits.
_NUMBER: Final = r"(?!0+$)\d{1,9}"
_OR_NO_WAIT: Final = r"\d{1,9}"
_WORD: Final = r"[\w.:-]{1,200}"
# What a value looks like and, where it differs, librdkafka's name.
_ALLOWED: Final[Mapping[str, tuple[str, str]]] = {
    "client.dns.lookup": (_WORD, ""),
    "client.id": (_WORD, ""),
    "client.rack": (_WORD, ""),
    "connections.max.idle.ms": (_NUMBER, ""),
    "enable.metrics.push": ("true|false", ""),
    "fetch.max.bytes": (_NUMBER, ""),
    "max.partition.fetch.bytes": (_NUMBER, ""),
    "metadata.max.age.ms": (_NUMBER, "topic.metadata.refresh.interval.ms"),
    "metadata.recovery.strategy": ("none|rebootstrap", ""),
    "receive.buffer.bytes": (_NUMBER, "socket.receive.buffer.bytes"),
    "reconnect.backoff.max.ms": (_OR_NO_WAIT, ""),
    "reconnect.backoff.ms": (_OR_NO_WAIT, ""),
    "retry.backoff.max.ms": (_NUMBER, ""),
    "retry.backoff.ms": (_NUMBER, ""),
    "send.buffer.bytes": (_NUMBER, "socket.send.buffer.bytes"),
    "socket.connection.setup.timeout.ms": (_NUMBER, ""),
}
_JAVA_NAMES: Final = {librdkafka: java for java, (_, librdkafka) in _ALLOWED.items() if librdkafka}
# Why the best known of the others are not; ``{}`` is the variable that says where Kafka is.
_REFUSED: Final[Mapping[str, str]] = {
    r"(bootstrap|metadata\.broker)\.": "set {} instead",
    r"ssl\.endpoint\.|enable\.ssl\.": "a broker's certificate and name are always checked",
    r".*(class(es)?|reporters|handler|providers?|_cb|jaas\..*)$|config\.providers|plugin\.": "it "
    "names code that a client would load",
    r"security\.|sasl\.|ssl\.|https\.": "set {}_SECURITY_PROTOCOL, {}_SASL_…, {}_OAUTH_… or "
    "{}_SSL_… instead",
    r"(request|default\.api|socket|session)\.timeout": "set ONCELAKE_KAFKA_TIMEOUT_SECONDS instead",
    r"group\.|isolation\.|auto\.|enable\.auto|.*serializer|max\.poll|transactional\.|acks|"
    r"enable\.idem|fetch\.(max\.wait|wait|min)": "it decides which records are read or written, or "
    "when",
}

_PAIR: Final = re.compile(r"((?:\\.|[^\s=:\\])+)\s*[=:]?\s*(.*)")
_CONTINUES: Final = re.compile(r"(?<!\\)(\\\\)*\\$")


def java_properties(file: Path | None, *, variable: str) -> dict[str, str]:
    """Return what a file sets, by Java's names.

    Args:
        file: The file; nothing is set without one.
        variable: The variable that says where that Kafka is; ``…_PROPERTIES`` names the file.

    Raises:
        InvalidSpecError: it is not there, or sets what may not be set, or to what no client takes;
            names its lines.
    """
    if file is None:
        return {}
    found = read_properties(file, variable=f"{variable}_PROPERTIES")
    where = f"{variable}_PROPERTIES: {file}"
    problems = [
        f"{where}, line {line}: {name}: {problem.replace('{}', variable)}"
        for line, name, value in found
        if (problem := _problem(name, value))
    ]
    properties = {name: value for _, name, value in found}
    if not problems and (problem := _problem_of_librdkafka(tuple(properties.items()))):
        problems = [f"{where}: {problem}"]
    if problems:
        remedy = "correct these lines, or take them out; docs/settings.md lists what may be set"
        raise InvalidSpecError("\n".join([*problems, f"Next: {remedy}"]))
    return properties


def librdkafka_properties(file: Path | None, *, variable: str) -> dict[str, str]:
    """Return the same by librdkafka's names."""
    return _translated(java_properties(file, variable=variable).items())


def read_properties(file: Path, *, variable: str) -> list[tuple[int, str, str]]:
    """Return line, key and value of each property of a file of Java's, escapes as they stand.

    Raises:
        InvalidSpecError: the file, which ``variable`` names, cannot be read.
    """
    try:
        return list(_parsed(file.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSpecError(f"{variable}: {file} cannot be read: {error}") from error


def _problem(name: str, value: str) -> str | None:
    if name not in _ALLOWED:
        if name in _JAVA_NAMES:
            return f"that is librdkafka's name; write {_JAVA_NAMES[name]}"
        reasons = (reason for names, reason in _REFUSED.items() if re.match(names, name))
        return next(reasons, "it is none of those that may be set")
    form, _ = _ALLOWED[name]
    if form == _NUMBER and re.fullmatch("0+", value):
        return "0 does not mean the same to both clients; write another number"
    return None if re.fullmatch(form, value) else f"it has no value {value!r}"


@cache
def _problem_of_librdkafka(properties: tuple[tuple[str, str], ...]) -> str | None:
    """Say why the client does not take values, by its own ranges."""
    try:
        Consumer({"group.id": "none", "log_level": 0, **_translated(properties)}).close()
    except KafkaException as error:
        return str(error.args[0].str()).strip()
    return None


def _translated(properties: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {_ALLOWED[name][1] or name: value for name, value in properties}


def _parsed(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Yield line, key and value, as Java reads properties."""
    begun, text = 0, ""
    for number, line in enumerate([*lines, ""], start=1):
        begun, text = (begun if text else number), text + line.lstrip()
        if line and not text.startswith(("#", "!")) and _CONTINUES.search(text):
            text = text[:-1]
            continue
        pair = _PAIR.match(text)
        if pair and not text.startswith(("#", "!")):
            yield begun, pair[1], pair[2].rstrip()
        text = ""
