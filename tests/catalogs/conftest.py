"""A stream whose rows are in a table of each catalog that is tried."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from oncelake.ingestion.settings import Settings
from tests.support.catalogs import TRIED, TriedCatalog, served
from tests.support.places import spark_for
from tests.support.world import World


@pytest.fixture(scope="session", params=TRIED)
def catalog(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TriedCatalog]:
    """One server of each kind a session."""
    with served(request.param, tmp_path_factory.mktemp(request.param), request) as tried:
        yield tried


@pytest.fixture(autouse=True)
def configured(catalog: TriedCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pyiceberg's configuration be that of the catalog, and nothing of this machine's."""
    for name in [name for name in os.environ if name.upper().startswith("PYICEBERG_")]:
        monkeypatch.delenv(name)
    for name, value in catalog.environment().items():
        monkeypatch.setenv(name, value)
    if catalog.kind == "glue":
        # Its client asks up to ten times, and waits up to twenty seconds in between.
        monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)


@pytest.fixture
def world(
    settings: Settings, request: pytest.FixtureRequest, catalog: TriedCatalog
) -> Iterator[World]:
    """A topic of the test's own, and a stream that writes it to the catalog."""
    with World.made(settings, spark_for(request)) as made:
        made.declare(sink=catalog.sink(made.topic))
        yield made
