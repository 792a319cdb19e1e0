"""Promises that two fields together do not keep yet, each as small as it was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.operations.test_routes import Shop, rows_of
from tests.pairs.catalogue import FEATURES, OPEN
from tests.pairs.play import play
from tests.support.world import World

BY_NAME = {each.name: each for each in FEATURES}


@pytest.mark.xfail(reason="engine and proof keep another rule", strict=False)
@pytest.mark.parametrize("pair", sorted(OPEN))
def test_an_open_pair_keeps_its_promise(pair: str, tmp_path: Path) -> None:
    """As every other pair does, with some seed."""
    features = [BY_NAME[name] for name in pair.split(" + ")]

    found = [play(features, seed, tmp_path / str(seed)) for seed in range(1, 4)]

    assert found == [[], [], []]


def test_a_null_value_of_another_route_deletes_in_no_table(world: World) -> None:
    """By a header it has its route like any record, and that of this one is none of a table's."""
    shop = Shop(world, route_by="header:kind", otherwise="ignore")
    value, key = json.dumps({"id": 1, "total": 5}).encode(), b'{"id": 1}'
    for content, kind in ((value, b"orders"), (None, b"views")):
        headers = [("kind", kind)]
        world.producer.produce(world.topic, value=content, key=key, partition=0, headers=headers)
    shop.run_together()

    assert rows_of(shop.streams["orders"]) == [{"id": 1, "total": 5}]
    assert shop.problems() == []
