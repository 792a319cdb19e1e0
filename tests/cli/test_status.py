"""``oncelake status --watch``: what it shows again and again, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.operations.status.status import StreamStatus
from tests.cli.shell import oncelake
from tests.support.world import ROOT


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--watch", "0.1s", "orders"), id="seconds"),
        pytest.param(("--watch", "orders"), id="its own seconds"),
        pytest.param(("orders", "--watch"), id="at the end"),
    ],
)
def test_each_look_is_a_line_of_json_until_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """SIGTERM ends it with its own code; a number of seconds is optional."""
    lags = iter(range(100))

    def read_status(reader: object, declared: DeclaredStream) -> StreamStatus:
        lag = next(lags)
        if lag == 2 or "0.1s" not in words:
            os.kill(os.getpid(), signal.SIGTERM)
        return StreamStatus(stream=declared.name, table="t", lag=lag)

    monkeypatch.setattr(
        "oncelake.ingestion.operations.status.status.StatusReader.read_status", read_status
    )

    result = oncelake("status", "--json", *words)

    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["lag"] for each in lines] == list(range(3 if "0.1s" in words else 1))
    assert result.exit_code == 143


def test_on_a_terminal_it_refreshes_in_place_and_ends_with_ctrl_c(home: Path) -> None:
    """The screen is cleared each time, and Ctrl-C leaves no traceback."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "ingestion", "status", "--watch", "0.2s"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ONCELAKE_KAFKA": "127.0.0.1:1"}
    environment |= {"ONCELAKE_KAFKA_TIMEOUT_SECONDS": "0.2", "TERM": "xterm", "COLUMNS": "150"}
    shown = bytearray()

    def read() -> None:
        while chunk := _read(leader):
            shown.extend(chunk)

    with subprocess.Popen(
        command, cwd=home, env=environment, stdout=follower, stderr=follower
    ) as child:
        os.close(follower)
        reader = threading.Thread(target=read)
        reader.start()
        deadline = time.monotonic() + 30
        while shown.count(b"headroom") < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        code = child.wait(20)
        reader.join(10)
    os.close(leader)

    assert shown.count(b"\x1b[2J") >= 2, "the screen is cleared before each look"
    assert b"Traceback" not in shown
    assert code == 130


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 4096)
    except OSError:
        # Linux ends a terminal that nobody holds any more like this.
        return b""
