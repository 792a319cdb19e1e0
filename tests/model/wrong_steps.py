"""Protocols that do one step wrong, at the wrong time, or not at all."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import ingestion.lake.lock
import ingestion.operations.decisions
import ingestion.recovery.heal
import ingestion.recovery.start
from ingestion.lake.ledger import LedgerRow
from ingestion.pipeline.batch import BatchWriter
from ingestion.recovery.heal import Healing
from tests.model import process_rules, rules
from tests.model.engine import ModelDeltaTable
from tests.model.lake import ModelLedger, Table
from tests.model.patches import nothing, together
from tests.model.sink import ModelUpsert
from tests.model.world import World


def no_lock() -> AbstractContextManager[Any]:
    """Two runs at once, and both go on."""

    def free(*_: Any) -> AbstractContextManager[None]:
        return nullcontext()

    return together(
        patch.object(ingestion.lake.lock, "held_by_python", free),
        patch.object(ingestion.lake.lock, "held_by_jvm", free),
    )


def a_lease_instead_of_a_kernel_lock() -> AbstractContextManager[Any]:
    """The lock can be lost while side rows are at stake, which no ``txn`` fences."""

    def lose_it(world: World, dice: Any) -> bool:
        before, world.has_lease = world.has_lease, True
        try:
            return process_rules.lose_the_lock(world, dice)
        finally:
            world.has_lease = before

    weighed = tuple(
        (lose_it if rule is process_rules.lose_the_lock else rule, n) for rule, n in rules.RULES
    )
    return patch("tests.model.explore.RULES", weighed)


def no_txn_fence() -> AbstractContextManager[Any]:
    """A zombie's commit lands beside the one that replaced it."""
    honest = Table.__init__

    def unfenced(table: Table, *given: Any, **named: Any) -> None:
        honest(table, *given, **named)
        table.fences = False

    return patch.object(Table, "__init__", unfenced)


def no_look_for_the_txn() -> AbstractContextManager[Any]:
    """delta-rs commits a seq a second time when nobody looks whether it is there."""
    return patch.object(ModelDeltaTable, "transaction_version", nothing)


def no_read_back() -> AbstractContextManager[Any]:
    """A statement that Delta skipped is taken for a commit."""

    def trusting(writer: Any, metadata: Any, *, after: int) -> Any:
        found = writer._log.find("s", metadata.seq)
        return replace(found, metadata=metadata)

    return patch.object(BatchWriter, "_find", trusting)


def ledger_before_commit() -> AbstractContextManager[Any]:
    """The ledger says what may never come."""
    honest = ModelUpsert.commit

    def commit(upsert: Any, metadata: Any) -> None:
        last = upsert._paths.data.table.commits[-1]
        row = LedgerRow.of(metadata, last, "table", counts=metadata.counts)
        ModelLedger(upsert._paths.ledger).put(row)
        honest(upsert, metadata)

    return patch.object(ModelUpsert, "commit", commit)


def quarantine_after_the_commit() -> AbstractContextManager[Any]:
    """A crash in between leaves bad records nowhere."""
    put_off: list[tuple[Any, ...]] = []
    quarantine, honest = BatchWriter._quarantine, ModelUpsert.account

    def later(*given: Any) -> int:
        put_off.append(given)
        return int(given[2].dispositions.get("quarantined", 0))

    def account(upsert: Any, commit: Any) -> Any:
        while put_off:
            quarantine(*put_off.pop())
        return honest(upsert, commit)

    return together(
        patch.object(BatchWriter, "_quarantine", later),
        patch.object(ModelUpsert, "account", account),
    )


def tombstones_not_remembered() -> AbstractContextManager[Any]:
    """A late update raises the dead."""
    return patch.object(ModelUpsert, "_dead", lambda upsert: {})


def side_rows_not_cleaned() -> AbstractContextManager[Any]:
    """What a dead attempt wrote beside the table stays."""
    return patch.object(ingestion.recovery.heal, "remove_beyond", nothing)


def heal_omitted() -> AbstractContextManager[Any]:
    """What a crash swallowed stays swallowed."""
    return together(
        patch.object(
            ingestion.recovery.start,
            "heal_ledger",
            lambda spec, snapshot, position: Healing(rows=snapshot.rows),
        ),
        patch.object(ingestion.recovery.start, "remove_leftovers", nothing),
    )


def decisions_do_not_heal() -> AbstractContextManager[Any]:
    """A person's word takes the seq whose rows a dead attempt left beside the table."""
    return together(
        patch.object(ingestion.operations.decisions, "remove_leftovers", nothing),
        patch.object(ingestion.operations.decisions, "heal", nothing),
    )
