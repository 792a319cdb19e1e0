"""A process that outlives the Python that started it, or that dies with it: nothing between.

Neither kind is a child of ours, so neither becomes a zombie of ours, and neither holds our
stdin, stdout or stderr open. The shell writes the pid down before we could be killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process id, and the command line by which its process is known again.

    Attributes:
        pid: The process id, which the system may give to another process one day.
        command_ends_with: How the command line of the process that is meant ends.
    """

    pid: int
    command_ends_with: str

    def is_alive(self) -> bool:
        """Tell whether this pid still runs that command; a zombie does not."""
        return _command_line(self.pid).endswith(self.command_ends_with)

    def stop(self, *, grace_seconds: float) -> None:
        """Ask the process to end, kill it after ``grace_seconds``, and see it gone."""
        for how, patience in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0)):
            if not self.is_alive():
                return
            os.kill(self.pid, how)
            self._await_end(patience)

    def _await_end(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)


def launch(command: Sequence[str], *, pid_file: Path, log: Path, tied: bool) -> None:
    """Start a command in a session of its own, its output appended to ``log``.

    Args:
        command: Program and arguments.
        pid_file: Gets its pid before this returns.
        log: Gets its output.
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


def _command_line(pid: int) -> str:
    """Return a process's arguments with blanks between; nothing when it is gone or a zombie."""
    if Path("/proc/self").exists():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return os.fsdecode(b" ".join(arguments))
    listed = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout.rstrip("\n")
