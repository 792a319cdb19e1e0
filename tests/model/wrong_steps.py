"""Protocols that do one step wrong, at the wrong time, or not at all."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import oncelake.ingestion.recovery.heal
import oncelake.ingestion.recovery.standing
import oncelake.ingestion.recovery.start
from oncelake.ingestion.lake import side_tables
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.pipeline.batch import BatchWriter
from oncelake.ingestion.pipeline.redrive_batch import RedriveWriter
from oncelake.ingestion.recovery.heal import Healing
from tests.model import sink
from tests.model.engine import ModelDeltaTable
from tests.model.lake import ModelLedger, OpenedSide, Side, Table
from tests.model.patches import nothing, together
from tests.model.process import step
from tests.model.sink import ModelUpsert


def projected_before_the_commit() -> AbstractContextManager[Any]:
    """Bad records are in the quarantine of a batch that never comes."""
    honest = BatchWriter._commit

    def commit(writer: Any, mode: Any, metadata: Any, **named: Any) -> Any:
        side_tables.project(writer._paths, metadata, "table")
        return honest(writer, mode, metadata, **named)

    return patch.object(BatchWriter, "_commit", commit)


def every_file_projected() -> AbstractContextManager[Any]:
    """What lies beside the table is taken for what a commit names."""

    def believe(paths: Any, note: Any, table_id: str) -> None:
        files = paths.quarantine.files
        bad = next((name for name, (rows, _) in files.items() if rows and len(rows[0]) == 4), None)
        if bad is not None and "quarantine" not in note.side and note.kind == "ingest":
            file = sink.read_back(paths.quarantine / bad)
            note = replace(note, side={**note.side, "quarantine": file})
        side_tables.project(paths, note, table_id)

    return patch.object(oncelake.ingestion.recovery.heal, "project", believe)


def crashes_projected_by_nobody() -> AbstractContextManager[Any]:
    """Healing writes the ledger row alone."""
    return patch.object(oncelake.ingestion.recovery.heal, "project", nothing)


def projected_again() -> AbstractContextManager[Any]:
    """Nobody looks whether a side table has a batch."""
    return patch.object(side_tables, "is_projected", lambda *_: False)


def projected_on_any_version() -> AbstractContextManager[Any]:
    """Two that project a commit at once do not hinder each other."""
    honest = OpenedSide.land

    def land(opened: OpenedSide, rows: Any, **fence: int) -> None:
        # Delta rebases an append.
        new = rows[len(rows) - 1 :] if len(rows) == len(opened.side.rows) + 1 else None
        step("project")
        opened.read_at = opened.side.versions
        honest(opened, rows if new is None else [*opened.side.rows, *new], **fence)

    return patch.object(OpenedSide, "land", land)


def ledger_before_the_projection() -> AbstractContextManager[Any]:
    """A crash in between leaves a batch that is healed no more, and not projected."""
    record = BatchWriter._record

    def record_first(writer: Any, *given: Any) -> Any:
        row = record(writer, *given)
        side_tables.project(writer._paths, given[2], "table")
        return row

    return together(
        patch.object(oncelake.ingestion.pipeline.batch, "project", nothing),
        patch.object(BatchWriter, "_record", record_first),
    )


def rewind_leaves_the_side_tables() -> AbstractContextManager[Any]:
    """What a rewind has undone stays beside the table."""
    return patch.object(side_tables._Projection, "undo", nothing)


def rewind_leaves_the_marks() -> AbstractContextManager[Any]:
    """What a redrive sent in that was undone waits no more."""
    return patch.object(OpenedSide, "update", nothing)


def rewind_undoes_what_follows() -> AbstractContextManager[Any]:
    """A rewind that is projected late takes the rows of later batches."""
    honest = OpenedSide.delete

    def delete(opened: OpenedSide, condition: str, **named: Any) -> None:
        honest(opened, condition.partition(" AND ")[0], **named)

    return patch.object(OpenedSide, "delete", delete)


def marks_before_the_commit() -> AbstractContextManager[Any]:
    """A redrive that never comes has sent records in."""
    honest = RedriveWriter.write_side_rows

    def mark(writer: Any, target: Any, metadata: Any, batch: Any) -> int:
        found = honest(writer, target, metadata, batch)
        side_tables.project(writer._paths, replace(metadata, side=target.side), "table")
        return found

    return patch.object(RedriveWriter, "write_side_rows", mark)


def files_not_named() -> AbstractContextManager[Any]:
    """The note of a commit says nothing of what lies beside the table."""
    honest = BatchWriter._commit

    def commit(writer: Any, mode: Any, metadata: Any, **named: Any) -> Any:
        return honest(writer, mode, replace(metadata, side={}), **named)

    return patch.object(BatchWriter, "_commit", commit)


def vacuum_before_healing() -> AbstractContextManager[Any]:
    """A file that a commit names, and no log yet, goes."""
    honest = oncelake.ingestion.recovery.standing.heal_stream

    def heal(spec: Any, paths: Any) -> Any:
        for side in paths.sides.values():
            side.remove_files(side.old_files())
        return honest(spec, paths)

    return patch.object(oncelake.ingestion.recovery.standing, "heal_stream", heal)


def files_of_the_living_removed() -> AbstractContextManager[Any]:
    """A VACUUM goes by no clock, and takes the file of a run that sleeps before its commit."""
    return patch.object(Side, "old_files", lambda side: [*side.files])


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


def tombstones_not_remembered() -> AbstractContextManager[Any]:
    """A late update raises the dead."""
    return patch.object(ModelUpsert, "_dead", lambda upsert: {})


def heal_omitted() -> AbstractContextManager[Any]:
    """What a crash swallowed stays swallowed."""
    return patch.object(
        oncelake.ingestion.recovery.standing,
        "heal_ledger",
        lambda spec, snapshot, position: Healing(rows=snapshot.rows),
    )
