"""Typing commands: here, or in a process that is killed; and reading what they name as a remedy."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from oncelake.ingestion.cli.app import app
from oncelake.ingestion.errors import LOCKED
from tests.lives.streams import KINDS
from tests.support.world import ROOT
from tests.trials.failpoints import PlannedCrash, crashing_at
from tests.trials.kills import process_group

_SECONDS = 300.0
_INTERRUPTED = (130, 143)
_OPTIONS = r"--(?:reason '[^']*'|to seq:\w+|from earliest|without-lost|yes|force)"
_COMMAND = re.compile(rf"oncelake ([a-z-]+) (\w+)((?: {_OPTIONS})*)")
_NAMES = "|".join(kind.name for kind in KINDS)
_VARIABLE = re.compile(rf"\S*/\S*|\bt[0-9a-f]{{12}}\b|\d+|\b({_NAMES})\b")
_UNEXPECTED = re.compile(r"^unexpected \w+", re.MULTILINE)
_LOOKING = {"history", "verify", "ledger", "status", "quarantine", "plan", "doctor"}
# Elsewhere than on a terminal these need it, as the docs say.
_ASKING = {"reset", "rewind", "adopt-topic"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command printed, and its exit code: negative of one that was killed."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        """Write it as a terminal shows it."""
        return f"$ oncelake {' '.join(self.words)}\n{self.out}{self.err}exit {self.code}"

    @property
    def document(self) -> dict[str, Any]:
        """Its JSON; empty where it printed none."""
        return dict(json.loads(self.out)) if self.out.startswith("{") else {}

    @property
    def has_crashed(self) -> bool:
        """Tell whether it ended as a test had planned."""
        return self.code < 0 or "PlannedError" in self.err

    @property
    def is_unexpected(self) -> bool:
        """Tell whether nobody has raised its error on purpose."""
        return bool(_UNEXPECTED.search(self.err)) and not self.has_crashed

    @property
    def gist(self) -> str:
        """The kind of what it reports, without names and numbers."""
        document = self.document
        details = [*document.get("differences", ()), *document.get("findings", ())]
        texts = [str(detail["what"]) for detail in details if detail.get("exit_code") != 0]
        lines = [line for line in self.err.splitlines() if ": " in line]
        first = next(iter([*texts, *lines[-1:]]), "nothing")
        return _VARIABLE.sub("…", first)[:200]


def type_words(*words: str, crash_at: str = "") -> Answer:
    """Type a command in this process; wait while the JVM of a dead run holds the stream."""
    deadline = time.monotonic() + _SECONDS
    while True:
        with crashing_at(crash_at) if crash_at else nullcontext():
            result = CliRunner().invoke(app, ["--debug", *words])
        if result.exit_code in _INTERRUPTED:
            raise KeyboardInterrupt
        if result.exit_code != LOCKED or time.monotonic() > deadline:
            return Answer(words=words, code=result.exit_code, out=result.stdout, err=result.stderr)
        time.sleep(0.5)


def type_and_kill(*words: str, place: str, way: str, folder: Path) -> Answer:
    """Type a command in a process of its own that is killed at a place, if it gets there."""
    visits, log = folder / "visits", folder / "killed.log"
    visits.write_text("")
    crash = PlannedCrash(place=place, way=way, visits=str(visits))
    command = [sys.executable, "-m", "ingestion", "--debug", *words]
    environment = {**os.environ, **crash.environment(), "PYTHONPATH": str(ROOT)}
    with process_group(command, environment, log) as process:
        code = process.wait(_SECONDS)
    # Where the JVM alone was killed, Python ends as it likes.
    code = -signal.SIGKILL if place in visits.read_text().split() else code
    return Answer(words=words, code=code, out="", err=log.read_text(errors="replace"))


def remedies_in(answer: Answer, stream: str, *, savepoint: str) -> list[tuple[str, ...]]:
    """Return the commands that a message names as its remedy, as they would be typed.

    Args:
        answer: Of the command that printed it.
        stream: What each must be about.
        savepoint: Takes the place of ``seq:N``.
    """
    _, _, text = f"{answer.err} {answer.out}".partition("Next: ")
    findings = [str(finding["command"]) for finding in answer.document.get("findings", ())]
    remedies = []
    for name, about, options in _COMMAND.findall("\n".join([text, *findings])):
        if about == stream and name not in _LOOKING:
            words = re.findall(r"(?<=')[^']*(?=')|[^\s']+", options.replace("seq:N", savepoint))
            remedies.append((name, about, *words, *(["--yes"] if name in _ASKING else [])))
    return list(dict.fromkeys(remedies))
