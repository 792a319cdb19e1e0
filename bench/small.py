"""What a small run costs: a few new records, and a JVM that starts cold and soon ends.

    python -m bench.small [RECORDS [ROUNDS]]

A process each time, as a schedule starts it: ``oncelake run`` with the JVM as delivered, with one
that starts without the archive of classes, and with one that compiles as for a large backlog, too.
They take turns on one topic, each into a lake of its own; the first run of each makes its table and
is not counted.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from ingestion.cli.demo.flights import plain
from ingestion.local import broker
from ingestion.local.produce import create, produce
from ingestion.settings import Settings, load_settings

RECORDS: Final = 100
ROUNDS: Final = 3
STREAM: Final = "flights"
FULL_COMPILER: Final = "-XX:+UseParallelGC -XX:TieredStopAtLevel=4"
# Name of a contender, the folder of its jars if it is another, and the options of its JVM.
JVMS: Final = {
    "as delivered": ("", ""),
    "without the archive": ("jars", ""),
    "without it, full compiler": ("jars", FULL_COMPILER),
}


@contextmanager
def empty_topic() -> Iterator[Settings]:
    """Bring up a broker in a scratch folder, with a topic for the demo's stream."""
    scratch = Path(tempfile.mkdtemp(prefix="oncelake-bench-"))
    own = load_settings()
    try:
        up = broker.up(scratch / "kafka", jars=own.jars, tied_to_caller=True)
        settings = own.model_copy(update={"kafka": up.address, "lake": scratch, "state": scratch})
        (scratch / "jars").mkdir()
        (scratch / "jars" / "spark").symlink_to(own.jars.resolve() / "spark")
        create(settings, STREAM, partitions=3)
        yield settings
    finally:
        broker.down(scratch / "kafka")
        shutil.rmtree(scratch, ignore_errors=True)


def seconds_of_run(settings: Settings, name: str) -> float:
    """Run the stream in a process of its own, and return how long that took."""
    jars, options = JVMS[name]
    environment = {
        **os.environ,
        "ONCELAKE_KAFKA": settings.bootstrap_servers(),
        "ONCELAKE_LAKE": str(settings.lake / name / "lake"),
        "ONCELAKE_STATE": str(settings.state / name / "state"),
        "ONCELAKE_JARS": str(settings.state / jars if jars else settings.jars),
        "ONCELAKE_SPARK_JAVA_OPTIONS": options,
    }
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ingestion", "run", STREAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}: exit {done.returncode}: {done.stdout}{done.stderr[-2000:]}")
    return time.monotonic() - started


def main(records: int = RECORDS, rounds: int = ROUNDS) -> None:
    """Alternate, and print medians and their ratio."""
    messages, console = plain(), Console()
    measured: dict[str, list[float]] = {name: [] for name in JVMS}
    with empty_topic() as settings:
        for number in range(rounds + 1):
            produce(settings, STREAM, islice(messages, records))
            for name in JVMS:
                seconds = seconds_of_run(settings, name)
                console.print(f"round {number} {name}: {seconds:.1f} s", highlight=False)
                if number:
                    measured[name].append(seconds)
    middle = {name: statistics.median(each) for name, each in measured.items()}
    first = next(iter(middle.values()))
    table = Table("JVM", "wall s", "as delivered = 1")
    for name, seconds in middle.items():
        table.add_row(name, f"{seconds:.1f}", f"{seconds / first:.2f}")
    console.print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
