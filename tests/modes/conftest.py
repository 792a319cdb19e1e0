"""What the tests of every write mode share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.modes.scenario import tell
from tests.world import World, settings_in


@pytest.fixture(scope="module")
def story(
    tmp_path_factory: pytest.TempPathFactory,
    kafka_address: str,
    java_options: str,
    spark: SparkSession,
) -> Iterator[World]:
    """One topic that all of these tests read, each into lakes of its own."""
    folder = tmp_path_factory.mktemp("story")
    settings = settings_in(folder, kafka_address, spark_java_options=java_options)
    with World.made(settings, spark) as made:
        tell(made)
        yield made
    shutil.rmtree(folder, ignore_errors=True)
