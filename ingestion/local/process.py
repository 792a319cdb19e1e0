"""A process that outlives the Python that started it, or that dies with it: nothing between.

Neither kind is a child of ours, so neither becomes a zombie of ours, and neither holds our
stdin, stdout or stderr open. The shell writes the pid down before we could be killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from oncelake.ingestion.storage.processes import ProcessId

# $1 = pid file, $2 = log, the rest = the command.
_DETACHED = """
pid_file=$1; log=$2; shift 2
"$@" </dev/null >>"$log" 2>&1 &
echo $! >"$pid_file"
"""

# Standard input is a pipe whose other end only the caller holds: it ends when the caller does.
_TIED = """
pid_file=$1; log=$2; shift 2
exec 3<&0 >>"$log" 2>&1
{
  "$@" </dev/null 3<&- &
  child=$!
  echo $child >"$pid_file.new" && mv "$pid_file.new" "$pid_file"
  { read -r _ <&3; kill -TERM $child; sleep 5; kill -KILL $child; } &
  watch=$!
  exec 3<&-
  wait $child
  kill $watch
} &
tries=0
until [ -s "$pid_file" ] || [ $((tries += 1)) -gt 500 ]; do sleep 0.02; done
"""


def run_and_capture(
    command: Sequence[str], *, seconds: float | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and keep what it prints; its exit code is the caller's to judge.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=seconds, **more
    )


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold a lock for which other processes wait."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_locked(path: Path) -> bool:
    """Tell whether another process holds the lock of a file."""
    with path.open("w") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    return True


def recorded_process(pid_file: Path, *, command_ends_with: str) -> ProcessId | None:
    """Return the living process that a pid file names, if it runs this very command.

    The end of its command line tells it apart from another process with a recycled pid.
    """
    try:
        process = psutil.Process(int(pid_file.read_text()))
        is_meant = " ".join(process.cmdline()).endswith(command_ends_with)
        return ProcessId.of(process.pid) if is_meant else None
    except (FileNotFoundError, ValueError, psutil.Error):
        return None


def stop(process: ProcessId, *, grace_seconds: float) -> None:
    """End a process, kill it after ``grace_seconds``, and see it gone."""
    for how, patience_seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0)):
        if not process.is_alive():
            return
        with suppress(ProcessLookupError):
            os.kill(process.pid, how)
        deadline = time.monotonic() + patience_seconds
        while process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)


def launch(command: Sequence[str], *, pid_file: Path, log: Path, tied: bool) -> None:
    """Start a command in a session of its own, its output appended to ``log``.

    Args:
        pid_file: Gets its pid before this returns.
        tied: End it when this process ends, for whatever reason, SIGKILL included.
    """
    pid_file.unlink(missing_ok=True)
    script = ["sh", "-c", _TIED if tied else _DETACHED, "sh", str(pid_file), str(log), *command]
    ours: int | None = None
    theirs: int = subprocess.DEVNULL
    if tied:
        # Never closed: that the system closes it for us is the signal.
        theirs, ours = os.pipe()
    try:
        subprocess.run(script, stdin=theirs, start_new_session=True, check=True)
    finally:
        if ours is not None:
            os.close(theirs)
