"""Schedules by the thousand: the rules drawn by seeded dice, the oracle asked after each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import get_args

from tests.model.oracle import Oracle, ViolationError
from tests.model.process_rules import Rule
from tests.model.rules import RULES
from tests.model.verdict import judge, settle
from tests.model.world import Locking, World

SHORTEST, LONGEST = 10, 40


@dataclass(kw_only=True, slots=True)
class Found:
    """A schedule that broke a promise.

    Attributes:
        seed: Makes the same schedule again.
        steps: How many rules were applied until then; one fewer is sound.
        evidence: What was broken.
        history: The rules, one a line.
    """

    seed: int
    steps: int
    evidence: str
    history: list[str] = field(default_factory=list)


def explore(
    seed: int, faults: Counter[str], *, upto: int = LONGEST, is_told: bool = False
) -> tuple[int, Found | None]:
    """Run one schedule.

    Args:
        seed: Determines it whole.
        faults: Counts, by kind, the schedules that a fault occurred in.
        upto: Stop its faults after so many rules.
        is_told: Whether to write its history down, which takes as long as running it.

    Returns:
        How many rules were applied, and the counterexample, if it is one.
    """
    dice = Random(seed)
    world = World(
        partitions=dice.randint(1, 3),
        locking=dice.choice(get_args(Locking)),
        follows=dice.random() < 0.5,
    )
    oracle = Oracle(world)
    history: list[str] = []
    steps = 0
    try:
        for rule in _drawn(dice)[:upto]:
            if rule(world, dice):
                steps += 1
                if is_told:
                    history.append(_describe(rule, world))
                apply_laws(world, oracle)
        history.append("the faults stop")
        settle(world, oracle)
    except ViolationError as violation:
        return steps, Found(seed=seed, steps=steps, evidence=str(violation), history=history)
    finally:
        faults.update(world.taken.keys())
        for process in world.processes:
            process.kill()
    return steps, None


def shortest(seed: int) -> Found:
    """Find the shortest beginning of a schedule that breaks a promise once the faults stop."""
    tried = (explore(seed, Counter(), upto=n, is_told=True)[1] for n in range(LONGEST + 1))
    return next(found for found in tried if found)


def _drawn(dice: Random) -> list[Rule]:
    rules, weights = zip(*RULES, strict=True)
    return dice.choices(rules, weights, k=dice.randint(SHORTEST, LONGEST))


def apply_laws(world: World, oracle: Oracle) -> None:
    """Ask the oracle, and judge the processes that have ended."""
    oracle.look()
    for process in world.sweep():
        judge(world, oracle, process)


def _describe(rule: Rule, world: World) -> str:
    at = ", ".join(f"{process.name} before: {process.at}" for process in world.processes)
    return f"{rule.__name__}  [{at}]"
