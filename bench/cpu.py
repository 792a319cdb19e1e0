"""CPU time of a process and its children, from /proc: the JVM is a child of the driver."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds, user and system, that a process and its children have used."""
    own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # A child belongs to the thread that started it: that of Python workers is none of the first.
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return (int(own[11]) + int(own[12])) / _TICKS_PER_SECOND + sum(
        cpu_seconds(int(child)) for each in children for child in each.read_text().split()
    )
