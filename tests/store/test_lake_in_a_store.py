"""A lake in an object store: the same promise as in a folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ingestion.settings import Settings
from tests.support.proof import find_problems
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def stored(settings: Settings, spark: SparkSession, bucket: str) -> Iterator[World]:
    """A stream whose lake is in a store."""
    with World.made(settings.model_copy(update={"lake": bucket}), spark) as made:
        yield made


def test_a_stream_lands_in_a_store(stored: World) -> None:
    """Runs load, update and delete rows there, and the proof holds."""
    stored.declare(apply_as_deletes="name = 'gone'")
    stored.send(row(1, "a"), row(2, "b"), b"bad", row(3, "c"))
    first = stored.run()
    stored.send(row(2, "b2"), row(3, "gone"), row(4, "d"))
    second = stored.run()
    third = stored.run()

    assert first.is_balanced
    assert second.is_balanced
    assert third.batches == ()
    assert stored.rows() == [row(1, "a"), row(2, "b2"), row(4, "d")]
    assert len(stored.quarantined()) == 1
    assert find_problems(stored) == ()
