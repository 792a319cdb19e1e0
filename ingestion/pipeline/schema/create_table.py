"""The first run: make the table, and write down where the stream begins.

``starting`` is resolved to offsets once, and committed before anything is read: were it resolved
again by the next run, records that came in between would be skipped.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from oncelake.ingestion.declaration.ddl import system_columns
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.erasure import COMPLETE, Digest, erasures
from oncelake.ingestion.lake.ledger import LedgerRow, put_rows
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.pipeline.schema.evolve import commit_columns
from oncelake.ingestion.recovery.schema_diff import allowed_changes
from oncelake.ingestion.recovery.start import Start, starting_offsets
from oncelake.ingestion.recovery.topics import identity_of
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Identity
from oncelake.ingestion.tables.table import KeepsRows, TableDefinition


def create_table(stream: Stream, *, run_id: str) -> None:
    """Make the table if it is not there, and commit the offsets at which the stream begins.

    An empty table that others have made is taken, and gets the columns that it lacks where the
    declaration lets it. A crash in between leaves an empty table, which the next run opens in the
    same way.
    """
    spec, paths, kafka = stream.spec, stream.paths, stream.kafka
    topics = kafka.topics(spec.name, spec.subscribed)
    begin = starting_offsets(spec, kafka, topics.partitions)
    is_there = paths.table.log().exists
    changes = allowed_changes(spec, paths, is_ours=False) if is_there else ()
    paths.table.create(definition_of(spec))
    hit(Failpoint.TABLE_CREATED)
    note = opening_note(spec, identity_of(spec, topics), begin, run_id=run_id)
    commit_columns(spec, paths, note, changes)


def opening_note(
    spec: StreamSpec, identity: Identity, begin: Offsets, *, run_id: str
) -> CommitMetadata:
    """Return the first note of a table: where its stream begins."""
    return CommitMetadata(
        kind="schema",
        seq=0,
        run_id=run_id,
        epoch=1,
        identity=identity,
        columns=spec.ddl,
        next=begin,
    )


def definition_of(spec: StreamSpec, *, keeps_rows: KeepsRows | None = None) -> TableDefinition:
    """Return the table that a declaration asks for; see ``TableDefinition``."""
    return TableDefinition(
        columns=(*spec.table_columns, *system_columns()),
        keys=spec.row_keys,
        description=spec.description,
        window=dt.timedelta(days=spec.rewind_window_days),
        deletion_vectors=spec.deletion_vectors,
        partitions=spec.partitions,
        sort_by=spec.cluster_by or spec.sort_by,
        keeps_rows=keeps_rows,
    )


def inherit_erasures(
    stream: Stream, start: Start, erased: Iterable[Mapping[str, Any]], *, run_id: str
) -> Start:
    """Commit to a new table what was erased from the one that it will replace, before it reads.

    A crash in between leaves some of them, which are not taken over twice.
    """
    position, rows = start.position, []
    for said in erased:
        if Digest.of_row(said) in {each.digest for each in start.erasures}:
            continue
        made = position.next_metadata(run_id, kind="erase", counts={COMPLETE: 1})
        made = replace(made, erased=said, reason="erased before this table was made")
        commit = stream.paths.table.commit_note(made)
        rows.append(LedgerRow.of(commit, position.table_id))
        position = position.after(made)
    put_rows(stream.paths, *rows)
    return replace(start, position=position, erasures=(*start.erasures, *erasures(rows)))
