"""``oncelake jars``: what Spark and the embedded Kafka need beside Python packages."""

from __future__ import annotations

from ingestion.cli import output
from ingestion.cli.streams import load_settings


def jars() -> None:
    """Fetch the jars that runs need into ONCELAKE_JARS, exactly those that this release locks.

    In a clone `make setup` does it. Does nothing but compare when everything is there; a jar with
    another checksum is refused (exit 2), and a network that is away is exit 5.
    """
    from ingestion.local.jars import fetch

    settings = load_settings()
    for line in fetch(settings.jars):
        output.say(line)
