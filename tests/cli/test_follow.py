"""``oncelake follow``: what it prints, and how it ends, with the engine played at its seams."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from oncelake.ingestion import errors
from oncelake.ingestion.cli.command import read_duration
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.pipeline.report import RunReport
from tests.cli.shell import ORDERS, declare, oncelake, quarantine, row
from tests.cli.test_run import report
from tests.operations.test_inspect_quarantine import held

REFUSED = errors.TopicMissingError("refused", "no topic [a, b].", remedy="make it")


SCRAPED: list[str] = []
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    PORT = probe.getsockname()[1]


class _Run:
    """Stands where ``Run`` does; each stream ends as its name says."""

    def __init__(self, **asked: Any) -> None:
        self.name = asked["spec"].name
        self.stop: threading.Event = asked["stop"]

    def execute(self) -> RunReport:
        """End."""
        if self.name == "refused":
            raise REFUSED
        if self.name == "scraped":
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as answer:
                SCRAPED.append(answer.read().decode())
        if self.name == "stopped":
            os.kill(os.getpid(), signal.SIGTERM)
            assert self.stop.wait(4)
            return replace(report(self.name, batches=()), lag=7)
        return report(self.name, batches=(row(1, balanced=self.name != "red", problems=("1≠2",)),))


@pytest.fixture(autouse=True)
def engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fakes into place; every stream is behind until it has been run."""

    def read(reader: object, specs: Sequence[StreamSpec]) -> dict[str, dict[str, int]]:
        return {spec.name: {spec.name: 500} for spec in specs}

    for name in ("done", "red", "refused", "scraped", "stopped"):
        declare(home, name, ORDERS)
    monkeypatch.setenv("ONCELAKE_KAFKA", "nowhere:1")
    monkeypatch.setattr("oncelake.ingestion.operations.follow.follow.Run", _Run)
    monkeypatch.setattr("oncelake.ingestion.operations.follow.follow.LagReader.read", read)


def test_each_run_is_a_line_of_json() -> None:
    """A run's line is the document that ``run`` gives, and so is that of a refusal."""
    quarantine("done", held(1, "missing_key"))

    result = oncelake("follow", "done", "refused", "--every", "50ms", "--for", "2s", "--json")

    lines = {each["stream"]: each for each in map(json.loads, result.stdout.splitlines())}
    assert lines["done"]["counts"]["inserted"] == 10
    assert lines["done"]["quarantine_waiting"] == 1
    assert lines["refused"]["error"]["remedy"] == "make it"
    assert len(result.stdout.splitlines()) == 2
    assert result.exit_code == 3


def test_each_run_is_a_line_for_people() -> None:
    """Stdout has a line for each run; what is wrong stands beside it, once."""
    result = oncelake("follow", "done", "red", "refused", "--every", "50ms", "--for", "2s")

    assert "done: balanced · 1 batch · seq 2" in result.stdout
    assert result.stderr.splitlines().count("refused: no topic [a, b]. Next: make it") == 1
    assert "red: the books of batch 1 do not balance" in result.stderr
    assert result.exit_code == 1


def test_metrics_are_served_while_it_lasts() -> None:
    """A run can read them on loopback; afterwards nobody listens."""
    words = ("--every", "50ms", "--for", "1s", "--metrics-port", str(PORT))

    result = oncelake("follow", "scraped", *words)

    assert result.exit_code == 0, result.stderr
    assert len(SCRAPED) >= 1
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5)


def test_a_signal_ends_it_within_seconds() -> None:
    """SIGTERM asks the open run to end, and the exit code is the signal's."""
    before, began = signal.getsignal(signal.SIGTERM), time.monotonic()

    result = oncelake("follow", "stopped", "--json")

    assert result.exit_code == 143
    assert time.monotonic() - began < 5
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_unknown_stream_is_bad_usage() -> None:
    """Nothing is followed when a name is mistyped."""
    assert oncelake("follow", "doen").exit_code == 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("5s", 5), ("1.5m", 90), ("1h", 3600), ("2d", 172800)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """As people write them."""
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["5", "5x", "-5s", "0s", "", "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """With an example of one."""
    with pytest.raises(typer.BadParameter, match="for example 5s"):
        read_duration(text)
