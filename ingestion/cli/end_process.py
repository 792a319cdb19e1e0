"""How a command's process ends: with its code, whatever threads of libraries are still at work."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def run_to_the_end(command: Callable[[], object]) -> None:
    """Run a command, and end the process with its code before the interpreter is taken apart.

    Threads that Python does not know may still be at work then: Arrow reads ahead for a scan that
    nobody needs any more, PySpark listens to a JVM that has died. Taking C++ and Python objects
    apart under them ends a process that has done its work with SIGSEGV or an abort: one of 60 that
    had abandoned a scan. Python's own exit handlers have all run by then: ours is the first that is
    registered, and so the last that is called.
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
    """End the process though a thread still works: as in a crash, which the next run heals."""
    for written in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            written.flush()
    os._exit(code)
