"""Whether a test has a real Kafka, a real Spark, both, or neither: by its marks."""

from __future__ import annotations

from typing import Literal

import pytest
from pyspark.sql import SparkSession

from tests.support.topics_in_memory import Cluster


def kafka_for(request: pytest.FixtureRequest) -> str:
    """Return the address of a broker for a marked test, and of topics in memory for another."""
    if _is_marked(request, "kafka"):
        address: str = request.getfixturevalue("kafka_address")
        return address
    request.getfixturevalue("arrow_session")
    return Cluster().address


def spark_for(request: pytest.FixtureRequest) -> SparkSession:
    """Return Spark's session for a test that is marked so, and what stands for it for another."""
    session: SparkSession = request.getfixturevalue(
        "spark" if _is_marked(request, "spark") else "arrow_session"
    )
    return session


def reader_for(request: pytest.FixtureRequest) -> Literal["spark", "librdkafka"]:
    """Return what reads Kafka: with a broker and without Spark, the process itself."""
    has_broker, has_spark = (_is_marked(request, name) for name in ("kafka", "spark"))
    return "librdkafka" if has_broker and not has_spark else "spark"


def _is_marked(request: pytest.FixtureRequest, *names: str) -> bool:
    return any(request.node.get_closest_marker(name) for name in names)
