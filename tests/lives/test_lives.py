"""A short life of each kind of stream; ``make lives`` lives long ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lives.life import Ground, live
from tests.lives.streams import KINDS, Kind
from tests.lives.subject import Chronicle
from tests.support.long import IS_LONG

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

STEPS = 50 if IS_LONG else 8


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_step_of_a_random_life_breaks_a_promise(
    kind: Kind, kafka_address: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever is done to a stream, in any order, rows, books and words are the oracle's."""
    ground = Ground(kafka=kafka_address, spark=spark, folder=tmp_path)

    live(kind, ground, Chronicle(tell=print), length=STEPS, number=1)
