"""``oncelake alter``: a table gets the columns of its declaration, without the topic.

    lock → where does the table stand? → heal, or refuse → what differs? → deletes that are
         remembered get wider types → one commit: columns, and a note of them → ledger

The note says what was renamed and dropped: the proof compares earlier batches by it. An alter that
dies before its commit has changed no row; one that dies after it is finished by whoever heals.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from oncelake.ingestion.declaration.spec import ALTERED, StreamSpec
from oncelake.ingestion.errors import (
    InvalidSpecError,
    RefusedError,
    SchemaChangedError,
    no_table_yet,
)
from oncelake.ingestion.lake.ledger import LedgerRow, put_rows
from oncelake.ingestion.lake.lock import held
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.pipeline.schema.evolve import commit_columns, under_declaration
from oncelake.ingestion.recovery.position import Position, read_position
from oncelake.ingestion.recovery.schema_diff import (
    SchemaChange,
    column_changes,
    constraints_of,
    layout_changes,
    pending_renames,
    schema_changed,
)
from oncelake.ingestion.recovery.standing import heal_stream
from oncelake.ingestion.recovery.topics import as_of_its_table
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.delta.catalogs.register import register
from oncelake.ingestion.tables.table import Tell


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterReport:
    """The result of an alter.

    Attributes:
        changes: What differed; empty where the table had its columns as declared.
        row: The ledger's row of it, if anything was.
        notices: What a person may want to know.
    """

    changes: tuple[SchemaChange, ...]
    row: LedgerRow | None = None
    notices: tuple[str, ...] = ()


def dropped_columns(spec: StreamSpec, settings: Settings) -> tuple[str, ...]:
    """Name the columns that an alter would drop now; changes nothing.

    Raises:
        RefusedError: there is no such table, or it cannot be altered so; says why.
    """
    paths = StreamPaths.of(spec.name, settings, spec.sink)
    is_ours = paths.table.log().exists
    with suppress(RefusedError):
        is_ours = is_ours and read_position(paths, RefusedError) is not None
    if not is_ours:
        raise _no_table_of_ours(paths)
    changes = _alterations(as_of_its_table(spec, paths), paths)
    return tuple(change.field for change in changes if change.is_dropped)


def alter(
    spec: StreamSpec,
    settings: Settings,
    *,
    drops: Collection[str],
    run_id: str,
    tell: Tell = lambda text: None,
) -> AlterReport:
    """Give a table the columns that its declaration has, by one commit; and its catalog, too.

    Args:
        drops: Columns that a person lets go, with their values.
        tell: Called with a sentence for each step.

    Raises:
        InvalidSpecError: there is no table of the stream.
        RefusedError: the table cannot be altered so, or another column would go; says why.
        StreamLockedError: a run holds the stream.
        TableBusyError: somebody else changed the table meanwhile. Nothing was changed.
    """
    paths = StreamPaths.of(spec.name, settings, spec.sink)
    with held(paths, run_id):
        standing = heal_stream(spec, paths)
        if standing.position is None:
            raise _no_table_of_ours(paths)
        standing.refuse()
        spec = as_of_its_table(spec, paths)
        changes = _alterations(spec, paths)
        _refuse_erased(spec, changes, standing.rows)
        if others := {each.field for each in changes if each.is_dropped} - {*drops}:
            raise RefusedError(
                spec.name,
                f"{', '.join(sorted(others))} would be dropped, and nobody agreed to that.",
                remedy="run the same command again",
            )
        row = None
        if changes:
            row = _commit(spec, paths, standing.position, changes, run_id=run_id, tell=tell)
    return AlterReport(changes=changes, row=row, notices=register(spec, settings, anew=True))


def _no_table_of_ours(paths: StreamPaths) -> InvalidSpecError:
    """Return the error of a table that no run has made, or has taken from others."""
    if not paths.table.log().exists:
        return no_table_yet(paths.stream)
    return InvalidSpecError(
        f"{paths.stream}: {paths.table.where} is empty, and no commit in its log is of this "
        f"stream: its first run takes it. Next: oncelake plan {paths.stream}"
    )


def _alterations(spec: StreamSpec, paths: StreamPaths) -> tuple[SchemaChange, ...]:
    """Return what the table has otherwise than declared, all of which it can take.

    Raises:
        SchemaChangedError: it cannot; says why.
    """
    changes = (*column_changes(spec, paths), *layout_changes(spec, paths.table))
    wanted = tuple(each for each in changes if each.effect != "nothing")
    refused = tuple(each for each in wanted if each.effect not in ("alter", "evolve"))
    if refused:
        raise schema_changed(spec, paths, refused)
    is_able = spec.sink.kind.renames_columns
    why = paths.table.rules().fixed_by if is_able else "its sink does not do that"
    if wanted and why:
        raise SchemaChangedError(
            spec.name,
            f"{paths.table.where} cannot be altered: {why}.",
            remedy=f"oncelake plan {spec.name} shows what a run can do; or oncelake rebuild "
            f"{spec.name}, or put `schema` back",
        )
    return wanted


def _refuse_erased(
    spec: StreamSpec, changes: Sequence[SchemaChange], rows: Sequence[LedgerRow]
) -> None:
    """Make sure that keys which were erased are known again by the columns they had."""
    erased = {name for row in rows if row.erased for name in row.erased["columns"]}
    changed = {each.field for each in changes if each.is_dropped}
    changed |= {spec.renamed_from.get(each.field, "") for each in changes}
    if both := sorted(erased & changed):
        raise RefusedError(
            spec.name,
            f"a key was erased by {', '.join(both)}: under another name, or without it, its "
            "records would not be recognised.",
            remedy=f"declare {', '.join(both)} still; or oncelake rebuild {spec.name}",
        )


def _commit(
    spec: StreamSpec,
    paths: StreamPaths,
    position: Position,
    changes: Sequence[SchemaChange],
    *,
    run_id: str,
    tell: Tell,
) -> LedgerRow:
    renamed = pending_renames(spec, {column.name for column in paths.table.columns()})
    dropped = sorted(each.field for each in changes if each.is_dropped)
    done = {ALTERED: {"renamed": renamed, "dropped": dropped}}
    position = under_declaration(position, spec, constraints_of(spec, paths.table.rules()), **done)
    metadata = position.next_metadata(run_id, kind="schema")
    commit = commit_columns(spec, paths, metadata, changes, renamed=renamed, tell=tell)
    row = LedgerRow.of(commit, position.table_id)
    put_rows(paths, row)
    return row
