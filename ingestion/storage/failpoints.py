"""Named places at which a test may end this process: that is how the guarantee is proven.

Each is a moment between two durable steps, where a crash must leave nothing that the next run does
not heal. Off, a place costs one call. On, it calls a hook that only the tests have:
``ONCELAKE_CHAOS`` names it, and is refused unless ``ONCELAKE_TESTING`` says that a test set it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import Any, cast

from oncelake.ingestion.errors import SetupError

_HOOK = "ONCELAKE_CHAOS"
_ALLOWED = "ONCELAKE_TESTING"


class Failpoint(StrEnum):
    """The places, in the order in which a run passes them."""

    BEFORE_LOCK = "before_lock"
    LOOKING = "looking"
    LEDGER_HEALED = "ledger_healed"
    LOCK_HELD = "lock_held"
    TABLE_CREATED = "table_created"
    FILE_REWRITTEN = "file_rewritten"
    ALTERED = "altered"
    SCHEMA_NOTED = "schema_noted"
    TABLE_READ = "table_read"
    GENERATION_OPENED = "generation_opened"
    QUERY_STARTED = "query_started"
    BATCH_PLANNED = "batch_planned"
    COLUMNS_KEPT = "columns_kept"
    SOURCE_TRUNCATED = "source_truncated"
    BATCH_MATERIALISED = "batch_materialised"
    GAPS_PROVEN = "gaps_proven"
    QUARANTINED = "quarantined"
    PREPARED = "prepared"
    COMMITTED = "committed"
    READ_BACK = "read_back"
    PROJECTED = "projected"
    AUDITED = "audited"
    LEDGER_WRITTEN = "ledger_written"
    BATCH_DONE = "batch_done"
    QUERY_ENDED = "query_ended"
    REPORTED = "reported"
    DECIDED = "decided"
    SIDES_CLEARED = "sides_cleared"
    COMPACTED = "compacted"
    VACUUMED = "vacuumed"
    RETIRED = "retired"
    PROOF_WRITTEN = "proof_written"
    SWAP_BEGUN = "swap_begun"
    SWAP_CLEARED = "swap_cleared"
    EVIDENCE_GATHERED = "evidence_gathered"


def hit(place: Failpoint) -> None:
    """Tell the hook of a test, where there is one, that the process got here."""
    hook = _hook()
    if hook is not None:
        hook(place)


@cache
def _hook() -> Callable[[Failpoint], Any] | None:
    name = os.environ.get(_HOOK)
    if not name:
        return None
    if os.environ.get(_ALLOWED) != "1":
        raise SetupError(
            f"{_HOOK} is set, which makes runs die on purpose and is for this project's own tests. "
            f"Next: unset {_HOOK}"
        )
    module, _, function = name.partition(":")
    return cast("Callable[[Failpoint], Any]", getattr(import_module(module), function))
