"""What ``oncelake doctor`` tells of a catalog."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from pyiceberg.catalog.rest import Capability, RestCatalog

from oncelake.ingestion.declaration.files.loader import load_streams
from oncelake.ingestion.errors import DONE, UNREACHABLE, WRONG
from oncelake.ingestion.operations.doctor.examine import examine
from oncelake.ingestion.operations.doctor.findings import Finding
from tests.support.catalogs import TriedCatalog, only_catalogs
from tests.support.world import World, row


def findings_of(world: World) -> list[Finding]:
    """Examine the stream, and choose what is about it."""
    world.write_declaration()
    streams = load_streams(world.settings.streams)
    found = examine(world.settings, streams, are_all=False, tell=lambda text: None)
    return [each for each in found if each.about == world.name and "sensor" not in each.what]


def told(world: World) -> list[tuple[str, int]]:
    """Return what is told of the catalog, without the names of test and catalog."""
    found = [each for each in findings_of(world) if "Iceberg catalog" in each.what]
    return [(re.sub(r"oncelake_\w+|tests", "X", each.what), each.exit_code) for each in found]


@pytest.fixture
def unmade(world: World, catalog: TriedCatalog) -> Iterator[World]:
    """A stream whose namespace is not there."""
    beside = replace(catalog, namespace=f"oncelake_{world.name}")
    world.declare(sink=beside.sink("orders"))
    yield world
    beside.clear()


def test_a_namespace_that_is_not_there_is_a_note(unmade: World) -> None:
    """The first run makes it, and a doctor has nothing to tell any more."""
    new = "the namespace X is not in Iceberg catalog X yet; the first run makes it"
    assert told(unmade) == [(new, DONE)]
    unmade.send(row(1, "a"))

    unmade.run()

    assert told(unmade) == []


@only_catalogs
def test_a_catalog_that_is_away_is_one_finding(world: World, catalog: TriedCatalog) -> None:
    """However many parts of the examination meet it."""
    world.send(row(1, "a"))
    world.run()

    with catalog.away():
        found = findings_of(world)

    assert [each.exit_code for each in found] == [UNREACHABLE]
    assert found[0].what == "its Iceberg catalog tests does not answer as it should"
    assert "secret" not in json.dumps([str(each) for each in found])


@only_catalogs
def test_a_catalog_that_lets_nobody_in_is_one_finding(world: World, catalog: TriedCatalog) -> None:
    """It says which rights are missing."""
    if catalog.properties["type"] != "rest":
        pytest.skip("another kind of catalog has errors of its own for that")
    world.send(row(1, "a"))
    world.run()
    assert catalog.proxy is not None

    with catalog.proxy.fault("denied", "namespaces"):
        found = findings_of(world)

    assert [each.exit_code for each in found] == [WRONG]
    assert "does not let the login see the tables" in found[0].what
    assert "docs/catalogs.md" in found[0].command


@only_catalogs
@pytest.mark.parametrize(
    ("missing", "what", "exit_code"),
    [
        (Capability.V1_UPDATE_TABLE, "takes no commits", WRONG),
        (Capability.V1_RENAME_TABLE, "renames no table", DONE),
        (Capability.V1_CREATE_NAMESPACE, "lets no client make one", WRONG),
    ],
    ids=["commits", "renames", "namespaces"],
)
def test_what_a_catalog_does_not_do_is_told(
    unmade: World, catalog: TriedCatalog, missing: Capability, what: str, exit_code: int
) -> None:
    """By what it says of itself; a run is refused with a remedy."""
    if catalog.properties["type"] != "rest":
        pytest.skip("only REST says what it does")
    with without(missing):
        found = [each for each in told(unmade) if what in each[0]]

    assert [code for _, code in found] == [exit_code]


@contextmanager
def without(missing: Capability) -> Iterator[None]:
    """Let catalogs say that they do not do something."""
    fetch = RestCatalog._fetch_config

    def fetch_without(catalog: RestCatalog) -> None:
        fetch(catalog)
        catalog._supported_endpoints = catalog._supported_endpoints - {missing}

    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(RestCatalog, "_fetch_config", fetch_without)
        yield
