"""The same records for every write mode: the table must not depend on how they are read.

Twenty records of few keys in two partitions, in no order: repeated, late, broken and deleting ones.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.support.long import IS_LONG
from tests.support.proof import find_problems, prove
from tests.support.world import World, settings_in

SCHEMA = (
    "id INT NOT NULL, name STRING, at INT NOT NULL, amount DECIMAL(9, 2), big BIGINT, "
    "seen TIMESTAMP, side INT NOT NULL"
)
RECORDS = 20
GONE = "gone"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A write mode, as a person would declare it.

    Attributes:
        name: Names it in reports.
        declared: The fields of the declaration.
        is_proven: Whether verify can prove every column.
    """

    name: str
    declared: dict[str, Any] = field(default_factory=dict)
    is_proven: bool = True

    def __str__(self) -> str:
        """Name it."""
        return self.name


SCENARIOS = (
    Scenario(name="append", declared={"mode": "append", "keys": []}),
    Scenario(
        name="insert_only",
        declared={"mode": "insert_only", "keys": ["id"], "sequence_by": ["at"]},
    ),
    Scenario(
        name="aggregate",
        declared={
            "mode": "aggregate",
            "keys": ["id"],
            "sequence_by": ["at"],
            "aggregates": {
                "records": "count(*)",
                "named": "count(name)",
                "total": "sum(amount)",
                "bigs": "sum(big)",
                "lowest": "min(amount)",
                "highest": "max(name)",
                "mean": "avg(amount)",
                "names": "set(name)",
                "newest": "last(name)",
                "oldest": "first(amount)",
            },
        },
    ),
    Scenario(
        name="windows",
        declared={
            "mode": "aggregate",
            "keys": ["id"],
            "aggregates": {"records": "count(*)", "total": "sum(amount)"},
            "window": {"column": "seen", "every": "1 hour", "allowed_delay": "10 minutes"},
        },
    ),
    Scenario(
        name="approx_distinct",
        declared={
            "mode": "aggregate",
            "keys": ["name"],
            "aggregates": {"values": "approx_distinct(big)"},
        },
        is_proven=False,
    ),
    Scenario(
        name="scd2",
        declared={
            "mode": "scd2",
            "keys": ["id"],
            "sequence_by": ["seen"],
            "apply_as_deletes": f"name = '{GONE}'",
        },
    ),
    Scenario(
        name="soft_upsert",
        declared={
            "keys": ["id"],
            "sequence_by": ["at"],
            "apply_as_deletes": f"name = '{GONE}'",
            "deletes": "soft",
        },
    ),
    Scenario(
        name="partial_upsert",
        declared={
            "keys": ["id", "side"],
            "apply_as_deletes": f"name = '{GONE}'",
            "ignore_null_updates": True,
        },
    ),
    Scenario(
        name="upsert",
        declared={"keys": ["id"], "sequence_by": ["at"], "apply_as_deletes": f"name = '{GONE}'"},
    ),
)
# ``make modes-matrix`` tries all.
IS_WHOLE = IS_LONG or bool(os.environ.get("MODES_MATRIX"))
# A fold is no set, and a history is none either: there a record sent in late would show.
REBUILT = tuple(each for each in SCENARIOS if IS_WHOLE or each.name == "scd2")
# A partial update has no place among those that came meanwhile: there a redrive is refused.
REDRIVEN = tuple(
    each
    for each in SCENARIOS
    if each.name != "partial_upsert" and (IS_WHOLE or each.name == "scd2")
)
# A replay takes up no mode that folds; history and rows without a key show what came twice.
REPLAYED = tuple(each for each in SCENARIOS if IS_WHOLE or each.name in {"append", "scd2"})


def produce_records(world: World, seed: int = 1, *, records: int = RECORDS) -> None:
    """Send records; keys go to both partitions, so that only ``at`` orders them."""
    dice = random.Random(seed)
    for _ in range(records):
        record = {**_record(dice), "side": dice.randrange(2)}
        raw = json.dumps(record).encode() if dice.random() < 0.9 else b'{"id": "?"}'
        world.producer.produce(world.topic, value=raw, partition=record["side"])
    assert world.producer.flush(30) == 0


def _record(dice: random.Random) -> dict[str, Any]:
    return {
        "id": dice.randrange(4),
        "name": dice.choice([GONE, "a", "b", "c", None]),
        "at": dice.randrange(12),
        "amount": dice.choice([None, dice.randrange(-1000, 1000) / 100]),
        "seen": f"2024-02-29T{dice.randrange(10, 14)}:{dice.randrange(10, 60)}:00.25Z",
        "big": dice.choice([None, dice.randrange(10**15)]),
    }


def reader_of(world: World, folder: Path, scenario: Scenario, **fields: Any) -> World:
    """Return a stream with a lake of its own that reads the same topic."""
    settings = settings_in(folder, world.settings.kafka.address or "")
    return replace(
        world, settings=settings, declared={"schema": SCHEMA, **scenario.declared, **fields}
    )


def table_of(world: World) -> list[tuple[Any, ...]]:
    """Read a table but for batch numbers and sketches, which depend on how it was read."""
    ours = ("_topic", "_partition", "_offset", "_timestamp", "_epoch")
    every = (*(column.name for column in world.spec.table_columns), *ours)
    names = [name for name in every if not name.endswith("_sketch")]
    found = DeltaTable(world.paths.data.path).to_pyarrow_table(columns=names).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def assert_proven(world: World, scenario: Scenario) -> None:
    """Let the oracle judge; where a column cannot be proven, verify must say so and no more."""
    if scenario.is_proven:
        found = find_problems(world)
        assert not found, found
        return
    verdict = prove(world)
    assert verdict.holds, verdict.differences
    assert len(verdict.limits) == 1, verdict.limits
    assert not world.run().batches
