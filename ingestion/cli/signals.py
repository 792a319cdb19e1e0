"""Signals: a run that is asked to stop ends within seconds, and tells what it has done.

The first signal asks: the run stops its query and reports. If it is not done after a grace, or
at a second signal, it is cut off. Either way an open batch is as if never begun.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_GRACE_SECONDS = 5.0


class Interrupt:
    """What became of SIGINT and SIGTERM."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.exit_code = 0
        self._is_patient = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals while the block runs; outside ``patiently`` they cut it off at once.

        Raises:
            KeyboardInterrupt: a signal came.
        """
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, self._ask),
            signal.SIGTERM: signal.signal(signal.SIGTERM, self._ask),
            signal.SIGALRM: signal.signal(signal.SIGALRM, self._insist),
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """Give the block time to look at ``stop`` and end by itself.

        Raises:
            KeyboardInterrupt: it did not, in time.
        """
        self._is_patient = True
        try:
            yield
        finally:
            self._is_patient = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        asked_before = self.stop.is_set()
        self.exit_code = 128 + number
        self.stop.set()
        if asked_before or not self._is_patient:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)

    def _insist(self, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt
