"""What goes wrong on three brokers, and its undoing."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.brokers.cluster import CLIENTS, NUMBERS, SMALL_DISK, ReplicatedCluster, await_true
from tests.brokers.runs import Runs


@dataclass(frozen=True, kw_only=True)
class Victims:
    """What faults are done to."""

    cluster: ReplicatedCluster
    runs: Runs
    dice: random.Random

    def any(self) -> int:
        """Choose a broker."""
        return self.dice.choice(NUMBERS)


Fault = Callable[[Victims], Iterator[None]]


def _kill_broker(on: Victims) -> Iterator[None]:
    number = on.any()
    on.cluster.signal(number, signal.SIGKILL)
    yield
    on.cluster.start(number)


def _kill_run(on: Victims) -> Iterator[None]:
    """Kill a run while it works: at once when there is one, else the next."""
    await_true(lambda: on.runs.process is not None, seconds=20)
    time.sleep(on.dice.uniform(0.5, 4))
    on.runs.kill()
    yield


def _cut(on: Victims, number: int, *others: int) -> Iterator[None]:
    on.cluster.cut(number, *others)
    yield
    on.cluster.join(number)


def _others(number: int) -> set[int]:
    return set(NUMBERS) - {number}


def _cut_off(on: Victims) -> Iterator[None]:
    """The clients still reach it; some still take it for the leader."""
    number = on.any()
    return _cut(on, number, *_others(number))


def _cut_controller_off(on: Victims) -> Iterator[None]:
    number = on.cluster.controller
    return _cut(on, number, *_others(number))


def _isolate(on: Victims) -> Iterator[None]:
    number = on.any()
    return _cut(on, number, CLIENTS, *_others(number))


def _slow(on: Victims) -> Iterator[None]:
    number = on.any()
    on.cluster.slow(number, "128kbit")
    yield
    on.cluster.join(number)


def _freeze(on: Victims) -> Iterator[None]:
    number = on.any()
    on.cluster.signal(number, signal.SIGSTOP)
    yield
    on.cluster.signal(number, signal.SIGCONT)


def _restart_all(on: Victims) -> Iterator[None]:
    """One after the other, each when all is replicated again."""
    for number in NUMBERS:
        on.cluster.stop(number)
        on.cluster.start(number)
        await_true(on.cluster.is_whole, seconds=40)
    yield


def _move_controller(on: Victims) -> Iterator[None]:
    number = on.cluster.controller
    on.cluster.stop(number)
    await_true(lambda: on.cluster.controller != number, seconds=20)
    yield
    on.cluster.start(number)


def _fill_disk(on: Victims) -> Iterator[None]:
    ballast = Path(on.cluster.folder) / str(SMALL_DISK) / "disk" / "ballast"
    assert ballast.parent.is_mount(), "this would fill the disk of the machine"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * (1 << 20))
    yield
    ballast.unlink()
    on.cluster.stop(SMALL_DISK)
    on.cluster.start(SMALL_DISK)


def _limit_clients(on: Victims) -> Iterator[None]:
    of_all, quotas = ("--entity-type", "clients", "--entity-default"), "consumer_byte_rate"
    limits = f"{quotas}=20000,producer_byte_rate=20000,request_percentage=5"
    on.cluster.configure("--alter", "--add-config", limits, *of_all)
    yield
    names = f"{quotas},producer_byte_rate,request_percentage"
    on.cluster.configure("--alter", "--delete-config", names, *of_all)


FAULTS: Mapping[str, Fault] = {
    "kill a broker": _kill_broker,
    "kill a run": _kill_run,
    "cut a broker off from the others": _cut_off,
    "cut the controller off from the others": _cut_controller_off,
    "cut two brokers apart": lambda on: _cut(on, *on.dice.sample(NUMBERS, 2)),
    "cut a broker off from the clients": lambda on: _cut(on, on.any(), CLIENTS),
    "isolate a broker": _isolate,
    "slow a broker to 128 kbit/s": _slow,
    "freeze a broker": _freeze,
    "restart all brokers": _restart_all,
    "move the controller": _move_controller,
    "fill a broker's disk": _fill_disk,
    "limit the clients": _limit_clients,
}
# How often each is in the deck that is dealt again and again.
_TIMES = {"kill a broker": 4, "kill a run": 4, "cut a broker off from the others": 2}


def deck_of(dice: random.Random) -> Iterator[str]:
    """Yield names of faults for ever, each of them before any comes more often than it should."""
    while True:
        deck = [name for name in FAULTS for _ in range(_TIMES.get(name, 1))]
        dice.shuffle(deck)
        yield from deck


@contextmanager
def wrong(name: str, on: Victims) -> Iterator[None]:
    """Let something be wrong while the block runs."""
    undo = FAULTS[name](on)
    next(undo)
    yield
    next(undo, None)
