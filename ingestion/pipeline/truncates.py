"""A TRUNCATE of the source that is applied: it deletes the rows of earlier records of the topic.

Its commit comes before that of the batch, or the part of one, that has the truncate: a run that
dies between the two finds no such rows left. Records before it, in that batch or read again, are
left out as those of an erased key are. Only in a topic of one partition is it known what was
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.lake.erasure import said_of
from oncelake.ingestion.lake.ledger import LedgerRow, put_rows
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.pipeline.erased import redefine
from oncelake.ingestion.pipeline.gate.circuit_breaker import source_truncated
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from oncelake.ingestion.tables.table import ErasableTable

IS_TRUNCATE: Final = "_disposition = 'quarantined' AND _reason = 'truncate'"


def take_truncates(engine: Engine, spec: StreamSpec) -> Offsets:
    """Call the truncates of ``batch`` ``ignored``, if they are applied; return the last offsets."""
    if spec.format.options.truncate_policy != "apply":
        return Offsets()
    rows = engine.rows(
        'SELECT _topic, _partition, max(_offset) AS "last" FROM batch '
        f"WHERE {IS_TRUNCATE} GROUP BY _topic, _partition"
    )
    if rows:
        redefine(engine, IS_TRUNCATE, _disposition="'ignored'", _reason="CAST(NULL AS STRING)")
    return Offsets({TopicPartition(row["_topic"], row["_partition"]): row["last"] for row in rows})


def truncate(
    stream: Stream, position: Position, at: Offsets, *, run_id: str
) -> tuple[CommitMetadata, LedgerRow]:
    """Commit the table without the rows that were before a truncate.

    Args:
        stream: Its table has a row a key.
        position: Where the table stands.
        at: The offset of the truncate.
        run_id: Of the run.

    Raises:
        SourceTruncatedError: the topic has more than one partition, or the rows cannot go.
    """
    spec, table = stream.spec, stream.paths.table
    assert isinstance(table, ErasableTable), "another sink was refused with the declaration"
    where, offset = next(iter(at.items()))
    why = table.obstacle
    if not why and len([each for each in position.next if each.topic == where.topic]) > 1:
        why = "the topic has several partitions, so that nobody knows what was before"
    if why:
        raise source_truncated(stream.name, f"{where} offset {offset}, and {why}")
    keys = _keys_before(table, spec.row_keys, position.epoch, at)
    metadata = replace(
        position.next_metadata(run_id, kind="truncate", counts={"truncated": keys.num_rows}),
        reason=f"the source was truncated: {where} offset {offset}",
        erased=said_of({}, at),
    )
    commit = table.delete(keys, metadata) if keys.num_rows else table.commit_note(metadata)
    hit(Failpoint.SOURCE_TRUNCATED)
    row = LedgerRow.of(commit, position.table_id)
    put_rows(stream.paths, row)
    return metadata, row


def _keys_before(table: ErasableTable, names: Sequence[str], epoch: int, at: Offsets) -> pa.Table:
    """Return the keys of the rows that an earlier offset, or an earlier epoch, has written."""
    (((topic, partition), offset),) = at.items()
    before = (pc.field("_topic") == topic) & (pc.field("_partition") == partition)
    before = (pc.field("_epoch") < epoch) | (before & (pc.field("_offset") < offset))
    batches = table.scan([*names, "_epoch", "_topic", "_partition", "_offset"])
    found = [pa.table(batch).filter(before).select([*names]) for batch in batches]
    return pa.concat_tables(found) if found else pa.table({name: [] for name in names})
