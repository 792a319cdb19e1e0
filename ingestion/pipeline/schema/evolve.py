"""A changed declaration meets its table: planned, then made to fit by a commit of its own, or not.

Schemas never change inside a batch. One commit, under a seq of its own, gives the table its columns
and notes them; it changes no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns, system_columns
from oncelake.ingestion.declaration.spec import RECORD_TYPES, StreamSpec, meaning
from oncelake.ingestion.delta.files import is_delta, read_delta
from oncelake.ingestion.lake.ledger import LedgerRow, put_rows
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.pipeline.schema.types import refuse_bad_constraints
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.recovery.schema_diff import (
    CLUSTER_BY,
    PARTITION_BY,
    SORT_BY,
    SchemaChange,
    allowed_changes,
    constraints_of,
    with_constraints,
)
from oncelake.ingestion.sinks.delta.compaction import widen
from oncelake.ingestion.storage.failpoints import Failpoint, hit
from oncelake.ingestion.tables.commit_log import Commit
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from oncelake.ingestion.tables.table import Layout, MarkableTable, Tell


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
        paths.table.configure(deletion_vectors=spec.deletion_vectors)
    before, wanted = position.columns, allowed_changes(spec, paths)
    asked = constraints_of(spec, paths.table.rules())
    refuse_bad_constraints(spark, spec.name, (*spec.in_statements(spec.columns),), asked)
    position = under_declaration(position, spec, asked)
    if not wanted and not _columns_differ(before, spec.ddl):
        return position, ()
    metadata = position.next_metadata(run_id, kind="schema")
    commit = commit_columns(spec, paths, metadata, wanted, tell=tell)
    hit(Failpoint.SCHEMA_NOTED)
    put_rows(paths, LedgerRow.of(commit, position.table_id))
    return position.after(metadata), tuple(
        f"the table was changed before anything was read: {each.field}: {each.what}"
        for each in wanted
    )


def commit_columns(
    spec: StreamSpec,
    paths: StreamPaths,
    metadata: CommitMetadata,
    changes: Sequence[SchemaChange],
    *,
    renamed: Mapping[str, str] | None = None,
    version: int | None = None,
    tell: Tell = lambda text: None,
) -> Commit:
    """Commit the columns that some changes ask for, and a note; without changes, the note alone.

    Args:
        renamed: What the table calls columns so far, where a person alters it, by their new names;
            its columns are put in order then. A run leaves their order, and adds new ones behind.
        version: Of the table's log, behind which nobody may have committed; any without one.
        tell: Called with a sentence for each step.
    """
    if not changes and version is None:
        return paths.table.commit_note(metadata)
    if wider := [each.column for each in changes if each.is_wider and each.column]:
        tell(f"{', '.join(each.name for each in wider)}: a wider type…")
        _widen_tombstones(paths, wider, tell)
    dropped = {each.field for each in changes if each.is_dropped}
    earlier = {old: new for new, old in (renamed or {}).items()}
    read = paths.table.columns()
    found = {earlier.get(each.name, each.name): each for each in read}
    columns = [each for each in _columns_to_be(spec, paths, found) if each.name not in dropped]
    if renamed is None:
        named, there = {each.field for each in changes}, [*found]
        columns = [each if each.name in named else found.get(each.name, each) for each in columns]
        columns.sort(key=lambda each: there.index(each.name) if each.name in found else len(there))
    fields = {each.field for each in changes}
    layout = Layout(
        columns=columns,
        found=read,
        renamed=renamed or {},
        partitions=spec.partitions if PARTITION_BY in fields else None,
        sort_by=spec.cluster_by or spec.sort_by if fields & {SORT_BY, CLUSTER_BY} else None,
        tell=tell,
        version=version,
    )
    commit = paths.table.reshape(layout, metadata)
    hit(Failpoint.ALTERED)
    return commit


def _columns_to_be(
    spec: StreamSpec, paths: StreamPaths, found: Mapping[str, DeclaredColumn]
) -> Iterator[DeclaredColumn]:
    """Yield the columns as declared, ours behind them, and then all that the table has beside."""
    declared = {each.name: each for each in (*spec.table_columns, *system_columns())}
    for name, column in declared.items():
        known = found.get(name, replace(column, nullable=True, comment=""))
        yield replace(
            column,
            type=paths.sink.kind.stored_type(column.type),
            nullable=known.nullable or (column.nullable and name not in spec.keys),
            comment=column.comment or known.comment,
        )
    yield from (each for name, each in found.items() if name not in declared)


def _widen_tombstones(paths: StreamPaths, columns: Sequence[DeclaredColumn], tell: Tell) -> None:
    """Widen the columns by which deletes are remembered, those that are among some.

    That comes first: of what is left to do only the table tells.
    """
    if is_delta(paths.tombstones):
        there = set(read_delta(paths.tombstones).schema().to_arrow().names)
        if remembered := [column for column in columns if column.name in there]:
            widen(paths.tombstones, remembered, tell)
            hit(Failpoint.ALTERED)


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
