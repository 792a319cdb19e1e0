"""Whether a test has a real Kafka and a real Spark, or neither: by its marks."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.support.topics_in_memory import Cluster


def is_marked(request: pytest.FixtureRequest) -> bool:
    """Tell whether a test, or a module, is to have a real Kafka and a real Spark."""
    return any(request.node.get_closest_marker(name) for name in ("spark", "kafka"))


def kafka_for(request: pytest.FixtureRequest) -> str:
    """Return the address of a broker for a marked test, and of topics in memory for another."""
    if is_marked(request):
        address: str = request.getfixturevalue("kafka_address")
        return address
    request.getfixturevalue("arrow_session")
    return Cluster().address


def spark_for(request: pytest.FixtureRequest) -> SparkSession:
    """Return Spark's session for a marked test, and what stands for it for another."""
    session: SparkSession = request.getfixturevalue(
        "spark" if is_marked(request) else "arrow_session"
    )
    return session
