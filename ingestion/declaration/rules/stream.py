"""Where the fields of a declaration contradict one another, each named by the field to edit.

``StreamSpec`` refuses to exist while any of these holds, and all are reported at once: a person who
has to mend a file wants to mend it in one go. The rules of the write modes are in ``mode_rules``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.expectations import can_evaluate, columns_asked
from oncelake.ingestion.declaration.fields import Declaration
from oncelake.ingestion.declaration.formats import FORMATS, DebeziumOptions
from oncelake.ingestion.declaration.modes import (
    DELETED_COLUMN,
    EXTRA_COLUMN,
    OF_A_RECORD,
    RESERVED,
)
from oncelake.ingestion.declaration.names import nearest, plain_name, suggest
from oncelake.ingestion.declaration.routes import route_violations
from oncelake.ingestion.declaration.rules.violations import Violation
from oncelake.ingestion.declaration.sql import literal, parse_sql, quoted
from oncelake.ingestion.declaration.types import SqlType

_NO_EQUALITY: Final = ("FLOAT", "DOUBLE", "ARRAY", "MAP", "STRUCT", "VARIANT")
_NO_ORDER: Final = ("ARRAY", "MAP", "STRUCT", "VARIANT")
_NESTED_OR_BYTES: Final = ("ARRAY", "MAP", "STRUCT", "BINARY")
# The formats whose values are JSON, without the types of a schema.
JSON_FORMATS: Final = ("json", "json_schema")
_LENIENT: Final = (
    *("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL", "FLOAT", "DOUBLE"),
    *("STRING", "VARCHAR"),
)


def unknown_column(name: str, known: Collection[str], of: str = "schema") -> str:
    """Say that a name is not a column of a field, and which column was probably meant."""
    return f"{name!r} is not a column of `{of}`; {suggest(name, known, likeness=0.5)}"


def renaming_advice(column: DeclaredColumn, name: str, taken: Collection[str]) -> str:
    """Say how a field is read whose name, or that of one within it, no table can have."""
    if name != column.name:
        made, old = literal(plain_name(name)), f"{quoted(column.name)}.{quoted(name)}"
        of_fields = _by_select(column.name, f"named_struct({made}, {old})")
        return (
            "declare it in `value_schema`, and here with other names of its fields, which a "
            f"`select` gives them, such as {of_fields}"
        )
    other = plain_name(name, taken)
    return (
        f"declare it in `value_schema`, and here under another name, such as {other}, which "
        f"{_by_select(other, quoted(name))} gives it"
    )


def _by_select(name: str, text: str) -> str:
    return f"`select: {{{json.dumps(name)}: {json.dumps(text, ensure_ascii=False)}}}`"


def rule_violations(spec: Declaration) -> Iterator[Violation]:
    """Yield every disagreement between the fields of ``spec``."""
    yield from _topic_violations(spec)
    yield from _derived_violations(spec)
    yield from _rename_violations(spec)
    yield from _reserved_violations(spec)
    yield from _column_violations("keys", spec.keys, spec.types)
    yield from _column_violations("sequence_by", spec.sequence_by, spec.sequence_types)
    yield from _type_violations(spec)
    yield from _maintenance_violations(spec)
    yield from _metadata_violations(spec)
    yield from _transformation_violations(spec)
    yield from _sql_violations(spec)
    yield from _format_violations(spec)
    yield from route_violations(spec)
    if spec.record and not spec.format.options.uses_registry:
        problem = "only schemas of a registry name types"
        yield "record", f"{problem}; remove it, or leave records out by `where`"
    folds = spec.mode == "aggregate" or spec.ignore_null_updates
    if spec.backfill_from and (folds or spec.unavailable == "keep"):
        problem = "a day cannot be replayed where a record's effect depends on the rows before it"
        yield "backfill_from", f"{problem}; remove it"
    if spec.tombstones == "delete" and not spec.tombstones_have_an_order:
        problem = f"a null value has no {', '.join(spec.sequence_by)}"
        yield (
            "tombstones",
            f"{problem}, so that a delete could not be placed; write `ignore` or `quarantine`, or "
            "sequence by _timestamp or by columns of `keys`",
        )
    if spec.tombstones == "delete" and not spec.tombstones_have_a_key:
        unknown = ", ".join(name for name in spec.keys if name not in spec.metadata_columns)
        problem = f"neither `from_key` nor `from_headers` gives {unknown}"
        yield (
            "tombstones",
            f"{problem}, so that no row could be found; write `quarantine`, or add it",
        )
    warn, fail = spec.quarantine_rate.warn_above, spec.quarantine_rate.fail_above
    if warn > fail:
        problem = f"{warn:g} lies above `fail_above`, {fail:g}, so that it would never warn"
        yield ("quarantine_rate", "warn_above"), f"{problem}; write at most that"


def _maintenance_violations(spec: Declaration) -> Iterator[Violation]:
    upkeep, window = spec.maintenance, spec.rewind_window_days
    for name in ("keep_tombstones_days", "keep_quarantine_days"):
        days = getattr(upkeep, name)
        if days is not None and days < window:
            problem = f"{days} is less than `rewind_window_days`, {window}: a rewind needs them"
            yield ("maintenance", name), f"{problem}; write at least that"


def _topic_violations(spec: Declaration) -> Iterator[Violation]:
    if spec.topic is None and not spec.topics and spec.topic_pattern is None:
        yield "topic", f"missing; write for example `topic: {spec.name}`, or `topics: [a, b]`"
    if spec.topic_pattern is not None and (spec.topic is not None or spec.topics):
        yield "topic_pattern", "declare topics by name or by pattern, not both"
    if spec.topic_pattern is not None and spec.starting.offsets is not None:
        problem = "the partitions of a pattern are not known in advance; write a time"
        yield ("starting", "offsets"), problem
    if spec.table_per_topic and not spec.topics:
        yield "table_per_topic", "which topics? Write `topics: [a, b]`, or `topic_pattern`"
    if spec.topic is not None and spec.topics:
        yield "topics", "declare either `topic` or `topics`, not both"
    yield from _repetitions("topics", spec.topics)


def _derived_violations(spec: Declaration) -> Iterator[Violation]:
    """Refuse what is said of a schema that comes with the records, where none does."""
    if spec.schema_from is None:
        said: dict[str, object] = {"columns": spec.overrides, "exclude": spec.exclude}
        said |= {"on_new_field": spec.on_new_field, "on_wider_type": spec.on_wider_type}
        for field, value in said.items():
            if value:
                yield field, "the file has the columns itself; write them there, or no `schema: …`"
        return
    options, kind = spec.format.options, spec.schema_from.kind
    if kind == "registry" and not options.uses_registry:
        yield "schema", f"`format: {spec.format.type}` does not use a registry; write the columns"
    if kind == "embedded" and not getattr(options, "schemas", False):
        problem = "only `format: {type: debezium, schemas: true}` has its schema in each record"
        yield "schema", f"{problem}; write the columns"
    if spec.value_ddl or spec.select or spec.transform:
        problem = "computed columns need `schema` as DDL"
        yield "schema", f"{problem}; remove `value_schema`, `select` and `transform`, or write it"
    if spec.exclude and spec.on_new_field == "quarantine":
        yield "exclude", "with `on_new_field: quarantine` each record with such a field would go"


def _rename_violations(spec: Declaration) -> Iterator[Violation]:
    if spec.renamed_from and spec.schema_from:
        yield "renamed_from", "the records name the columns; write `schema` as DDL, or remove this"
        return
    for new, old in spec.renamed_from.items():
        if new not in spec.types:
            yield ("renamed_from", new), unknown_column(new, spec.types)
        elif spec.mode == "aggregate" and new not in spec.keys:
            yield ("renamed_from", new), "the table has groups, and no such column; remove it"
        if old in spec.types:
            yield (
                ("renamed_from", new),
                f"{old!r} is still a column of `schema`; remove one of them",
            )
    yield from _repetitions("renamed_from", tuple(spec.renamed_from.values()))


def _reserved_violations(spec: Declaration) -> Iterator[Violation]:
    """Refuse names that a batch, or a function's input, has already; engines fold case."""
    added = {DELETED_COLUMN} if spec.deletes == "soft" else set()
    added |= {EXTRA_COLUMN} if spec.extra_fields == "keep" else set()
    for column in spec.columns:
        if column.name.lower() in RESERVED | added:
            problem = f"column {column.name}: that name, in whatever case, is one of Oncelake's own"
            yield "schema", f"{problem}; {renaming_advice(column, column.name, spec.types)}"
    hidden = {*OF_A_RECORD} - {*spec.record_names}
    if spec.transform and spec.value_ddl and hidden:
        problem = f"`transform` gets the record's own {', '.join(sorted(hidden))}"
        yield "value_schema", f"{problem}; remove the value's, or write `select` instead"


def _column_violations(
    field: str, names: tuple[str, ...], allowed: Collection[str]
) -> Iterator[Violation]:
    for name in names:
        if name not in allowed:
            yield field, unknown_column(name, allowed)
    yield from _repetitions(field, names)


def _repetitions(field: str, names: tuple[str, ...]) -> Iterator[Violation]:
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield field, f"names {name!r} twice; remove one"


def _header_format_violations(spec: Declaration) -> Iterator[Violation]:
    types = spec.value_types
    for name, format_ in spec.header_format.items():
        at, fills = ("header_format", name), FORMATS[format_].fills
        if name not in spec.from_headers:
            yield at, unknown_column(name, spec.from_headers, of="from_headers")
        elif name in types and types[name].word not in fills:
            yield at, f"`{format_}` fills {' or '.join(fills)}, and {name} is {types[name]}"


def _type_violations(spec: Declaration) -> Iterator[Violation]:
    types = spec.types
    for name in spec.keys:
        if name in types and types[name].word in _NO_EQUALITY:
            problem = f"{name} is {types[name]}, which has no reliable equality"
            yield "keys", f"{problem}; identify rows by other columns"
    for name in spec.sequence_by:
        if name in types and types[name].word in _NO_ORDER:
            problem = f"{name} is {types[name]}, which has no order that all engines share"
            yield "sequence_by", f"{problem}; name other columns"
    for column in spec.value_columns:
        maps = [each for each in column.type.walk() if each.word == "MAP"]
        if any(each.parts["key"].word != "STRING" for each in maps):
            problem = f"column {column.name}: the names in a value are texts of any length"
            yield (
                spec.value_field,
                f"{problem}; write MAP<STRING, …>, or, where `select` makes it, declare "
                "`value_schema` without it",
            )


def _metadata_violations(spec: Declaration) -> Iterator[Violation]:
    """Refuse columns that headers and Kafka key cannot give."""
    types = spec.value_types
    for name in spec.from_headers:
        at = ("from_headers", name)
        if name not in types:
            yield at, unknown_column(name, types)
        elif types[name].contains(*_NO_ORDER):
            problem = f"{name} is {types[name]}, and a header is one text"
            yield at, f"{problem}; declare STRING, and convert it by `select`"
        elif name in spec.from_key:
            yield at, f"`from_key` gives {name}, too; remove one"
    yield from _header_format_violations(spec)
    yield from _column_violations("from_key", spec.from_key, types)
    if spec.from_key and spec.format.options.may_lack_columns:
        yield "from_key", "the rows of an envelope have the columns of their key; remove it"
    if spec.explode in spec.metadata_columns:
        yield "explode", f"{spec.explode} does not come from the value; name an array that does"
    if not spec.payload_columns:
        field = "from_key" if spec.from_key else "from_headers"
        yield field, "no column is left for the value; declare one, or remove this"


def _transformation_violations(spec: Declaration) -> Iterator[Violation]:
    for name in spec.select:
        if name not in spec.types:
            yield ("select", name), unknown_column(name, spec.types)
    if spec.explode:
        yield from _explode_violations(spec, spec.explode)
    if spec.transform and spec.select:
        yield "select", "declare either `select` or `transform`, not both"
    if "on_filtered" in spec.model_fields_set and spec.where is None:
        yield "on_filtered", "no `where` leaves a record out; declare one, or remove this"
    elif "on_filtered" in spec.model_fields_set and spec.transform and spec.on_filtered == "delete":
        problem = "`transform` makes the key, and is not asked about what `where` leaves out"
        yield "on_filtered", f"{problem}; write `keep`, or let `apply_as_deletes` delete"
    missing = [name for name in spec.types if name not in {*spec.value_types, *spec.select}]
    if missing and not spec.transform:
        names = ", ".join(missing)
        yield "select", f"nothing gives {names}: neither `value_schema` nor `select` has it"


def _sql_violations(spec: Declaration) -> Iterator[Violation]:
    """Refuse names that are no columns; only Spark checks functions and types."""
    asked: dict[str, SqlType | None] = {**spec.value_types, **dict.fromkeys(spec.record_names)}
    texts = [(("where",), spec.where), *((("select", k), sql) for k, sql in spec.select.items())]
    for at, text in texts:
        yield from _name_violations(at, text, asked, of=spec.value_field)
    yield from _name_violations(("apply_as_deletes",), spec.apply_as_deletes, spec.types)


def _name_violations(
    at: tuple[str, ...], text: str | None, columns: Mapping[str, SqlType | None], of: str = "schema"
) -> Iterator[Violation]:
    for name, known in unknown_names(text, columns) if text else ():
        column, _, part = name.rpartition(".")
        of_column = f"{column}` in `{of}" if column else of
        shown = [each for each in known if each not in OF_A_RECORD] or known
        near = nearest(part, known, likeness=0.5)
        yield at, unknown_column(part, [near] if near else shown, of=of_column)


def column_violations(
    spec: Declaration, columns: Mapping[str, SqlType | None]
) -> Iterator[Violation]:
    """Yield fields that name columns which the table, whose columns are given, lacks."""
    yield from _gate_violations(spec, columns)
    named: list[tuple[tuple[str | int, ...], str]] = [
        (("expectations", nth, argument), name)
        for nth, each in enumerate(spec.expectations)
        for argument, name in columns_asked(each.type, each.arguments)
    ]
    for at, name in named:
        if name not in columns:
            near = suggest(name, columns, likeness=0.5)
            yield at, f"{name!r} is not a column of the table; {near}"


def _gate_violations(
    spec: Declaration, columns: Mapping[str, SqlType | None]
) -> Iterator[Violation]:
    for name, each in spec.expect.items():
        at, quarantines = ("expect", name), each.on_miss == "quarantine"
        yield from _name_violations(
            (*at, "rule"), each.rule, spec.types if quarantines else columns
        )
        if quarantines and not spec.has_whole_rows:
            problem = "a record does not say all that is in its row here"
            yield (*at, "on_miss"), f"{problem}; write `warn`, or `refuse` with `publish: checked`"
    needs_gate = [f"expect.{n}" for n, each in spec.expect.items() if each.on_miss == "refuse"]
    needs_gate += ["guard"] if spec.guard.is_declared else []
    if needs_gate and not spec.publish.is_checked:
        problem = "missing; what may hold a batch back is judged before the commit"
        yield "publish", f"{problem}: write `publish: checked`, or remove {needs_gate[0]}"
    if spec.publish.is_checked and spec.expectations and not can_evaluate():
        problem = "Great Expectations is not installed, and no batch would pass without it"
        yield "expectations", f"{problem}; pip install 'WHEEL[dagster]', or write `expect`"
    if spec.publish.branch and not spec.sink.kind.has_branches:
        problem = f"`sink: {spec.sink.name}` has no branches"
        yield ("publish", "branch"), f"{problem}; write `publish: checked`"
    lacking = {
        "share_of_deletes": "deletes" * (not spec.write_mode.has_deletes),
        "new_keys": "keys" * (not spec.write_mode.has_keys),
    }
    if spec.guard.at_least and not spec.guard.is_declared:
        yield "guard", "missing: a limit, such as `share_of_deletes: 0.5`"
    if spec.publish.is_checked and spec.format.options.truncate_policy == "apply":
        problem = "`apply` empties the table by a commit of its own, which nothing judges"
        yield ("format", "on_truncate"), f"{problem}; write `stop`, or `quarantine`"
    for field in (name for name in lacking if getattr(spec.guard, name) is not None):
        what = lacking[field] or "way to look rows up" * spec.is_log
        if what := what or "row that stands for its key" * (spec.mode == "scd2"):
            yield ("guard", field), f"this table has no {what}; remove it"


def _explode_violations(spec: Declaration, name: str) -> Iterator[Violation]:
    types = spec.value_types
    if spec.value_ddl is None:
        yield "value_schema", "missing; declare the value's columns there, the array among them"
    elif name not in types:
        yield "explode", unknown_column(name, types, of="value_schema")
    elif types[name].word != "ARRAY":
        yield "explode", f"{name} is {types[name]}; only the elements of an ARRAY can give rows"
    if spec.ignore_null_updates:
        yield (
            "explode",
            "with `ignore_null_updates` the elements of a record would be filled from each other; "
            "send whole rows",
        )


def _format_violations(spec: Declaration) -> Iterator[Violation]:
    name, fills = spec.format.type, FORMATS[spec.format.type].fills
    if spec.tombstone_policy == "delete" or spec.from_key:
        yield from _key_violations(spec)
    if name not in JSON_FORMATS:
        yield from _json_only_violations(spec)
    yield from _leniency_violations(spec)
    if fills and not _is_one([column.type for column in spec.payload_columns], fills):
        problem = f"`format: {name}` fills exactly one column, a {fills[0]}"
        yield "schema", f"{problem}; write for example `value {fills[0]} NOT NULL`"
    if name == "csv":
        for column in spec.payload_columns:
            if column.type.word in _NESTED_OR_BYTES:
                problem = f"column {column.name}: a field of CSV is no {column.type}"
                yield "schema", f"{problem}; declare STRING"
    if isinstance(spec.format.options, DebeziumOptions):
        yield from _debezium_violations(spec, spec.format.options)


def _leniency_violations(spec: Declaration) -> Iterator[Violation]:
    if spec.leniency and spec.format.type not in JSON_FORMATS:
        problem = f"`format: {spec.format.type}` says the type of each value, or has only text"
        yield "types", f"{problem}; `lenient` is for JSON's formats: remove it"
        return
    types = spec.value_types
    for name in spec.leniency:
        if name not in types:
            yield ("types", name), unknown_column(name, types, of=spec.value_field)
        elif types[name].word not in _LENIENT:
            problem = f"{name} is {types[name]}; only a number or a STRING can be lenient"
            yield ("types", name), f"{problem}; remove it"
        elif name in spec.from_headers:
            yield ("types", name), f"{name} comes from a header, which is a text; remove it"


def _json_only_violations(spec: Declaration) -> Iterator[Violation]:
    name = spec.format.type
    for column in spec.payload_columns:
        if column.type.contains("VARIANT") and not spec.format.fills_variants:
            problem = f"column {column.name}: `format: {name}` cannot fill a VARIANT"
            yield "schema", f"{problem}; write the type that it has"
    if spec.extra_fields == "keep":
        yield "extra_fields", f"`format: {name}` cannot keep them; write `ignore` or `reject`"


def _is_one(types: Sequence[SqlType], fills: Collection[str]) -> bool:
    return len(types) == 1 and types[0].word in fills


def _key_violations(spec: Declaration) -> Iterator[Violation]:
    """Refuse keys that no Kafka key could give, or not as the values do."""
    name, types = spec.key_format.type, {**spec.value_types, **spec.types}
    of_keys = [types[key] for key in spec.key_columns if key in types]
    fills = FORMATS[name].fills
    if fills and spec.key_columns and not _is_one(of_keys, fills):
        problem = f"`{name}` reads exactly one key column, a {' or '.join(fills)}"
        yield "key_format", f"{problem}; the keys are {', '.join(map(str, of_keys))}"
    if name == "csv" and any(type_.word in _NESTED_OR_BYTES for type_ in of_keys):
        yield "key_format", "a field of CSV is none of these keys; write `json`"
    if any(type_.contains("VARIANT") for type_ in of_keys):
        field = "from_key" if spec.from_key else "keys"
        yield field, "a Kafka key fills no VARIANT; write the type that it has"
    for key in spec.keys if spec.tombstone_policy == "delete" else ():
        if key in spec.select and key in spec.value_types:
            yield (
                ("select", key),
                f"it makes another {key} of the value's; a null value has only its Kafka key, to "
                "which it is not applied, so that the delete would miss its row; write "
                "`tombstones: quarantine`, or `ignore`",
            )


def _debezium_violations(spec: Declaration, options: DebeziumOptions) -> Iterator[Violation]:
    known = {column.name: column.type for column in spec.payload_columns}
    units = options.timestamps if isinstance(options.timestamps, dict) else {}
    for option, names in (("columns", options.columns), ("timestamps", units)):
        for name in names:
            if name not in known:
                yield ("format", option), unknown_column(name, known)
    for name in spec.sequence_by:
        if name in known and name not in {*options.columns, *spec.keys}:
            yield (
                "sequence_by",
                f"a delete does not tell its {name} reliably; sequence by a column that `columns` "
                "takes from the envelope, such as `lsn: source.lsn`, or leave it out: Kafka keeps "
                "the order of each key",
            )
    if options.on_truncate == "apply" and (problem := _truncate_problem(spec)):
        yield ("format", "on_truncate"), f"`apply`: {problem}; write `stop`, or `quarantine`"


def _truncate_problem(spec: Declaration) -> str | None:
    """Say why a TRUNCATE of the source cannot empty the table."""
    if spec.mode != "upsert" or spec.deletes != "hard":
        return "it deletes the rows of `mode: upsert` with `deletes: hard`"
    if spec.route or not (spec.topic or spec.table_per_topic):
        return "it needs a topic that is one table of the source"
    if why := spec.sink.kind.cannot.get("erase"):
        return f"`sink: {spec.sink.name}` cannot delete its rows: {why}"
    return None


def unknown_names(
    text: str, columns: Mapping[str, SqlType | None]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each column, or field of a STRUCT, that an expression names and that is not there.

    Spark ignores case, and decides: what cannot be checked here passes.

    Args:
        text: The expression.
        columns: Types by name; ``None`` for a type that is not checked.

    Yields:
        The name as written, up to the part that is unknown, and the names that there are.
    """
    from sqlglot import exp

    told = set()
    for column in parse_sql(text).find_all(exp.Column):
        names = [part.name for part in column.parts]
        if column.is_star or (found := _unknown_part(names, columns)) is None:
            continue
        if found[0] not in told:
            told.add(found[0])
            yield found


def _unknown_part(
    names: list[str], columns: Mapping[str, SqlType | None]
) -> tuple[str, tuple[str, ...]] | None:
    known: Mapping[str, SqlType | None] = columns
    for nth, name in enumerate(names, 1):
        by_name = {each.lower(): type_ for each, type_ in known.items()}
        if name.lower() not in by_name:
            return ".".join(names[:nth]), tuple(known)
        type_ = by_name[name.lower()]
        while type_ is not None and type_.word == "ARRAY":
            type_ = type_.parts["element"]
        if type_ is None or type_.word != "STRUCT":
            return None
        known = type_.parts
    return None
