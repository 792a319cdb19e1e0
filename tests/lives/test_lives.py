"""A short life of each kind of stream; ``make lives`` lives long ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lives.life import Ground, live
from tests.lives.streams import KINDS, Kind
from tests.lives.subject import Chronicle
from tests.support.long import IS_LONG, twins

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

LENGTH = 50 if IS_LONG else 6
# What dies in the short life of this number does so by an exception.
FIRST = 6606
LIVES = [pytest.param(nth, kind, id=kind.name) for nth, kind in enumerate(KINDS)]


@pytest.mark.parametrize(("nth", "kind"), [LIVES[0], *twins(*LIVES[1:])])
def test_no_step_of_a_random_life_breaks_a_promise(
    nth: int, kind: Kind, kafka_address: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever is done to a stream, in any order, rows, books and words are the oracle's."""
    ground = Ground(kafka=kafka_address, spark=spark, folder=tmp_path)

    chronicle = Chronicle(tell=print)
    live(kind, ground, chronicle, length=LENGTH, number=FIRST + nth)

    # Another version of hypothesis draws another life.
    done = {step.operation for step in chronicle.steps}
    assert len(done) > LENGTH // 3
