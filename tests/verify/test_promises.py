"""What holds of rows themselves is noticed where engine and proof make one mistake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import PropertyMock, patch

import pytest

from oncelake.ingestion.declaration.fields import Declaration
from oncelake.ingestion.verify.fold import classify
from oncelake.ingestion.verify.verify import verify
from tests.operations.test_routes import Shop
from tests.support.world import World, row

COLUMNS = "id BIGINT NOT NULL, state STRING"
TABLES = {"open": {"schema": COLUMNS}, "closed": {"schema": COLUMNS}}


def changed(op: str, state: str) -> dict[str, Any]:
    """Return the envelope of row 1."""
    return {"op": op, "before": None, "after": {"id": 1, "state": state}}


@contextmanager
def nothing_leaves() -> Iterator[None]:
    """Let engine and proof forget that a row may leave."""
    with (
        patch.object(Declaration, "leaves_by_where", PropertyMock(return_value=False)),
        patch.object(Declaration, "leaves_by_route", PropertyMock(return_value=False)),
    ):
        yield


@pytest.mark.parametrize("has_read_on", [False, True], ids=["is behind", "has read on"])
def test_a_row_in_two_tables_is_a_difference(world: World, *, has_read_on: bool) -> None:
    """Once the other table has read the record that took the row away."""
    shop = Shop(world, route_by="state", format="debezium", keys=["id"], tables=TABLES)
    world.send(changed("c", "open"))
    with nothing_leaves():
        shop.streams["open"].run()
        world.send(changed("u", "closed"))
        shop.streams["closed"].run()
        if has_read_on:
            shop.streams["open"].run()
    closed = shop.streams["closed"]

    with patch.object(classify, "_follows_route", lambda _: False):
        verdict = verify(closed.spec, closed.settings)

    found = [each for each in verdict.differences if "has its key, too" in each.what]
    assert len(found) == has_read_on
    assert [each.key for each in found] == [{"id": "1"}] * has_read_on


def test_a_row_that_the_condition_excludes_is_a_difference(world: World) -> None:
    """Whatever the records say of it."""
    world.declare(where="at > 1")
    world.send(row(1, "a", 2), row(2, "b", 1))
    with patch.object(Declaration, "is_transformed", PropertyMock(return_value=False)):
        with nothing_leaves():
            world.run()
        verdict = verify(world.spec, world.settings)

    assert [each.what for each in verdict.differences] == [
        "is in the table, and `where` excludes it"
    ]
