"""A run in a process of its own, which dies at a place of the caller's choice.

    python -m tests.crash.driver STREAM POINT

The kill is real: SIGKILL to the whole process group, driver and JVM.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import ingestion.batch
from ingestion.declarations import find_stream
from ingestion.ledger import Ledger
from ingestion.run import Run
from ingestion.session import start_session
from ingestion.settings import load_settings
from ingestion.sinks.upsert import Upsert


def die() -> None:
    """End this process group at once."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def die_before(owner: Any, name: str) -> None:
    """Die when ``owner.name`` is called."""
    setattr(owner, name, lambda *given, **named: die())


def die_after(owner: Any, name: str) -> None:
    """Die when ``owner.name`` has done its work."""
    honest = getattr(owner, name)

    def dying(*given: Any, **named: Any) -> None:
        honest(*given, **named)
        die()

    setattr(owner, name, dying)


POINTS = {
    "after the quarantine": lambda: die_after(ingestion.batch, "quarantine"),
    "before the commit": lambda: die_before(Upsert, "commit"),
    "after the commit": lambda: die_after(Upsert, "commit"),
    "after the ledger": lambda: die_after(Ledger, "put"),
}


def main(stream: str, point: str) -> None:
    """Run the stream until it dies."""
    POINTS[point]()
    settings = load_settings()
    spec = find_stream(settings.streams, stream)
    Run(spec=spec, settings=settings, spark=lambda: start_session(settings), run_id=point).execute()


if __name__ == "__main__":
    main(*sys.argv[1:])
