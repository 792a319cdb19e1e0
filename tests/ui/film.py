"""The film of README's first screen: a run is killed, runs again, and its table is proven.

Every line is what the commands printed, when they did; only pauses are shortened.

    make film
"""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from oncelake.ingestion.local import broker
from oncelake.ingestion.local.produce import create
from tests.support.world import JARS, ROOT, settings_in

RECORDS = 300_000
KEYS = 120_000
STREAM = "assets/streams/orders.yaml"
FILE = """\
topic: orders
schema: id BIGINT NOT NULL, status STRING, total DECIMAL(12, 2)
keys: [id]
max_offsets_per_trigger: 100000
"""

_COLUMNS, _ROWS = 104, 24
_WIDTH, _LINE, _SIZE, _LEFT, _TOP = 7.83, 19, 13, 18, 48
_LONGEST_PAUSE, _TYPED, _LAST = 1.3, 0.8, 6.0
_STYLES = {
    "$ kill": "red",
    "$ ": "typed",
    "proven:": "green",
    "balanced": "green",
    "committed as": "step",
}
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
_SHEET = (
    "text{fill:#c9d1d9;white-space:pre}.typed{fill:#fff;font-weight:bold}.step{fill:#79c0ff}"
    ".red{fill:#ff7b72;font-weight:bold}.green{fill:#7ee787;font-weight:bold}.note{fill:#8b949e}"
)


@dataclass(frozen=True)
class Shown:
    """A line on the screen, and when it came."""

    text: str
    at: float


class Film:
    """A terminal, and somebody who types."""

    def __init__(self, home: Path, address: str) -> None:
        self._home = home
        self._environment = {
            **{name: value for name, value in os.environ.items() if "ONCELAKE" not in name},
            "ONCELAKE_KAFKA": address,
            "ONCELAKE_JARS": str(JARS),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": str(_COLUMNS),
        }
        self.lines = list[Shown]()

    def type(self, command: str, *, kill_after: str | None = None) -> None:
        """Type a command and wait for its end, or kill it half a second behind some output."""
        self._show(f"$ {command}" + " &" * bool(kill_after))
        words = [sys.executable, "-m", "ingestion", *command.split()[1:]]
        if command.startswith("cat "):
            words = command.split()
        with subprocess.Popen(
            words,
            cwd=self._home,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self._show(line.rstrip())
                if kill_after and kill_after in line:
                    time.sleep(0.5)
                    self._show("$ kill -9 $!")
                    process.kill()
        if kill_after:
            self._show("$ wait $!; echo $?")
            self._show(str(128 - process.returncode))
        assert kill_after or process.returncode == 0, self.lines

    def _show(self, text: str) -> None:
        now = time.monotonic()
        for piece in textwrap.wrap(
            text, _COLUMNS, subsequent_indent="    ", drop_whitespace=False
        ) or [""]:
            self.lines.append(Shown(piece, now))


def shortened(lines: list[Shown]) -> list[Shown]:
    """Shorten pauses, and let a command stand for a moment before its output."""
    at, told = 0.2, list[Shown]()
    for before, line in zip([lines[0], *lines], lines, strict=False):
        pause = min(line.at - before.at, _LONGEST_PAUSE)
        at += max(pause, _TYPED) if "$" in {line.text[:1], before.text[:1]} else pause
        told.append(Shown(line.text, at))
    return told


def drawn(lines: list[Shown], seconds: float) -> Iterator[str]:
    """Draw the film: each line appears at its time, and the screen scrolls."""
    length = lines[-1].at + _LAST
    width, height = _LEFT * 2 + _COLUMNS * _WIDTH, _TOP + _ROWS * _LINE + 34
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'font-family="{_FONTS}" font-size="{_SIZE}">'
    )
    yield "<title>oncelake run is killed, runs again, and oncelake verify proves the table</title>"
    yield f"<style>{_SHEET}{''.join(_animations(lines, length))}</style>"
    yield '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>'
    for at, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        yield f'<circle cx="{_LEFT + 6 + at * 20}" cy="20" r="6" fill="{colour}"/>'
    yield f'<svg y="{_TOP - _LINE + 5}" height="{_ROWS * _LINE + 4}" width="100%"><g id="all">'
    for number, line in enumerate(lines):
        style = next((each for word, each in _STYLES.items() if word in line.text), "")
        yield (
            f'<text id="l{number}" class="{style}" x="{_LEFT}" y="{(number + 1) * _LINE - 5}">'
            f"{html.escape(line.text).replace(' ', chr(160))}</text>"
        )
    note = f"Recorded by make film. It took {seconds:.0f} s; pauses are shortened."
    yield f'</g></svg><text class="note" x="{_LEFT}" y="{height - 12}">{note}</text></svg>'


def _animations(lines: list[Shown], length: float) -> Iterator[str]:
    """Let each line appear at its share of the film, and the screen scroll when it is full."""
    steps = []
    for number, line in enumerate(lines):
        share = line.at / length * 100
        yield f"@keyframes l{number}{{0%,{share:.2f}%{{opacity:0}}"
        yield f"{share + 0.01:.2f}%,100%{{opacity:1}}}}"
        yield f"#l{number}{{animation:l{number} {length:.1f}s infinite}}"
        if (hidden := number + 1 - _ROWS) > 0:
            steps.append(f"{share:.2f}%{{transform:translateY({-_LINE * hidden}px)}}")
    yield f"@keyframes scroll{{0%{{transform:none}}{''.join(steps)}}}"
    yield f"#all{{animation:scroll {length:.1f}s step-end infinite}}"
    yield "@media (prefers-reduced-motion:reduce){text,#all{animation:none!important}}"


def main(target: Path) -> None:
    """Record the film, with a broker and a project of its own."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "dagster.yaml").touch()
        (home / STREAM).parent.mkdir(parents=True)
        (home / STREAM).write_text(FILE)
        address = broker.up(home / "kafka", jars=JARS, tied_to_caller=True).address
        fill(address)
        film = Film(home, address)
        film.type(f"cat {STREAM}")
        film.type("oncelake run orders", kill_after="batch 1 committed")
        film.type("oncelake run orders")
        film.type("oncelake verify orders")
        broker.down(home / "kafka")
    target.write_text("\n".join(drawn(shortened(film.lines), film.lines[-1].at - film.lines[0].at)))


def fill(address: str) -> None:
    """Send orders, each key several times."""
    create(settings_in(Path(), address), "orders", partitions=3)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50})
    for number in range(RECORDS):
        id_, status = number * 7919 % KEYS, ("new", "paid", "shipped")[number % 3]
        order = {"id": id_, "status": status, "total": number % 900 + 0.5}
        producer.produce("orders", json.dumps(order).encode(), str(id_).encode())
        producer.poll(0)
    assert producer.flush(60) == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
