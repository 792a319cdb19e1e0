"""A cluster on loopback that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.spark_cluster import SparkCluster


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers; they die with the session."""
    with SparkCluster.started(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
