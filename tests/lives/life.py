"""A random life of a stream: drawn step by step by hypothesis, which shrinks what breaks a promise.

The steps of a life say all that was drawn: played again, they break the same promise.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine
from hypothesis.internal.conjecture.providers import HypothesisProvider
from pyspark.sql import SparkSession

from tests.lives.harm import live_through_harm
from tests.lives.step import STEPS, Step
from tests.lives.streams import Kind
from tests.lives.subject import BrokenPromiseError, Chronicle, Subject
from tests.support.world import World, settings_in


@dataclass(frozen=True, kw_only=True, slots=True)
class Ground:
    """What all lives have in common.

    Attributes:
        folder: Gets the lake of each life; one that has broken a promise is kept.
    """

    kafka: str
    spark: SparkSession
    folder: Path


def play(kind: Kind, steps: Iterable[Step], ground: Ground, chronicle: Chronicle) -> None:
    """Live a life from the beginning.

    Raises:
        BrokenPromiseError: a command has broken one.
    """
    with _born(kind, ground, chronicle) as subject:
        for step in steps:
            began = time.monotonic()
            subject.begin(step)
            if step.operation == "harm":
                live_through_harm(subject)
            else:
                getattr(subject, step.operation)()
            subject.look()
            seconds = time.monotonic() - began
            chronicle.tell(f"{len(chronicle.steps)}: {chronicle.step} ({seconds:.1f} s)")


def live(
    kind: Kind,
    ground: Ground,
    chronicle: Chronicle,
    *,
    length: int,
    number: int,
    shrink_seconds: int = 300,
    known: Collection[str] = (),
) -> None:
    """Draw a life by the seed ``number``, and play it; where it breaks a promise, with less.

    A promise that is ``known`` to be broken is not worth the time.

    Raises:
        BrokenPromiseError: a command has broken one, which the chronicle names.
    """

    @seed(number)
    @settings(
        # The first of two examples is the least one, which has no step.
        max_examples=2,
        phases=[Phase.generate, Phase.shrink],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def draw(data: st.DataObject) -> None:
        many = data.draw(st.sampled_from([0, length]))
        attempt = Chronicle() if chronicle.steps else chronicle
        try:
            play(kind, (data.draw(STEPS) for _ in range(many)), ground, attempt)
        except BrokenPromiseError as error:
            promise = str(error.args[0])
            if attempt is chronicle:
                evidence = "\n".join(map(str, error.args))
                chronicle.tell(f"VIOLATION in step {len(chronicle.steps)}: {chronicle.step}")
                chronicle.tell(evidence)
                chronicle.promise = promise
                engine.MAX_SHRINKING_SECONDS = 0 if promise in known else shrink_seconds
            elif promise != chronicle.promise:
                # Another one is not what is shrunk here.
                reject()
            chronicle.fewest = attempt.steps
            chronicle.tell(f"broken by {len(attempt.steps)} steps")
            raise

    # Constants that hypothesis finds in modules, as far as they are loaded by then, are no dice.
    no_constants = patch.object(HypothesisProvider, "_maybe_draw_constant", return_value=None)
    with no_constants, patch.object(engine, "MAX_SHRINKING_SECONDS", 0):
        draw()


@contextmanager
def _born(kind: Kind, ground: Ground, chronicle: Chronicle) -> Iterator[Subject]:
    """Give a stream a topic and a lake of its own, where no other project's settings are found."""
    folder = Path(tempfile.mkdtemp(dir=ground.folder))
    (folder / "dagster.yaml").touch()
    with World.made(settings_in(folder, ground.kafka), ground.spark) as world:
        world.declare(name=kind.name)
        with chdir(folder), patch.dict(os.environ, world.environment()):
            yield Subject(
                kind=kind,
                world=world,
                folder=folder,
                chronicle=chronicle,
                clock=int(time.time()) - 3_600,
            )
    shutil.rmtree(folder)
