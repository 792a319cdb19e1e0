"""Processes that can be stopped, killed and left behind at any step, one scheduler, no threads.

A process is the product's own code in a greenlet. Whatever it asks of the world outside (Kafka,
Delta, the lock) calls ``step`` first, which hands control back to the schedule; there the process
may go on, see its call fail, or die. A dead process has no effect any more, not even by its
``finally``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet


class Crash(BaseException):
    """The process is killed: nothing may catch it, as nothing catches SIGKILL."""


class CallFailedError(Exception):
    """What the process asked for failed, or succeeded without an answer."""


class Process(greenlet):
    """One run, or one command of a person.

    Attributes:
        name: Names it in a schedule.
        at: The step that it will do next.
        outcome: What it returned or raised, once it has ended.
        is_dead: Whether it was killed.
    """

    def __init__(self, name: str, body: Callable[[], Any]) -> None:
        """Take what it does; it begins with the first ``advance``."""
        super().__init__(self._live)
        self.name = name
        self.at = "start"
        self.outcome: Any = None
        self.is_dead = False
        self._body = body

    def _live(self) -> None:
        try:
            self.outcome = self._body()
        except (Exception, Crash) as error:  # noqa: BLE001 (the schedule judges what it died of)
            self.outcome = error

    @property
    def has_ended(self) -> bool:
        """Tell whether it returned, raised or was killed."""
        return self.dead

    def advance(self, steps: int = 1) -> None:
        """Let it do some steps, or fewer when it ends before."""
        for _ in range(steps):
            if self.dead:
                return
            self.switch()

    def finish(self) -> None:
        """Let it go on to its end."""
        while not self.dead:
            self.switch()

    def kill(self) -> None:
        """Kill it where it is."""
        self.is_dead = True
        if not self.dead and self:
            self.throw(Crash())

    def fail(self) -> None:
        """Let the call that it waits for raise, whether or not its effect is there."""
        if self and not self.dead:
            self.throw(CallFailedError(f"at {self.at}"))


def step(point: str) -> None:
    """Let others act before what is named ``point`` happens."""
    me = getcurrent()
    if isinstance(me, Process):
        if me.is_dead:
            raise Crash
        me.at = point
        me.parent.switch()
        if me.is_dead:
            raise Crash


def is_dead() -> bool:
    """Tell whether the process that asks was killed."""
    me = getcurrent()
    return isinstance(me, Process) and me.is_dead
