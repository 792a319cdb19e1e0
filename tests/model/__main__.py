"""Schedules by the million, on every core: ``python -m tests.model SCHEDULES=1000000 SEED=1``.

Each schedule has a seed of its own, counted up from ``SEED``, so that runs with other seeds add up,
and one schedule is told again by ``python -m tests.model SCHEDULES=1 SEED=<its seed>``.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from contextlib import ExitStack

from tests.model.explore import explore, shortest
from tests.model.seams import simulated

CHUNK = 250
REPORT_EVERY_SECONDS = 30
_open = ExitStack()


def main(words: list[str]) -> int:
    """Explore, and tell what was found; 1 when a promise was broken."""
    asked = {**os.environ, **dict(word.split("=", 1) for word in words)}
    schedules, seed = int(asked.get("SCHEDULES", "100000")), int(asked.get("SEED", "1"))
    began, told = time.monotonic(), time.monotonic()
    done, steps, faults = 0, 0, Counter[str]()
    chunks = [
        range(start, min(start + CHUNK, seed + schedules))
        for start in range(seed, seed + schedules, CHUNK)
    ]
    with multiprocessing.Pool(initializer=_begin) as pool:
        for some, some_steps, some_faults, broken in pool.imap_unordered(_explore, chunks):
            done, steps = done + some, steps + some_steps
            faults += some_faults
            if broken:
                pool.terminate()
                return _report_broken(min(broken))
            if time.monotonic() - told > REPORT_EVERY_SECONDS:
                told = time.monotonic()
                print(f"{done:,} of {schedules:,} schedules hold", file=sys.stderr, flush=True)
    _report(seed, done, steps, time.monotonic() - began, faults)
    return 0


def _begin() -> None:
    _open.enter_context(simulated())
    # Worlds are full of circles: collecting after each chunk costs half of collecting within.
    gc.disable()


def _explore(seeds: range) -> tuple[int, int, Counter[str], list[int]]:
    faults: Counter[str] = Counter()
    results = [(seed, *explore(seed, faults)) for seed in seeds]
    gc.collect()
    broken = [seed for seed, _, found in results if found]
    return len(seeds), sum(steps for _, steps, _ in results), faults, broken


def _report_broken(seed: int) -> int:
    with simulated():
        found = shortest(seed)
    print("\n".join(f"{n:3} {line}" for n, line in enumerate(found.history, 1)))
    print(f"\nseed {seed} breaks a promise after {found.steps} steps: {found.evidence}")
    return 1


def _report(seed: int, schedules: int, steps: int, seconds: float, faults: Counter[str]) -> None:
    print(f"seeds {seed} to {seed + schedules - 1}: {schedules:,} schedules of {steps:,} steps")
    print(f"hold, in {seconds:,.0f} s ({schedules / seconds:,.0f} schedules a second).")
    print("Schedules that contained:")
    for fault, count in sorted(faults.items()):
        print(f"  {fault:45} {count:>9,}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
