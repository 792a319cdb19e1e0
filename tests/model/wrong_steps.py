"""Protocols that do one step wrong, at the wrong time, or not at all."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import ingestion.recovery.heal
import ingestion.recovery.standing
import ingestion.recovery.start
from ingestion.lake.attempts import Attempt, Attempts, Leftovers
from ingestion.lake.ledger import LedgerRow
from ingestion.operations.run import StreamTask
from ingestion.pipeline.batch import BatchWriter
from ingestion.recovery.heal import Healing
from ingestion.recovery.start import Start
from tests.model.engine import ModelDeltaTable
from tests.model.lake import ModelLedger, Side, Table
from tests.model.patches import nothing, together
from tests.model.sink import ModelUpsert


def side_rows_of_a_seq() -> AbstractContextManager[Any]:
    """Side rows name no attempt: what the lock, and a run that dies with it, must then protect.

    An attempt replaces all rows of its seq, and a run removes those of every seq to come.
    """
    honest = Side.replace

    def replace_all(side: Side, attempt: Attempt, rows: Any) -> None:
        honest(side, attempt, rows)
        others = (each for each in [*side.rows] if each.seq == attempt.seq and each != attempt)
        for other in others:
            del side.rows[other]

    return together(patch.object(Side, "replace", replace_all), living_attempts_swept())


def living_attempts_swept() -> AbstractContextManager[Any]:
    """What no commit names yet is taken for dead."""
    return patch.object(Leftovers, "of_failed", lambda leftovers, committed: leftovers)


def every_attempt_believed() -> AbstractContextManager[Any]:
    """A row counts as soon as its seq is in the table, whoever wrote it."""
    return patch.object(Attempts, "has_committed", lambda known, it: it.seq <= known.last)


def undone_attempts_believed() -> AbstractContextManager[Any]:
    """What a rewind has undone stays beside the table."""

    def after(known: Attempts, *batches: Any) -> Attempts:
        by_seq = {**known.by_seq, **{each.seq: each.attempt for each in batches}}
        return Attempts(last=max(by_seq, default=known.last), by_seq=by_seq)

    return patch.object(Attempts, "after", after)


def marks_taken_over() -> AbstractContextManager[Any]:
    """A redrive removes the marks of another without taking its seq first."""

    def remove_marks(_: Any, paths: Any, start: Start) -> Start:
        paths.quarantine.marks = {
            at: mark
            for at, mark in paths.quarantine.marks.items()
            if start.position.committed.has_committed(mark)
        }
        return start

    return patch.object(StreamTask, "_supersede", remove_marks)


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
        row = LedgerRow.of(replace(last, metadata=metadata), "table")
        ModelLedger(upsert._paths.ledger).put(row)
        honest(upsert, metadata)

    return patch.object(ModelUpsert, "commit", commit)


def quarantine_after_the_commit() -> AbstractContextManager[Any]:
    """A crash in between leaves bad records nowhere."""
    put_off: list[tuple[Any, ...]] = []
    quarantine, honest = BatchWriter._quarantine, BatchWriter._record

    def later(*given: Any) -> int:
        put_off.append(given)
        return int(given[2].dispositions.get("quarantined", 0))

    def record(writer: Any, *given: Any) -> Any:
        while put_off:
            quarantine(*put_off.pop())
        return honest(writer, *given)

    return together(
        patch.object(BatchWriter, "_quarantine", later),
        patch.object(BatchWriter, "_record", record),
    )


def tombstones_not_remembered() -> AbstractContextManager[Any]:
    """A late update raises the dead."""
    return patch.object(ModelUpsert, "_dead", lambda upsert: {})


def side_rows_not_cleaned() -> AbstractContextManager[Any]:
    """What a dead attempt wrote beside the table stays."""
    return patch.object(ingestion.recovery.heal, "remove_failed", lambda *given, **named: False)


def leftovers_left_to_the_next() -> AbstractContextManager[Any]:
    """A run commits beside what a dead one has left, which only the run after it removes."""
    return patch.object(StreamTask, "_supersede", lambda _, paths, start: start)


def heal_omitted() -> AbstractContextManager[Any]:
    """What a crash swallowed stays swallowed."""
    return together(
        patch.object(
            ingestion.recovery.standing,
            "heal_ledger",
            lambda spec, snapshot, position: Healing(rows=snapshot.rows),
        ),
        patch.object(ingestion.recovery.standing, "remove_leftovers", nothing),
    )
