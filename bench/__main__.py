"""``make bench``: our run beside a naive one, alternating, both warm, on the same topic.

    python -m bench [ROUNDS]

The topic holds all 336,776 flights of 2013, one message each, so every one is an insert. Each
contender has a JVM of its own; the first load of each warms it up and is not counted.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ingestion.cli.demo.flights import plain
from ingestion.local import broker
from ingestion.local.produce import create, produce
from ingestion.settings import Settings, load_settings

CONTENDERS = ("oncelake", "naive")
TOPIC = "flights"


class Contender:
    """One contender's process."""

    def __init__(self, name: str, settings: Settings) -> None:
        """Start it; its JVM starts with it."""
        environment = {
            **os.environ,
            "ONCELAKE_KAFKA": settings.bootstrap_servers(),
            "ONCELAKE_LAKE": str(settings.lake / name),
            "ONCELAKE_STATE": str(settings.state / name),
        }
        settings.state.mkdir(parents=True, exist_ok=True)
        self._log = settings.state / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.contender", name, TOPIC],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def load(self) -> dict[str, float]:
        """Load the topic once, and return what was measured."""
        pipe = self._process.stdin, self._process.stdout
        if pipe[0] is None or pipe[1] is None:
            raise RuntimeError("a contender without pipes")
        pipe[0].write("load\n")
        pipe[0].flush()
        answer = next((line for line in pipe[1] if line.startswith("{")), "")
        if not answer:
            raise SystemExit(f"a contender died: {self._log.read_text()[-2000:]}")
        measured: dict[str, float] = json.loads(answer)
        return measured

    def stop(self) -> None:
        """End it, and its JVM with it."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait(60)


@contextmanager
def filled_topic() -> Iterator[Settings]:
    """Bring up a broker in a scratch folder, and fill the topic."""
    scratch = Path(tempfile.mkdtemp(prefix="oncelake-bench-"))
    own = load_settings()
    try:
        up = broker.up(scratch / "kafka", jars=own.jars, tied_to_caller=True)
        settings = own.model_copy(
            update={"kafka": up.address, "lake": scratch / "lake", "state": scratch / "state"}
        )
        create(settings, TOPIC, partitions=3)
        produce(settings, TOPIC, plain())
        yield settings
    finally:
        broker.down(scratch / "kafka")
        shutil.rmtree(scratch, ignore_errors=True)


def main(rounds: int) -> None:
    """Alternate the contenders, and print medians and their ratio."""
    console = Console()
    with filled_topic() as settings:
        contenders = {name: Contender(name, settings) for name in CONTENDERS}
        try:
            measured: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
            for number in range(rounds + 1):
                for name, contender in contenders.items():
                    result = contender.load()
                    console.print(f"round {number} {name}: {result}", highlight=False)
                    if number:
                        measured[name].append(result)
        finally:
            for contender in contenders.values():
                contender.stop()
    console.print(_table(measured))


def _table(measured: dict[str, list[dict[str, float]]]) -> Table:
    table = Table("contender", "rows", "wall s", "CPU s", "wall, naive = 1", "CPU, naive = 1")
    middle = {
        name: {
            part: statistics.median(r[part] for r in results) for part in ("rows", "wall", "cpu")
        }
        for name, results in measured.items()
    }
    for name, of in middle.items():
        table.add_row(
            name,
            f"{of['rows']:.0f}",
            f"{of['wall']:.1f}",
            f"{of['cpu']:.1f}",
            f"{of['wall'] / middle['naive']['wall']:.2f}",
            f"{of['cpu'] / middle['naive']['cpu']:.2f}",
        )
    return table


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
