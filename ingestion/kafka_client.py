"""How every confluent-kafka client connects, and how its silence is told."""

from __future__ import annotations

from typing import Any

from ingestion.errors import DependencyError
from ingestion.kafka_security import librdkafka_options, redact
from ingestion.settings import Settings


def client_options(settings: Settings) -> dict[str, Any]:
    """Return what every client is told; it logs nothing of its own.

    Raises:
        InvalidSpecError: the settings contradict one another, or name a file that is not there.
        DependencyError: no Kafka is configured and the embedded one is not up.
    """
    return {
        "bootstrap.servers": settings.bootstrap_servers(),
        "log_level": 0,
        "error_cb": lambda error: None,
        **librdkafka_options(settings),
    }


def unreachable(settings: Settings, cause: object) -> DependencyError:
    """Return the error that says who did not answer in time, and why; without secrets."""
    said = redact(str(cause), settings)
    return DependencyError(
        f"Kafka at {settings.bootstrap_servers()} does not answer within "
        f"{settings.kafka_timeout_seconds:g} s"
        + (f": {said}. " if said else ". ")
        + "Next: check ONCELAKE_KAFKA and the brokers, then run the same command again"
    )
