"""A stream that a process of its own follows, while something else goes on."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.world import ROOT, World, row


@contextmanager
def followed(world: World, log: Path, *module: str) -> Iterator[None]:
    """Follow the stream, in a process of its own, while the block runs, and a little longer.

    Args:
        world: The stream.
        log: What the process writes to.
        module: What is run as ``oncelake``, and what it takes before the command.
    """
    world.write_declaration()
    words = (*(module or ("ingestion",)), "follow", world.name, "--json", "--every", "1s")
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env=world.environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
        time.sleep(5)
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def send_until(world: World, end: float) -> None:
    """Send rows that are new, and now and then one that is not, until a monotonic time."""
    for number in itertools.count(1):
        world.send(row(number, "new"), *[row(number // 2, "again")] * (number % 8 == 0))
        time.sleep(0.25)
        if time.monotonic() > end:
            break
