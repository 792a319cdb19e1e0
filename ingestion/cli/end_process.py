"""Ends a command's process with its code, though threads of libraries may still be running."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def run_to_the_end(command: Callable[[], object]) -> None:
    """Run a command, and end the process with its code before the interpreter is taken apart.

    Threads that Python does not manage may still run then: Arrow reads ahead for an abandoned scan,
    PySpark listens to a JVM that has died. Destroying C++ and Python objects under them would end a
    finished process with SIGSEGV or an abort: one of 60 that had abandoned a scan. Python's own
    exit handlers have all run by then: this one is registered first, and so called last.
    """
    codes = [1]
    atexit.register(lambda: leave_now(codes[-1]))
    try:
        command()
        codes.append(0)
    except SystemExit as ended:
        codes.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise


def leave_now(code: int) -> NoReturn:
    """End the process though a thread is still running: as in a crash, which the next run heals."""
    for written in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            written.flush()
    os._exit(code)
