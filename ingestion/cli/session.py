"""Spark for a command: started once, and silent on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ingestion.settings import Settings


def session(settings: Settings, tell: Callable[[str], None]) -> SparkSession:
    """Start Spark."""
    tell("starting Spark…")
    with _stdout_spared():
        from ingestion.pipeline.session import start_session

        return start_session(settings)


@contextmanager
def _stdout_spared() -> Iterator[None]:
    """Let a child process that starts inside take stderr for its stdout, as the JVM must."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
