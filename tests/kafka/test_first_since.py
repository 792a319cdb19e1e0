"""Where a moment lies in a log: a broker's answer is not always the one that it seems to be."""

from __future__ import annotations

import datetime as dt

import pytest

from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import TopicPartition
from tests.support.world import World


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("deleted", range(5))
def test_records_that_were_deleted_alone_hide_no_later_ones(world: World, deleted: int) -> None:
    """A broker says that there is none since a moment whose first record was deleted."""
    kafka, at = Kafka(world.settings), TopicPartition(world.topic, 0)
    for second in range(1, 6):
        world.producer.produce(world.topic, b"x", partition=0, timestamp=1_000 * second)
    assert world.producer.flush(30) == 0
    if deleted:
        world.forget_before(0, deleted)

    since = [
        kafka.first_since([at], dt.datetime.fromtimestamp(second, dt.UTC))[at]
        for second in range(7)
    ]

    assert since == [max(offset, deleted) for offset in (0, 0, 1, 2, 3, 4)] + [5]
