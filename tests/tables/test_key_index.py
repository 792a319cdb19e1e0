"""A stream whose table has an index of its keys is proven as any, whoever writes in between."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.sinks.delta import transaction
from oncelake.ingestion.sinks.delta.transaction import DeltaTransaction
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.parametrize("sink", ["delta"])
@pytest.mark.parametrize(
    "declared",
    [
        {"deletes": "soft"},
        *twins(
            {},
            {"keys": ["id", "name"]},
            {"mode": "scd2", "sequence_by": ["at"], "track": ["name"]},
            {"mode": "insert_only"},
            {"sink": {"delta": {"key_index": True, "change_data_feed": True}}},
        ),
    ],
    ids=str,
)
def test_batches_that_ask_an_index_are_proven(
    world: World, monkeypatch: pytest.MonkeyPatch, declared: dict[str, Any]
) -> None:
    """Upkeep, a rewind, and files that Spark and delta-rs have put together lie between them."""
    monkeypatch.setattr(transaction, "ROWS_PER_KEY", 0)
    asked = list[int]()
    by_index = DeltaTransaction._find_by_index

    def counted(self: DeltaTransaction, *given: Any) -> Any:
        asked.append(len(self.files))
        return by_index(self, *given)

    monkeypatch.setattr(DeltaTransaction, "_find_by_index", counted)
    index = {"deletion_vectors": True, "sink": {"delta": {"key_index": True}}}
    world.declare(**{**index, **declared})
    path = str(world.paths.data)
    acts = [
        lambda: world.spark.sql(f"OPTIMIZE delta.`{path}`"),
        lambda: DeltaTable(path).optimize.compact(),
        lambda: maintain(world.spec, world.settings, run_id="me"),
        lambda: rewind(world.spec, world.settings, to="seq:2", reason="a test", run_id="me"),
    ]
    for number, act in enumerate(acts):
        world.send(*(row(n, f"{number}", 10 * number) for n in range(number, number + 6)))
        if "mode" not in declared:
            world.send(None, id=number - 1)
        assert world.run().is_balanced
        act()
    world.run()

    assert len(asked) >= 4
    assert (world.settings.state / "keys" / world.name / "manifest").exists()
    assert find_problems(world) == ()
