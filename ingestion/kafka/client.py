"""How every confluent-kafka client connects, and the error when it gets no answer."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message

from oncelake.ingestion.errors import DependencyError, KafkaSettingsError, MissingRightError
from oncelake.ingestion.kafka.diagnosis import diagnose
from oncelake.ingestion.kafka.security import librdkafka_options, redact
from oncelake.ingestion.settings import KafkaCluster, Settings

# OpenSSL's own code, and how long which step of a connection took.
_NOISE: Final = re.compile(r"error:[0-9A-F]{8}:SSL routines::| \(after \d+ms in state \w+[^)]*\)")
# How a request ends that ACLs do not allow; asked for offsets, the client only finds no leader.
_NOT_ALLOWED: Final = (
    *(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    *(KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError._NOENT),
)
# A direct call, which the interpreter shortens in a loop, would let the client's error pass.
_ask_for_headers: Final[Callable[[Message], list[tuple[str, bytes | None]] | None]] = methodcaller(
    "headers"
)


class ClientErrors(deque[KafkaError]):
    """The newest errors of a client's connections; the client reports them when polled."""

    def __init__(self) -> None:
        super().__init__(maxlen=20)


def client_options(settings: Settings, heard: ClientErrors | None = None) -> dict[str, Any]:
    """Return the options of every client; it logs nothing itself, and ``heard`` gets its errors.

    Raises:
        InvalidSpecError: the settings contradict one another, or name a file that is not there.
        DependencyError: no Kafka is configured and the embedded one is not up.
    """
    return {
        **librdkafka_options(settings),
        "bootstrap.servers": settings.bootstrap_servers(),
        "log_level": 0,
        # A client that writes would have brokers make whatever topic it asks for.
        "allow.auto.create.topics": False,
        "error_cb": (ClientErrors() if heard is None else heard).append,
    }


def headers_of(message: Message) -> tuple[tuple[str, bytes | None], ...] | None:
    """Return the headers of a record; ``None`` where the name of one is not UTF-8.

    The client's list then has no object there, and reading it would end the process.
    """
    try:
        return tuple(_ask_for_headers(message) or ())
    except SystemError:
        return None


# A record's time may be any number; a column has those from 1582-10-15 to the end of 9999. Earlier
# ones Spark takes for days of the Julian calendar, later ones no reader can hold.
_FIRST_MS: Final = -12_219_292_800_000
_LAST_MS: Final = 253_402_300_799_999
# What a column has instead: its first moment, and its last, at which no whole millisecond is.
FIRST_MOMENT: Final = "0001-01-01 00:00:00+00:00"
LAST_MOMENT: Final = "9999-12-31 23:59:59.999999+00:00"
MOMENTS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
# The same for Spark, of a column ``timestamp``.
SENT: Final = f"""
    CASE WHEN timestamp < TIMESTAMP '1582-10-15 00:00:00Z' THEN TIMESTAMP '{FIRST_MOMENT}'
         WHEN timestamp > TIMESTAMP '9999-12-31 23:59:59.999Z' THEN TIMESTAMP '{LAST_MOMENT}'
         ELSE timestamp END
"""


def timestamp_ms_of(message: Message) -> int:
    """Return a record's timestamp in milliseconds, limited to those that a column can have.

    A producer with another unit writes others, and brokers before 4.0 keep them.
    """
    return min(max(message.timestamp()[1], _FIRST_MS), _LAST_MS)


def timestamp_micros_of(message: Message) -> int:
    """Return a record's timestamp as a column has it, in microseconds."""
    sent = message.timestamp()[1]
    if _FIRST_MS <= sent <= _LAST_MS:
        return int(sent) * 1_000
    return MOMENTS[sent > _LAST_MS]


def unreachable(
    settings: Settings,
    cause: object,
    heard: Iterable[KafkaError] = (),
    *,
    of: str = "",
    right: str = "",
) -> DependencyError:
    """Return the error that names the brokers, the user, and the reason; without secrets.

    ``of`` is what was asked for, where a broker may refuse that and answer otherwise; ``right`` is
    the right that it takes.

    A request without an answer only times out (``cause``); the errors of the client's connections
    (``heard``) say why.
    """
    if right and code_of(cause) in _NOT_ALLOWED:
        return missing_right(settings, right)
    why = [each for each in heard if each.code() != KafkaError._ALL_BROKERS_DOWN]
    said = list(dict.fromkeys(filter(None, map(_reason, (cause, *why[-1:])))))
    kind, answer = DependencyError, f"refuses {of}".rstrip()
    here, security = settings.kafka.variable_of(), _security(settings.kafka)
    remedy = f"check {here}, the brokers, and that they expect {security}"
    if code_of(cause) <= 0:
        answer = f"does not answer within {settings.kafka_timeout_seconds:g} s"
        if found := diagnose(settings, said[-1] if said else ""):
            said, remedy, answer = [found.cause], found.remedy, "cannot be connected to"
            kind = KafkaSettingsError if found.is_of_settings else DependencyError
    login = _login(settings)
    return kind(
        f"Kafka at {settings.bootstrap_servers()}"
        + (f", as user {login!r}, " if login else " ")
        + answer
        + (f": {redact('; '.join(said), settings)}. " if said else ". ")
        + f"Next: {remedy}; then run the same command again"
    )


def missing_right(settings: Settings, right: str) -> MissingRightError:
    """Return the error of a request that the ACLs refuse for want of a right."""
    login = _login(settings)
    # Kafka answers the same for a topic that is not there, so that nobody can try names out.
    or_absent = ", or it is not there" if right.startswith("DESCRIBE on topic") else ""
    return MissingRightError(
        f"Kafka at {settings.bootstrap_servers()} refuses it: "
        + (f"user {login!r}" if login else f"whoever {settings.kafka.variable_of()}_… logs in as")
        + f" lacks {right}{or_absent}. Next: grant it (docs/rights.md), then run the same command "
        "again"
    )


def _login(settings: Settings) -> str | None:
    return settings.kafka.sasl_username or settings.kafka.oauth_client_id


def _security(cluster: KafkaCluster) -> str:
    """Name how this client connects: brokers hang up on others without an answer."""
    names = ("security_protocol", "sasl_mechanism", "oauth_token_endpoint", "ssl_ca")
    values = {name: getattr(cluster, name) for name in names}
    values["security_protocol"] = values["security_protocol"] or "PLAINTEXT"
    return ", ".join(
        f"{cluster.variable_of(name)}={value}" for name, value in values.items() if value
    )


def is_about_group(message: Message) -> bool:
    """Tell a refusal of the consumer's group, which it does not need: it is given partitions."""
    return code_of(message.error()) == KafkaError.GROUP_AUTHORIZATION_FAILED


def code_of(error: object) -> int:
    """Return Kafka's code of an error: positive from a broker, negative from the client itself."""
    kafkas = _kafkas(error)
    return int(kafkas.code()) if kafkas else -1


def _reason(error: object) -> str:
    kafkas = _kafkas(error)
    return _NOISE.sub("", str(kafkas.str())) if kafkas else str(error)


def _kafkas(error: object) -> KafkaError | None:
    found = error.args[0] if isinstance(error, KafkaException) else error
    return found if isinstance(found, KafkaError) else None
