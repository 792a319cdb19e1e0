"""``oncelake jars``: what Spark and the embedded Kafka need beside Python packages."""

from __future__ import annotations

from typing import Annotated

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.commands.streams import load_settings

OnS3 = Annotated[
    bool, typer.Option("--s3", help="Also what Spark needs to write tables of a lake on S3.")
]


def jars(s3: OnS3 = False) -> None:
    """Fetch the jars that runs need into ONCELAKE_JARS, exactly those that this release locks.

    A run fetches what it lacks by itself, all but what `--s3` adds; in a clone `make setup` and
    `make setup-s3` do. Does nothing but compare when everything is there; a jar with another
    checksum is refused (exit 2), and a network that is away is exit 5. ONCELAKE_MAVEN names a
    mirror.
    """
    from oncelake.ingestion.local.jars import CONFIGURATIONS, STORE_CONFIGURATIONS, fetch

    settings = load_settings()
    more = STORE_CONFIGURATIONS if s3 else ()
    for line in fetch(settings.jars, (*CONFIGURATIONS, *more), maven=settings.maven):
        output.say(line)
