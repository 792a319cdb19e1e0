"""Signals: a run that is asked to stop ends within seconds, and reports what it has done.

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
    """Which of SIGINT and SIGTERM came, if any."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.exit_code = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals while the block runs, which looks at ``stop`` and ends by itself.

        Raises:
            KeyboardInterrupt: it did not in time, or was asked a second time.
        """
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, self._ask),
            signal.SIGTERM: signal.signal(signal.SIGTERM, self._ask),
            signal.SIGALRM: signal.signal(signal.SIGALRM, self._insist),
        }
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        asked_before = self.stop.is_set()
        self.exit_code = 128 + number
        self.stop.set()
        if asked_before:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, _GRACE_SECONDS)

    def _insist(self, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt
