"""A changed declaration meets its table: planned, then made to fit by commits of their own, or not.

Schemas never change inside a batch. ALTER runs first and changes no value; then a metadata-only
commit under a seq of its own records the new columns. A crash between the two leaves a table that
fits already, and the next run writes the metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.spec import RECORD_TYPES, StreamSpec, meaning
from oncelake.ingestion.delta.files import is_delta, read_delta
from oncelake.ingestion.lake.ledger import LedgerRow, put_rows
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.pipeline.schema import refuse_bad_constraints
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.recovery.schema_diff import (
    SchemaChange,
    allowed_changes,
    constraints_of,
    with_constraints,
)
from oncelake.ingestion.sinks.delta.compaction import widen
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.tables.table import MarkableTable, Tell


def alter_table(
    spark: SparkSession,
    stream: Stream,
    *,
    is_ours: bool = True,
    tell: Tell = lambda text: None,
) -> tuple[SchemaChange, ...]:
    """Make the columns of a table that is there fit, where the declaration lets us.

    Returns:
        What was done.

    Raises:
        SchemaChangedError: they do not fit, and cannot, or must not, be made to.
    """
    wanted = allowed_changes(stream.spec, stream.paths, is_ours=is_ours)
    if wider := [each.column for each in wanted if each.is_wider and each.column]:
        tell(f"{', '.join(each.name for each in wider)}: a wider type…")
        _widen(stream.paths, wider, tell)
    for change in wanted:
        if change.column is not None and not change.is_wider:
            stream.paths.table.alter(change.column, is_new=change.is_new, spark=spark)
            hit(Failpoint.ALTERED)
    return wanted


def _widen(paths: StreamPaths, columns: Sequence[DeclaredColumn], tell: Tell) -> None:
    """Widen the table's columns, and first those of its deletes, which only a table tells of."""
    widen_tombstones(paths, columns, tell)
    paths.table.widen(columns, tell=tell)
    hit(Failpoint.ALTERED)


def widen_tombstones(paths: StreamPaths, columns: Sequence[DeclaredColumn], tell: Tell) -> None:
    """Widen the columns by which deletes are remembered, those that are among some."""
    if is_delta(paths.tombstones):
        there = set(read_delta(paths.tombstones).schema().to_arrow().names)
        if remembered := [column for column in columns if column.name in there]:
            widen(paths.tombstones, remembered, tell)
            hit(Failpoint.ALTERED)


def evolve_schema(
    spark: SparkSession,
    stream: Stream,
    position: Position,
    *,
    run_id: str,
    tell: Tell = lambda text: None,
) -> tuple[Position, tuple[str, ...]]:
    """Make a table fit its declaration, where the declaration lets us.

    Returns:
        Where the table stands now, and what was done, one line each.

    Raises:
        SchemaChangedError: it does not fit, and cannot, or must not, be made to.
    """
    spec, paths = stream.spec, stream.paths
    if isinstance(paths.table, MarkableTable):
        paths.table.use_deletion_vectors(spec.deletion_vectors)
    before, wanted = position.columns, alter_table(spark, stream, tell=tell)
    asked = constraints_of(spec, paths.table)
    refuse_bad_constraints(spark, spec, asked)
    position = under_declaration(position, spec, asked)
    if not wanted and not _columns_differ(before, spec.ddl):
        return position, ()
    metadata = position.next_metadata(run_id, kind="schema")
    commit = paths.table.commit_note(metadata)
    hit(Failpoint.SCHEMA_NOTED)
    put_rows(paths, LedgerRow.of(commit, position.table_id))
    return position.after(metadata), tuple(
        f"the table was changed before anything was read: {each.field}: {each.what}"
        for each in wanted
    )


def under_declaration(
    position: Position, spec: StreamSpec, asked: Mapping[str, str], **more: Any
) -> Position:
    """Return where a table stands, with what its next commits keep of today's declaration.

    Args:
        asked: What the table asks of its rows, as conditions by name.
        more: What else a note keeps beside the declared fields.
    """
    types = (position.declaration or {}).get(RECORD_TYPES)
    learned = {RECORD_TYPES: types} if types else {}
    declaration = {**with_constraints(meaning(spec), asked), **learned, **more}
    return replace(position, columns=spec.ddl, declaration=declaration)


def _columns_differ(before: str, now: str) -> bool:
    """Tell whether two declarations differ in a column; one that nothing remembers does not."""
    if not before or before == now:
        return False
    return {(c.name, c.type, c.nullable) for c in parse_columns(before)} != {
        (c.name, c.type, c.nullable) for c in parse_columns(now)
    }
