"""Several tables of one topic: each stream stands for itself, and nothing is left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from oncelake.ingestion.declaration.loader import load_streams
from tests.support.proof import find_problems
from tests.support.world import World

KEYS: dict[str, Any] = {"keys": ["id"], "sequence_by": ["_timestamp"]}
TABLES: dict[str, Any] = {
    "orders": {"schema": "id INT NOT NULL, total INT", **KEYS},
    "payments": {"when": ["paid", "refunded"], "schema": "id INT NOT NULL", **KEYS},
    "clicks": {"schema": "page STRING NOT NULL", "mode": "append", "keys": []},
}


class Shop:
    """A topic, and the streams of one file that fill its tables.

    Attributes:
        streams: A world of each stream, by its table.
    """

    def __init__(self, world: World, **fields: Any) -> None:
        self.world = world
        self.declare(**fields)

    def declare(self, **fields: Any) -> None:
        """Write the file anew."""
        world = self.world
        file = {"topic": world.topic, "route_by": "type", "tables": TABLES, **fields}
        folder = world.settings.streams
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{world.topic}.yaml").write_text(json.dumps(file))
        specs = {each.name: each.require_spec() for each in load_streams(folder)}
        self.streams = {
            name.removeprefix(f"{world.topic}_"): replace(
                world, declared=spec.model_dump(by_alias=True, exclude_unset=True)
            )
            for name, spec in specs.items()
        }

    def counts(self, *names: str) -> Mapping[str, list[int]]:
        """Return some counts of each stream, of all its batches."""
        return {
            table: [sum(row.counts.get(name, 0) for row in stream.ledger) for name in names]
            for table, stream in self.streams.items()
        }

    def problems(self) -> list[str]:
        """Return what is wrong with any of the streams."""
        return [each for stream in self.streams.values() for each in find_problems(stream)]


def rows_of(world: World) -> list[dict[str, Any]]:
    """Read the rows of a table, whatever its mode."""
    names = [column.name for column in world.spec.columns]
    return [row for each in world.paths.table.scan(names) for row in each.to_pylist()]


def record(type_: str, id: int, **fields: Any) -> dict[str, Any]:
    """A record of one kind."""
    return {"type": type_, "id": id, **fields}


MIXED = [
    *(record("orders", 1, total=5), record("paid", 1), record("clicks", 0, page="/")),
    *(record("orders", 2, total="much"), record("views", 3), b"not JSON"),
]


@pytest.mark.parametrize("otherwise", ["quarantine", "ignore", "clicks"])
def test_each_record_is_in_one_table_and_the_proof_finds_it_there(
    world: World, otherwise: str
) -> None:
    """The books of every stream balance, and hold what the others have as well."""
    shop = Shop(world, otherwise=otherwise)
    world.send(*MIXED)
    world.send(*MIXED, partition=1)
    world.send(None, partition=1, id=1)

    for stream in shop.streams.values():
        assert stream.run().is_balanced

    assert shop.problems() == []
    assert rows_of(shop.streams["clicks"]) == [{"page": "/"}] * 2
    assert rows_of(shop.streams["payments"]) == []
    assert rows_of(shop.streams["orders"]) == []
    found = shop.counts("read", "routed_elsewhere", "unrouted", "tombstones_shared")
    assert {tuple(counts[:1] + counts[2:3]) for counts in found.values()} == {
        (13, 4 if otherwise == "ignore" else 0)
    }
    assert [found[table][3] for table in TABLES] == [1, 1, 0]
    own = sum(read - other - none - shared for read, other, none, shared in found.values())
    assert own + 1 + found["clicks"][2] == 13
