"""What the tests of every write mode share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.modes.scenario import IS_WHOLE, RECORDS, produce_records
from tests.support.places import kafka_for, spark_for
from tests.support.world import World, settings_in

collect_ignore = [] if IS_WHOLE else ["test_mode_kills.py"]


@pytest.fixture(scope="module")
def sources(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[int], World]]:
    """Topics by how many records they hold, produced when first asked for."""
    folder = tmp_path_factory.mktemp("source")
    settings = settings_in(folder, kafka_for(request))
    with ExitStack() as topics:

        @cache
        def topic_of(records: int) -> World:
            world = topics.enter_context(World.made(settings, spark_for(request)))
            produce_records(world, records=records)
            return world

        yield topic_of
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def source(sources: Callable[[int], World]) -> World:
    """One topic that many of these tests read, each into lakes of its own."""
    return sources(RECORDS)
