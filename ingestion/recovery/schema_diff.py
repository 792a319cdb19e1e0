"""The effect of a changed declaration on the table: known before it happens, and without Spark.

    nothing   the table stays as it is
    evolve    a commit of its own makes the table fit: a column more, a NOT NULL less, a wider type
    onward    records say something else from the next run on; the rows that are there stay
    alter     ``oncelake alter`` makes the table fit: a column gets another name, or goes, or moves
    epoch     keys, order or mode say something else of every row: the topic must be read again
    refused   rows that are there cannot be what the declaration says

Which type is a wider one, ``SqlType.widens_to`` says, and its sink whether a table can get it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_type, system_columns
from oncelake.ingestion.declaration.gate import quarantining, rule_of
from oncelake.ingestion.declaration.modes import EXTRA_COLUMN
from oncelake.ingestion.declaration.partitions import DeclaredPartition, lookup_of
from oncelake.ingestion.declaration.spec import StreamSpec, meaning, meaning_changes
from oncelake.ingestion.declaration.sql import columns_in, quoted
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import RefusedError, SchemaChangedError
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.position import Position, read_position
from oncelake.ingestion.tables.commit_metadata import CONSTRAINTS, UNKNOWN, Identity
from oncelake.ingestion.tables.table import Rules, SinkTable

Effect = Literal["nothing", "evolve", "onward", "alter", "epoch", "refused"]
# `oncelake alter` notes what it does behind a commit of the stream, which such a table lacks.
_BY_HAND: Final = "or execute them yourself"
# The fields of changes that concern no column.
PARTITION_BY: Final = "partition_by"
SORT_BY: Final = "sort_by"
CLUSTER_BY: Final = "cluster_by"
_WORST: Final = ("refused", "epoch", "alter", "evolve", "onward", "nothing")


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaChange:
    """One thing that the declaration says otherwise than the table.

    Attributes:
        field: Where the declaration says it: a column, or a field of the file.
        what: What is different, in a sentence without its end.
        statement: What makes the table fit, where anything does: SQL, as far as its sink has any.
        column: The column that it is about, then.
        is_wider: Whether it gets a type that holds more.
        is_dropped: Whether it goes, and its values.
        remedy: What a person can do, where nothing is done.
    """

    field: str
    what: str
    effect: Effect
    statement: str | None = None
    column: DeclaredColumn | None = None
    is_wider: bool = False
    is_dropped: bool = False
    remedy: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaPlan:
    """The changes that the next run would make to the table before it reads.

    Attributes:
        table: Where it is; ``None`` when the first run will make it.
        is_ours: Whether the table has a commit of the stream.
        lookup: Which files are searched for the rows of a batch, if the table has partitions.
    """

    stream: str
    table: str | None
    changes: tuple[SchemaChange, ...]
    is_ours: bool = True
    lookup: str | None = None

    @property
    def effect(self) -> Effect:
        """The gravest effect of all."""
        found = {change.effect for change in self.changes}
        return next((each for each in _WORST if each in found), "nothing")

    @property
    def statements(self) -> tuple[str, ...]:
        """The SQL that makes the table fit, in order."""
        return tuple(each.statement for each in self.changes if each.statement)


def plan_schema_change(spec: StreamSpec, paths: StreamPaths) -> SchemaPlan:
    """Compare a declaration with the table as it is.

    Raises:
        RefusedError: the table is damaged, or not the one that the ledger remembers.
    """
    position = read_position(paths, RefusedError)
    if position is None:
        is_there = paths.table.log().exists
        changes = tuple(column_changes(spec, paths, is_ours=False)) if is_there else ()
        where, partitions = None, spec.partitions
        if is_there:
            where, partitions = paths.table.where, paths.table.partitions()
        lookup = _lookup(spec, partitions)
        return SchemaPlan(
            stream=spec.name, table=where, changes=changes, is_ours=False, lookup=lookup
        )
    changes = (
        *identity_changes(spec, position.identity),
        *column_changes(spec, paths),
        *layout_changes(spec, paths.table),
        *_onward_changes(spec, position, paths.table),
    )
    return SchemaPlan(
        stream=spec.name,
        table=paths.table.where,
        changes=changes,
        lookup=_lookup(spec, paths.table.partitions()),
    )


def _lookup(spec: StreamSpec, partitions: Sequence[DeclaredPartition]) -> str | None:
    """Say which files a batch searches; one that only adds rows searches none."""
    keys = spec.row_keys if spec.mode == "aggregate" else spec.keys
    return lookup_of(partitions, keys) if partitions and keys else None


def _onward_changes(
    spec: StreamSpec, position: Position, table: SinkTable
) -> Iterator[SchemaChange]:
    """Yield what makes records say something else than those which the table has read."""
    remedy = (
        "leave it so: it holds for records read from now on; or oncelake rebuild "
        f"{spec.name}, so that all rows follow it, by which `oncelake verify` compares them"
    )
    now = with_constraints(meaning(spec), constraints_of(spec, table.rules()))
    for field, what in meaning_changes(position.declaration, now):
        yield SchemaChange(field=field, what=what, effect="onward", remedy=remedy)


def identity_changes(spec: StreamSpec, known: Identity) -> Iterator[SchemaChange]:
    """Yield what makes every row, and its place in the order, mean something else."""
    if known == UNKNOWN:
        return
    again = f"oncelake rebuild {spec.name}, which builds a new table beside the old one"
    told = {
        "mode": (known.rule, spec.rule),
        "keys": (", ".join(known.keys), ", ".join(spec.keys)),
        "sequence_by": (", ".join(known.order), ", ".join(spec.sequence_by)),
    }
    for field, (before, now) in told.items():
        if before != now:
            what = f"was {before or 'not there'}, becomes {now or 'nothing'}"
            yield SchemaChange(field=field, what=what, effect="epoch", remedy=again)


def allowed_changes(
    spec: StreamSpec, paths: StreamPaths, *, is_ours: bool = True
) -> tuple[SchemaChange, ...]:
    """Return what a table's columns need before anything is read, where the declaration lets it.

    Args:
        is_ours: Whether the table has a commit of the stream; see ``column_changes``.

    Raises:
        SchemaChangedError: the table does not fit, and cannot, or must not, be made to.
    """
    changes = tuple(column_changes(spec, paths, is_ours=is_ours))
    wanted = tuple(each for each in changes if each.effect != "nothing")
    if wanted and (spec.schema_change != "evolve" or any(c.effect != "evolve" for c in wanted)):
        raise schema_changed(spec, paths, wanted, is_ours=is_ours)
    return wanted


def schema_changed(
    spec: StreamSpec,
    paths: StreamPaths,
    changes: tuple[SchemaChange, ...],
    *,
    is_ours: bool = True,
) -> SchemaChangedError:
    """Return the refusal of a table that does not fit, with what a person can do about it."""
    said = "; ".join(f"{each.field} {each.what}" for each in changes)
    if all(each.effect == "evolve" for each in changes):
        now = f"oncelake alter {spec.name} --yes does so now, or put `schema` back"
        remedy = (
            f"oncelake plan {spec.name} shows the statements; `schema_change: evolve` in "
            f"{spec.file} lets the next run make them, {now if is_ours else _BY_HAND}"
        )
    else:
        gravest = sorted(changes, key=lambda each: _WORST.index(each.effect))
        remedy = next(f"{each.field}: {each.remedy}" for each in gravest if each.remedy)
    return SchemaChangedError(
        spec.name,
        f"{paths.table.where} does not fit the declaration: {said}.",
        remedy=remedy,
    )


def column_changes(
    spec: StreamSpec, paths: StreamPaths, *, is_ours: bool = True
) -> Iterator[SchemaChange]:
    """Yield what the columns of a table that is there are otherwise than declared.

    Args:
        is_ours: Whether the table has a commit of the stream. One that others have made may lack
            our own columns, and cannot be rebuilt, since nothing was read into it.
    """
    table, columns = paths.table, paths.table.columns()
    if spec.is_log and not columns:
        # A topic has columns only once ours are noted.
        return
    instead = f"oncelake rebuild {spec.name}" if is_ours else _way_out(paths)
    declared, found = _both_sides(spec, columns, is_ours=is_ours)
    for new, old in pending_renames(spec, found).items() if is_ours else ():
        yield _renamed(spec, table, new, old, instead)
        if old in found and new not in found:
            found[new] = replace(found.pop(old), name=new)
    for name, column in declared.items():
        if name not in found:
            yield _added(column, paths)
            continue
        if name in spec.keys and column.nullable:
            # A record without its key is never a row.
            column = replace(column, nullable=found[name].nullable)
        yield from _filled(column, found[name], paths)
        another = f"give the new type another column, or {instead}"
        ways = another if is_ours else _ways_to_type(column, found[name], paths)
        may_widen = is_ours and _may_widen(column, found[name], spec)
        yield from _altered(column, found[name], paths, ways, may_widen=may_widen)
    for name in found.keys() - declared.keys():
        is_kept = not is_ours or why_fixed(spec, table, name) is not None
        drops = f"; or {_alter(spec)} drops it, and its values, or by `renamed_from` renames it"
        remedy = f"{_how_to_keep(found[name], table)}{'' if is_kept else drops}; or {instead}"
        yield _undeclared(found[name], remedy, is_kept=is_kept)
    yield from _file_changes(spec, table, instead, is_ours=is_ours)
    yield from _constraint_changes(spec, paths, instead)


def _both_sides(
    spec: StreamSpec, columns: Iterable[DeclaredColumn], *, is_ours: bool
) -> tuple[dict[str, DeclaredColumn], dict[str, DeclaredColumn]]:
    """Return the columns that are declared, and those that the table has, by name."""
    ours = {column.name: column for column in system_columns()}
    found = {column.name: column for column in columns if not (is_ours and column.name in ours)}
    declared = {column.name: column for column in spec.table_columns}
    if not is_ours:
        # Every row has a value in them, whether it must or not.
        declared |= {
            n: replace(c, nullable=n not in found or found[n].nullable) for n, c in ours.items()
        }
    return declared, found


def _undeclared(column: DeclaredColumn, remedy: str, *, is_kept: bool) -> SchemaChange:
    """Return what a column of the table is that the declaration lacks."""
    if how := column.filled_by:
        what = f"is not declared, and is filled by the table ({how})"
        return SchemaChange(field=column.name, what=what, effect="nothing")
    return SchemaChange(
        field=column.name,
        what=f"{column.type} is in the table, and not declared",
        effect="refused" if is_kept else "alter",
        column=None if is_kept else column,
        is_dropped=not is_kept,
        remedy=remedy,
    )


def pending_renames(spec: StreamSpec, names: Collection[str]) -> dict[str, str]:
    """Return the declared renames that a table of columns has not seen: the old by the new name."""
    pairs = spec.renamed_from.items()
    return {new: old for new, old in pairs if old in names or new not in names}


def why_fixed(spec: StreamSpec, table: SinkTable, *names: str) -> str | None:
    """Say why the table cannot rename or drop a column, by any name it has, if so."""
    if not spec.sink.kind.renames_columns:
        return "its sink does neither rename nor drop columns"
    if spec.mode == "aggregate":
        return "it is of a group, which was folded by it"
    if spec.unavailable == "keep":
        return "deletes are remembered with all columns"
    if {*names} & {*spec.never_null, *spec.sequence_by, spec.explode}:
        return "it identifies or orders rows"
    if any(name.startswith("_") for name in names):
        return "it is one of Oncelake's own"
    if {*names} & {each.column for each in table.partitions()}:
        return "the table is partitioned by it"
    if {*names} & {*table.sort_by()}:
        return f"the table is {'sorted' if spec.sink.kind.sorts_rows else 'clustered'} by it"
    rules = table.rules()
    for rule, sql in {**rules.constraints, **rules.generated}.items():
        with suppress(ValueError):
            if columns_in(sql).isdisjoint(name.lower() for name in names):
                continue
        return f"{rule} of the table may rest on it ({sql})"
    return rules.fixed_by or None


def _file_changes(
    spec: StreamSpec, table: SinkTable, instead: str, *, is_ours: bool
) -> Iterator[SchemaChange]:
    """Yield that the table is laid out otherwise; where nothing is declared, as it is."""
    partitions = [*map(str, spec.partitions)], [*map(str, table.partitions())]
    order, by = (CLUSTER_BY, spec.cluster_by) if spec.cluster_by else (SORT_BY, spec.sort_by)
    sorting = [*by], [*table.sort_by()]
    for field, (declared, found) in ((PARTITION_BY, partitions), (order, sorting)):
        # The order of partitions decides nothing but the names of folders.
        if not declared or declared == found or (field == PARTITION_BY and {*declared} == {*found}):
            continue
        what = f"is [{', '.join(declared)}], and the table's is [{', '.join(found)}]"
        # For an order of others, a declaration may have no words.
        write_it = f"write `{field}: [{', '.join(found)}]`"
        ways = [write_it if found and field == PARTITION_BY else "remove it"]
        ways[0] += ", as the table has it"
        kind, why = spec.sink.kind, table.rules().fixed_by
        if field == CLUSTER_BY and table.partitions() and not kind.clusters_partitions:
            why = f"`sink: {spec.sink.name}` clusters no table with partitions"
        is_able = is_ours and not why
        if is_able:
            ways.insert(0, f"{_alter(spec)} {kind.divides}")
        what += f"; {why}" if why else ""
        remedy = "; or ".join([*ways, instead])
        effect: Effect = "alter" if is_able else "refused"
        yield SchemaChange(field=field, what=what, effect=effect, remedy=remedy)


def layout_changes(spec: StreamSpec, table: SinkTable) -> Iterator[SchemaChange]:
    """Yield how the table shows its columns otherwise than declared, which no run depends on."""
    if not spec.sink.kind.renames_columns or table.rules().fixed_by:
        return
    found, declared = {each.name: each for each in table.columns()}, spec.table_columns
    for column in declared:
        if column.name in found and column.comment not in ("", found[column.name].comment):
            what = f"has another comment: {_alter(spec)} sets it"
            yield SchemaChange(field=column.name, what=what, effect="alter")
    there = [name for name in found if name in {each.name for each in declared}]
    due = [each.name for each in declared if each.name in found]
    if spec.sink.kind.orders_columns and there != due:
        what = f"the table has its columns in another order: {_alter(spec)} puts them as declared"
        yield SchemaChange(field="schema", what=what, effect="alter")


def _alter(spec: StreamSpec) -> str:
    return f"`oncelake alter {spec.name} --yes`"


def _renamed(spec: StreamSpec, table: SinkTable, new: str, old: str, instead: str) -> SchemaChange:
    there = {column.name for column in table.columns()} & {new, old}
    if there != {old}:
        which = "both are columns" if there else f"{old} is no column"
        what = f"is {old} so far by `renamed_from`, and {which} of the table"
        remedy = f"correct `renamed_from` in {spec.file}; or {instead}"
    elif why := _why_named(spec) or why_fixed(spec, table, new, old):
        what = f"is {old} in the table, which cannot rename it: {why}"
        remedy = f"declare it as {old}; or {instead}"
    else:
        what = f"is {old} in the table: {_alter(spec)} renames it"
        remedy = f"oncelake alter {spec.name} --yes, which keeps its values; or declare it as {old}"
        return SchemaChange(field=new, what=what, effect="alter", remedy=remedy)
    return SchemaChange(field=new, what=what, effect="refused", remedy=remedy)


def _why_named(spec: StreamSpec) -> str | None:
    if spec.transform and not spec.value_ddl:
        return "`transform` takes columns by the same names; declare those in `value_schema` first"
    return None


def _constraint_changes(
    spec: StreamSpec, paths: StreamPaths, instead: str
) -> Iterator[SchemaChange]:
    """Yield what the table asks of its rows, and a record does not tell."""
    rules, drop = paths.table.rules(), paths.sink.kind.statements.drop_constraint
    for name, sql in constraints_of(spec, rules).items():
        if why := _why_not_kept(spec, sql):
            kind = "constraint of the table" if rule_of(name) is None else "rule of `expect`"
            what = f"is a {kind}, {sql}, which cannot be kept: {why}"
            named = DeclaredColumn(name=name, type=SqlType(word=""), nullable=True, comment="")
            dropping = (
                f"{_statement(paths, drop, named)}, or " if drop and name in rules.checks else ""
            )
            remedy = f"{dropping}{instead}"
            yield SchemaChange(field=name, what=what, effect="refused", remedy=remedy)


def constraints_of(spec: StreamSpec, rules: Rules) -> dict[str, str]:
    """Return what is asked of the rows of a stream, as conditions of Spark SQL by their names.

    The table's constraints are; a generated column, where it is declared, which must be as the
    table computes it; and each rule of ``expect`` that quarantines.
    """
    computed = {name: sql for name, sql in rules.generated.items() if name in spec.types}
    of_columns = {f"generated {n}": f"{quoted(n)} <=> ({sql})" for n, sql in computed.items()}
    return {**rules.constraints, **of_columns, **quarantining(spec.expect)}


def with_constraints(declaration: Mapping[str, Any], asked: Mapping[str, str]) -> dict[str, Any]:
    """Put to what decides what a record says what the table asks of its rows."""
    return {**declaration, **({CONSTRAINTS: dict(asked)} if asked else {})}


def _why_not_kept(spec: StreamSpec, sql: str) -> str | None:
    """Say why it is not known of a record whether its row will meet a condition."""
    try:
        names = columns_in(sql)
    except ValueError as error:
        return str(error)
    if others := names - {name.lower() for name in spec.types}:
        return f"{', '.join(sorted(others))} is no column of `schema`"
    if not spec.has_whole_rows:
        return "a record does not say all that is in its row here"
    return None


def _how_to_keep(column: DeclaredColumn, table: SinkTable) -> str:
    if column.name == EXTRA_COLUMN:
        return "write `extra_fields: keep` again"
    if sql := table.rules().generated.get(column.name):
        by = f"`select: {{{column.name}: {json.dumps(sql)}}}`"
        return f"declare it as {column.as_ddl()}, by {by}, as the table computes it"
    if not column.nullable:
        return f"declare it as {column.as_ddl()}, which every record must have then"
    return "declare it still; a nullable column that no record fills stays null"


def _statement(paths: StreamPaths, text: str, column: DeclaredColumn) -> str:
    """Fill in a text of the sink's about a column of the table."""
    table = paths.sink.table_of(paths.stream)
    return paths.sink.kind.statement(text, column, table=table, where=paths.table.where)


def _way_out(paths: StreamPaths) -> str:
    return paths.sink.kind.way_out.format(stream=paths.stream)


def _evolved(
    paths: StreamPaths, column: DeclaredColumn, what: str, text: str, *, is_wider: bool = False
) -> SchemaChange:
    """Return a change that the next run makes where its sink can, by its text of it."""
    if not text:
        remedy = f"oncelake rebuild {paths.stream}, since its sink changes no columns"
        return SchemaChange(field=column.name, what=what, effect="refused", remedy=remedy)
    statement = _statement(paths, text, column)
    return SchemaChange(
        field=column.name,
        what=what,
        effect="evolve",
        statement=statement,
        column=column,
        is_wider=is_wider,
    )


def _added(column: DeclaredColumn, paths: StreamPaths) -> SchemaChange:
    what = f"{column.type} is new"
    if column.nullable:
        return _evolved(paths, column, what, paths.sink.kind.statements.add)
    return SchemaChange(
        field=column.name,
        what=f"{what}, and NOT NULL, which the rows that are there are not",
        effect="refused",
        remedy=f"declare `{column.name} {column.type}` without NOT NULL",
    )


def _filled(
    column: DeclaredColumn, found: DeclaredColumn, paths: StreamPaths
) -> Iterator[SchemaChange]:
    """Yield that a column takes no value, or no null, of a batch, since the table fills it."""
    is_required = found.filled_by == "identity" and column.nullable
    if is_required or found.filled_by in ("always identity", "generated"):
        yield SchemaChange(
            field=column.name,
            what=f"is declared, and the table alone may fill it ({found.filled_by})",
            effect="refused",
            remedy=f"leave it out of `schema`; or {_refit(column, found, paths)}",
        )


def _refit(column: DeclaredColumn, found: DeclaredColumn, paths: StreamPaths) -> str:
    """Say what makes a column of an empty table of others one as it is declared."""
    kind, wanted = paths.sink.kind, [str(found.filled_by)]
    wanted += ["type"] if found.type != kind.stored_type(column.type) else []
    refit = kind.statements.refit
    texts = [refit[each] for each in wanted if each in refit]
    if texts and column.nullable and not found.nullable:
        texts.append(kind.statements.take_nulls)
    statements = [_statement(paths, text, column) for text in texts]
    return "; ".join([*statements, f"or {_way_out(paths)}"]) if texts else _way_out(paths)


def _ways_to_type(column: DeclaredColumn, found: DeclaredColumn, paths: StreamPaths) -> str:
    """Say what to do about a type in an empty table of others."""
    refit = _refit(column, found, paths)
    try:
        is_declarable = parse_type(str(found.type)) == found.type
    except ValueError:
        is_declarable = False
    return f"declare it as {found.type}; or {refit}" if is_declarable else refit


def _may_widen(column: DeclaredColumn, found: DeclaredColumn, spec: StreamSpec) -> bool:
    """Tell whether all that was counted and remembered by a column holds by its wider type.

    Groups are folded by theirs, and a key is known again by as many places behind the point.
    """
    is_same_key = column.name not in spec.keys or column.type.scale == found.type.scale
    return spec.mode != "aggregate" and is_same_key


def _altered(
    column: DeclaredColumn, found: DeclaredColumn, paths: StreamPaths, ways: str, *, may_widen: bool
) -> Iterator[SchemaChange]:
    kind, is_ = paths.sink.kind, found.type
    due = kind.stored_type(column.type)
    if is_ != due:
        can_widen = may_widen and kind.can_widen(is_, due) and not paths.table.rules().fixed_by
        if not can_widen:
            what = f"is {is_} in the table, declared {column.type.without_required()}"
            yield SchemaChange(field=column.name, what=what, effect="refused", remedy=ways)
            return
        what = f"is {is_}, becomes {due}"
        yield _evolved(paths, column, what, kind.statements.widen, is_wider=True)
    if column.nullable and not found.nullable:
        yield _evolved(paths, column, "may be null from now on", kind.statements.take_nulls)
    elif not column.nullable and found.nullable:
        what = "is required of new records; the rows that are there may lack it"
        yield SchemaChange(field=column.name, what=what, effect="nothing")
