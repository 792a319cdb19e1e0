"""Where a declaration needs what its sink cannot do, each named by the field to edit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from oncelake.ingestion.declaration.aggregates import Aggregate, aggregates_of
from oncelake.ingestion.declaration.ddl import DeclaredColumn, system_columns
from oncelake.ingestion.declaration.fields import Declaration
from oncelake.ingestion.declaration.modes import MODES
from oncelake.ingestion.declaration.partitions import partition_violations, sort_violations
from oncelake.ingestion.declaration.rules.stream import renaming_advice
from oncelake.ingestion.declaration.rules.violations import Violation
from oncelake.ingestion.declaration.sinks import BESIDE, SINKS, KafkaSink, PostgresSink

LONGEST_NAME: Final = SINKS["postgres"].longest_name
LONGEST_TABLE: Final = LONGEST_NAME - len(BESIDE)
# Delta's own limit.
_MOST_CLUSTERED: Final = 4
_LONGEST_VARCHAR: Final = 10_485_760
_AS_TEXT: Final = "declare it as STRING, and `select` it as text, for example by to_json({0})"
_AS_JSON: Final = "declare it as VARIANT, of which it keeps the text of the JSON"


def sink_violations(spec: Declaration, columns: tuple[DeclaredColumn, ...]) -> Iterator[Violation]:
    """Yield every disagreement between a declaration and its sink.

    Args:
        spec: The declaration.
        columns: The table's columns, but for those of every table.
    """
    name, kind = spec.sink.name, spec.sink.kind
    if not kind.keeps(spec.mode):
        allowed = " or ".join(f"`mode: {mode}`" for mode in MODES if kind.keeps(mode))
        yield "mode", f"`sink: {name}` cannot keep `mode: {spec.mode}`; write {allowed}"
    if spec.deletion_vectors and not kind.marks_rows:
        yield "deletion_vectors", f"`sink: {name}` keeps none; remove it"
    if spec.sink.delta and spec.sink.delta.key_index:
        yield from _index_violations(spec)
    yield from _layout_violations(spec, columns)
    if kind.is_log:
        yield from _log_violations(spec)
    if spec.sink.kafka:
        yield from _loop_violations(spec, spec.sink.kafka)
    if spec.sink.postgres:
        yield from _name_violations(spec, spec.sink.postgres, columns)
    yield from _sketch_violations(spec)
    made_by = {column: each for each in aggregates_of(spec) for column in each.columns("INT")}
    for column in columns:
        if refused := _refused_name(spec, column):
            other, problem = refused
            advice = renaming_advice(column, other, spec.types)
            yield "schema", f"column {column.name!r}: {problem}; {advice}"
        for word in kind.refused_in(column.type):
            yield _refused_type(spec, column.name, word, made_by.get(column.name))


def _index_violations(spec: Declaration) -> Iterator[Violation]:
    if not MODES[spec.mode].has_keys:
        yield "sink", f"`key_index`: `mode: {spec.mode}` looks no keys up; remove it"
    elif not spec.deletion_vectors and (spec.mode != "insert_only" or spec.sequence_by):
        yield (
            "sink",
            "`key_index`: without `deletion_vectors: true` a batch writes every file anew that has "
            "one of its keys, and these are all to be read for the index; add it, or remove "
            "`key_index`",
        )


def _layout_violations(
    spec: Declaration, columns: tuple[DeclaredColumn, ...]
) -> Iterator[Violation]:
    kind, types = spec.sink.kind, {c.name: c.type for c in (*columns, *system_columns())}
    if spec.partition_by and not kind.partition_types:
        able = (name for name, each in SINKS.items() if each.partition_types)
        yield "partition_by", _unable(spec, "has no partitions", able)
    elif spec.partition_by:
        yield from partition_violations(
            spec.partition_by, types, kind.partition_types, has_columns=kind.computes_columns
        )
    if spec.sort_by and not kind.sorts_rows:
        able = (name for name, each in SINKS.items() if each.sorts_rows)
        yield "sort_by", _unable(spec, "sorts no rows", able)
    elif spec.sort_by:
        yield from sort_violations("sort_by", spec.sort_by, types)
    if spec.cluster_by and not kind.clustered_types:
        able = (name for name, each in SINKS.items() if each.clustered_types)
        yield "cluster_by", _unable(spec, "clusters no rows", able)
    elif spec.cluster_by:
        yield from _cluster_violations(spec)
        yield from sort_violations("cluster_by", spec.cluster_by, types, kind.clustered_types)


def _cluster_violations(spec: Declaration) -> Iterator[Violation]:
    if len(spec.cluster_by) > _MOST_CLUSTERED:
        yield "cluster_by", f"more columns than Delta clusters by; write at most {_MOST_CLUSTERED}"
    if spec.sort_by:
        yield "cluster_by", "`sort_by` sorts the rows already; remove it, or this"
    if spec.partition_by and not spec.sink.kind.clusters_partitions:
        why = f"`sink: {spec.sink.name}` clusters no table with partitions"
        yield "cluster_by", f"{why}; remove `partition_by`, or this"


def _unable(spec: Declaration, what: str, able: Iterator[str]) -> str:
    ways = " or ".join(f"`sink: {name}`" for name in able)
    return f"`sink: {spec.sink.name}` {what}; remove it, or write {ways}"


def _sketch_violations(spec: Declaration) -> Iterator[Violation]:
    for each in aggregates_of(spec) if spec.sink.name != "delta" else ():
        if each.function == "approx_distinct":
            why = f"its sketch is Spark's, and `sink: {spec.sink.name}` is written without Spark"
            yield ("aggregates", each.name), f"{why}; remove it"


def _refused_type(spec: Declaration, column: str, word: str, of: Aggregate | None) -> Violation:
    """Say which field makes a column of a type that the sink cannot keep."""
    problem = f"{column}: `sink: {spec.sink.name}` cannot keep a {word}"
    if of is not None:
        return ("aggregates", of.name), f"{problem}, which `{of.function}` needs; remove it"
    if column not in spec.types:
        return "extra_fields", f"{problem}; write `ignore` or `reject`"
    can_be_json = spec.format.fills_variants and "VARIANT" in spec.sink.kind.stored_as
    return "schema", f"{problem}; {_AS_JSON if can_be_json else _AS_TEXT.format(column)}"


def _refused_name(spec: Declaration, column: DeclaredColumn) -> tuple[str, str] | None:
    """Return a name that the sink, or the table of deletes beside it, cannot store, and why."""
    name, type_, kind, delta = column.name, column.type, spec.sink.kind, SINKS["delta"]
    if spec.sink.kafka and (other := spec.sink.kafka.refused_name(name, type_)):
        return other, f"{other!r} is no name in Avro, which takes letters, digits and _ alone"
    if other := kind.refused_name(name, type_):
        return other, f"`sink: {spec.sink.name}` stores no {other!r}, {kind.refusal_of_names}"
    if name in spec.remembered and (other := delta.refused_name(name, type_)):
        why = "deletes are remembered in a Delta table, which stores no"
        return other, f"{why} {other!r}, {delta.refusal_of_names}"
    return None


def _log_violations(spec: Declaration) -> Iterator[Violation]:
    """Yield what needs the rows of the table, which a log does not look up."""
    no_look = f"`sink: {spec.sink.name}` is a log, which "
    if spec.sequence_by:
        yield "sequence_by", f"{no_look}keeps the order in which records come; remove it"
    if spec.deletes == "soft":
        yield "deletes", f"{no_look}cannot mark a row that is there; remove it"
    if spec.ignore_null_updates:
        yield "ignore_null_updates", f"{no_look}cannot look up what a column was; remove it"


def _loop_violations(spec: Declaration, sink: KafkaSink) -> Iterator[Violation]:
    """Yield that a stream would read what it has written."""
    topic, pattern = sink.table_of(spec.name), spec.topic_pattern
    if topic in spec.subscribed or (pattern and re.fullmatch(pattern, topic)):
        yield "sink", f"it would write to a topic that it reads, {topic}; name another"


def _name_violations(
    spec: Declaration, sink: PostgresSink, columns: tuple[DeclaredColumn, ...]
) -> Iterator[Violation]:
    """Yield what PostgreSQL would cut short, or refuse, when the table is made."""
    schema, _, table = sink.table_of(spec.name).partition(".")
    for what, name, longest in (
        ("schema", schema, LONGEST_NAME),
        ("table", table, LONGEST_TABLE),
    ):
        if (size := len(name)) > longest:
            yield (
                "sink",
                f"the {what} {name} has {size} bytes, and may have {longest}; write "
                "`{postgres: {table: schema.table}}` with a shorter one",
            )
    for column in columns:
        if problem := _column_problem(column):
            yield "schema", f"column {column.name}: {problem}"


def _column_problem(column: DeclaredColumn) -> str | None:
    """Say why PostgreSQL takes no such column."""
    rename = "declare a shorter name, and `select` it from that of the records (`value_schema`)"
    if (size := len(column.name.encode())) > LONGEST_NAME:
        return f"its name has {size} bytes, and PostgreSQL takes {LONGEST_NAME}; {rename}"
    if column.type.word == "VARCHAR" and (column.type.precision or 0) > _LONGEST_VARCHAR:
        return f"PostgreSQL takes at most VARCHAR({_LONGEST_VARCHAR}); write that, or STRING"
    return None
