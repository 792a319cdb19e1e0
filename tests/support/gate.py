"""What waits at a stream's gate, and its acceptance."""

from __future__ import annotations

import pytest

from oncelake.ingestion.errors import BatchWithheldError
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.lake.withheld import WithheldBatch
from oncelake.ingestion.operations.publish import Publish
from oncelake.ingestion.pipeline.gate.judge import Accepted
from oncelake.ingestion.recovery.withheld import waiting_batch
from tests.support.world import World


def waiting(world: World) -> WithheldBatch:
    """Return the batch that waits."""
    batch = waiting_batch(world.spec, world.paths)
    assert batch is not None
    return batch


def withheld_by(world: World) -> list[str]:
    """Run into the gate, and return the names of what the batch is held back for."""
    before = (world.rows(), len(world.ledger)) if world.ledger else None
    with pytest.raises(BatchWithheldError) as refused:
        world.run()
    assert refused.value.exit_code == 1
    assert "no offset moved" in str(refused.value)
    assert before is None or before == (world.rows(), len(world.ledger))
    return [each.name for each in waiting(world).misses]


def publish(world: World, id: str = "", reason: str = "looked at") -> LedgerRow:
    """Accept the batch that waits, or the one of an id."""
    accepted = Accepted(id=id or waiting(world).id, reason=reason)
    return Publish(**world._parts(accepted=accepted)).execute()
