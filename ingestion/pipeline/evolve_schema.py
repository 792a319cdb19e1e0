"""A changed declaration meets its table: planned, then made to fit by commits of their own, or not.

Schemas never change inside a batch. ALTER runs first and changes no row; then a metadata-only
commit under a seq of its own records the new columns. A crash between the two leaves a table that
fits already, and the next run writes the metadata.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from ingestion.declaration.ddl import parse_columns
from ingestion.declaration.spec import RECORD_TYPES, StreamSpec, meaning
from ingestion.errors import SchemaChangedError
from ingestion.lake.ledger import LedgerRow, put_rows
from ingestion.lake.paths import StreamPaths
from ingestion.lake.stream import Stream
from ingestion.recovery.position import Position
from ingestion.recovery.schema_diff import SchemaChange, column_changes


def refuse_other_columns(spec: StreamSpec, paths: StreamPaths) -> None:
    """Make sure that the table's columns are the declared ones.

    Raises:
        SchemaChangedError: they are not; names each difference.
    """
    changes = tuple(column_changes(spec, paths))
    if any(each.effect != "nothing" for each in changes):
        raise _changed(spec, paths, changes)


def alters_table(stream: Stream) -> bool:
    """Tell whether a table's columns must change before anything is read."""
    changes = column_changes(stream.spec, stream.paths)
    return any(each.statement for each in changes)


def allowed_changes(spec: StreamSpec, paths: StreamPaths) -> tuple[SchemaChange, ...]:
    """Return what a table's columns need before anything is read, where the declaration lets it.

    Raises:
        SchemaChangedError: the table does not fit, and cannot, or must not, be made to.
    """
    changes = tuple(column_changes(spec, paths))
    wanted = tuple(each for each in changes if each.effect != "nothing")
    if wanted and (spec.schema_change != "evolve" or any(c.effect != "evolve" for c in wanted)):
        raise _changed(spec, paths, changes)
    return wanted


def evolve_schema(
    spark: SparkSession, stream: Stream, position: Position, *, run_id: str
) -> tuple[Position, tuple[str, ...]]:
    """Make a table fit its declaration, where the declaration lets us.

    Returns:
        Where the table stands now, and what was done, one line each.

    Raises:
        SchemaChangedError: it does not fit, and cannot, or must not, be made to.
    """
    spec, paths = stream.spec, stream.paths
    before, wanted = position.columns, allowed_changes(spec, paths)
    learned = {
        name: value for name, value in (position.declaration or {}).items() if name == RECORD_TYPES
    }
    position = replace(position, columns=spec.ddl, declaration={**meaning(spec), **learned})
    for change in wanted:
        if change.column is not None:
            paths.table.alter(change.column, is_new=change.is_new, spark=spark)
    if not wanted and not _columns_differ(before, spec.ddl):
        return position, ()
    metadata = position.next_metadata(run_id, kind="schema")
    commit = paths.table.commit_note(metadata)
    put_rows(paths, LedgerRow.of(metadata, commit, position.table_id, counts={}))
    return position.after(metadata), tuple(
        f"the table was changed before anything was read: {each.field}: {each.what}"
        for each in wanted
    )


def _columns_differ(before: str, now: str) -> bool:
    """Tell whether two declarations differ in a column; one that nothing remembers does not."""
    if not before or before == now:
        return False
    return {(c.name, c.type, c.nullable) for c in parse_columns(before)} != {
        (c.name, c.type, c.nullable) for c in parse_columns(now)
    }


def _changed(
    spec: StreamSpec, paths: StreamPaths, changes: tuple[SchemaChange, ...]
) -> SchemaChangedError:
    found = [each for each in changes if each.effect != "nothing"]
    said = "; ".join(f"{each.field} {each.what}" for each in found)
    if all(each.effect == "evolve" for each in found):
        remedy = (
            f"oncelake plan {spec.name} shows the statements; `schema_change: evolve` in "
            f"{spec.name}.yaml lets the next run make them, or put `schema` back"
        )
    else:
        remedy = next(f"{each.field}: {each.remedy}" for each in found if each.remedy)
    return SchemaChangedError(
        spec.name,
        f"the columns of {paths.table.where} are not the declared ones: {said}.",
        remedy=remedy,
    )
