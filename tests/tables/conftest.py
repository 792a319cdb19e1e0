"""A stream whose rows are kept by the sink that a test names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from oncelake.ingestion.settings import Settings
from tests.support.places import kafka_for, reader_for, spark_for
from tests.support.world import World, settings_in


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path, sink: str) -> Settings:
    """A lake of the test's own, and where PostgreSQL is."""
    more: dict[str, Any] = {}
    if sink == "postgres":
        more["postgres"] = SecretStr(request.getfixturevalue("postgres_address"))
    return settings_in(tmp_path, kafka_for(request), reader=reader_for(request), **more)


@pytest.fixture
def world(settings: Settings, request: pytest.FixtureRequest, sink: str) -> Iterator[World]:
    """A topic of the test's own, and a stream of one sink that reads it."""
    with World.made(settings, spark_for(request)) as made:
        made.declare(sink=sink)
        yield made
