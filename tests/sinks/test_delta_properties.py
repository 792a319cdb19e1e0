"""A declaration sets properties of a Delta table: one's own, and such as change nothing here."""

from __future__ import annotations

import re

import pytest
from deltalake import DeltaTable
from pydantic import ValidationError

from oncelake.ingestion.declaration.sinks import DeltaSink
from tests.support.proof import find_problems
from tests.support.world import World

OWN = {"team": "sales", "pii": "none; since 2024", "delta.checkpointInterval": "5"}


@pytest.fixture
def sink() -> str:
    """The one that has them."""
    return "delta"


def test_a_table_has_its_properties_from_its_first_commit_on(world: World) -> None:
    """The next run sets those that are declared otherwise, and one of somebody else stays."""
    world.declare(sink={"delta": {"properties": OWN}})
    world.send({"id": 1})
    world.run()
    found = DeltaTable(str(world.paths.data))
    assert OWN.items() <= found.metadata().configuration.items()
    found.alter.set_table_properties({"theirs": "x"}, raise_if_not_exists=False)
    world.declare(sink={"delta": {"properties": {**OWN, "team": "retail"}}})
    world.send({"id": 2})
    world.run()
    retail = DeltaTable(str(world.paths.data)).metadata().configuration
    assert {**OWN, "team": "retail", "theirs": "x"}.items() <= retail.items()

    other = {**OWN, "team": "finance", "delta.isolationLevel": "Serializable"}
    world.declare(sink={"delta": {"properties": other, "change_data_feed": True}})
    world.send({"id": 2})
    world.run()

    kept = DeltaTable(str(world.paths.data)).metadata().configuration
    assert {**other, "theirs": "x", "delta.enableChangeDataFeed": "true"}.items() <= kept.items()
    version = world.paths.table.log().newest_version
    world.run()
    assert world.paths.table.log().newest_version == version
    assert find_problems(world) == ()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("delta.appendOnly", "true", "of Delta's own, a declaration sets delta.autoOptimize"),
        ("DELTA.appendOnly", "true", "of Delta's own, a declaration sets"),
        ("oncelake.x", "y", "of Delta's own, a declaration sets"),
        ("delta.columnMapping.mode", "name", "of Delta's own, a declaration sets"),
        ("delta.checkpointInterval", "0", "write a value like [1-9]"),
        ("delta.enableChangeDataFeed", "true", "write `change_data_feed: true`"),
        ("delta.enableDeletionVectors", "true", "write `deletion_vectors: true`, beside `sink`"),
        ("delta.logRetentionDuration", "interval 1 days", "`rewind_window_days` sets it"),
        ("team", 5, "write a text in quotes, such as '20'"),
    ],
)
def test_a_property_that_would_change_more_is_refused(name: str, value: object, says: str) -> None:
    """With what to write instead."""
    with pytest.raises(ValidationError, match=re.escape(says)):
        DeltaSink.model_validate({"properties": {name: value}})
