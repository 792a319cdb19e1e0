"""Where the fields of a declaration contradict one another, each named by the field to edit.

``StreamSpec`` refuses to exist while any of these holds, and all are found at once: a person who
has to mend a file wants to mend it in one go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple

from ingestion.declaration.formats import FORMATS, DebeziumOptions


class RuleViolation(NamedTuple):
    """One disagreement: the field to edit, and what is wrong with it."""

    field: tuple[str, ...]
    problem: str


if TYPE_CHECKING:
    from ingestion.declaration.spec import StreamSpec


# Formats without fields: what the one column must be.
_BARE: Final = {"raw": "BINARY", "string": "STRING"}
_NESTED_OR_BYTES: Final = re.compile(r"ARRAY|MAP|STRUCT|BINARY")


def format_violations(spec: StreamSpec) -> Iterator[RuleViolation]:
    """Yield every disagreement between a format and other fields of ``spec``."""
    name, key = spec.format.type, spec.key_format.type
    if not FORMATS[key].for_keys:
        yield RuleViolation(("key_format",), f"`{key}` is no format of keys; write `json`")
    if spec.tombstone_policy == "delete":
        yield from _about_keys(spec)
    if name not in {"json", "json_schema"}:
        yield from _about_what_only_json_can(spec)
    if name in _BARE:
        yield from _about_one_column(spec, _BARE[name])
    if name == "csv":
        yield from _about_flat_columns(spec)
    if isinstance(spec.format.options, DebeziumOptions):
        yield from _about_debezium(spec, spec.format.options)


def _about_what_only_json_can(spec: StreamSpec) -> Iterator[RuleViolation]:
    name = spec.format.type
    for column in spec.value_columns:
        if "VARIANT" in column.type:
            problem = f"column {column.name}: `format: {name}` cannot fill a VARIANT"
            yield RuleViolation(("schema",), f"{problem}; write the type that it has")
    if spec.extra_fields == "keep":
        problem = f"`format: {name}` cannot keep them; write `ignore` or `reject`"
        yield RuleViolation(("extra_fields",), problem)


def _about_keys(spec: StreamSpec) -> Iterator[RuleViolation]:
    """Tell keys that no Kafka key could give, or not as the values do."""
    name = spec.key_format.type
    types = {column.name: column.type for column in spec.columns}
    of_keys = [types[key] for key in spec.keys if key in types]
    if name in _BARE and of_keys != [_BARE[name]]:
        problem = f"`{name}` reads exactly one key column, a {_BARE[name]}"
        yield RuleViolation(("key_format",), f"{problem}; the keys are {', '.join(of_keys)}")
    if name == "csv" and any(map(_NESTED_OR_BYTES.match, of_keys)):
        yield RuleViolation(("key_format",), "a field of CSV is none of these keys; write `json`")
    of_value = {column.name for column in spec.value_columns}
    for key in spec.keys:
        if key in spec.select and key in of_value:
            yield RuleViolation(
                ("select", key),
                f"it makes another {key} of the value's; a null value has only its Kafka key, to "
                "which it is not applied, so that the delete would miss its row; write "
                "`tombstones: quarantine`, or `ignore`",
            )


def _about_one_column(spec: StreamSpec, type_: str) -> Iterator[RuleViolation]:
    if [column.type for column in spec.value_columns] != [type_]:
        problem = f"`format: {spec.format.type}` fills exactly one column, a {type_}"
        yield RuleViolation(("schema",), f"{problem}; write for example `value {type_} NOT NULL`")


def _about_flat_columns(spec: StreamSpec) -> Iterator[RuleViolation]:
    for column in spec.value_columns:
        if _NESTED_OR_BYTES.match(column.type):
            problem = f"column {column.name}: a field of CSV is no {column.type}"
            yield RuleViolation(("schema",), f"{problem}; declare STRING")


def _about_debezium(spec: StreamSpec, options: DebeziumOptions) -> Iterator[RuleViolation]:
    known = [column.name for column in spec.value_columns]
    units = options.timestamps if isinstance(options.timestamps, dict) else {}
    for option, names in (("columns", options.columns), ("timestamps", units)):
        for name in names:
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}"
                yield RuleViolation(
                    ("format", option), f"{name!r} is not a column of `schema`; {hint}"
                )
    for name in spec.sequence_by:
        if name in known and name not in {*options.columns, *spec.keys}:
            yield RuleViolation(
                ("sequence_by",),
                f"a delete does not tell its {name} reliably; sequence by a column that `columns` "
                "takes from the envelope, such as `lsn: source.lsn`, or leave it out: Kafka keeps "
                "the order of each key",
            )


if TYPE_CHECKING:
    from ingestion.declaration.spec import StreamSpec

_NO_EQUALITY = re.compile(r"FLOAT|DOUBLE|ARRAY|MAP|STRUCT|VARIANT")
_OF_ONE_MODE = {
    "aggregates": "aggregate",
    "window": "aggregate",
    "deletes": "upsert",
    "ignore_null_updates": "upsert",
}
_NO_ORDER = re.compile(r"\b(MAP|VARIANT)\b")

__all__ = ["RuleViolation", "RuleViolationsError", "rule_violations"]


class RuleViolationsError(ValueError):
    """Every disagreement of one declaration.

    Attributes:
        violations: What to edit, one by one.
    """

    def __init__(self, violations: tuple[RuleViolation, ...]) -> None:
        """Compose the message of all of them."""
        super().__init__("; ".join(f"{'.'.join(at)}: {problem}" for at, problem in violations))
        self.violations = violations


def rule_violations(spec: StreamSpec) -> Iterator[RuleViolation]:
    """Yield every disagreement between the fields of ``spec``."""
    yield from _about_topics(spec)
    yield from _about_columns(spec, "keys", spec.keys)
    yield from _about_columns(spec, "sequence_by", spec.sequence_by)
    yield from _about_types(spec)
    yield from _about_mode(spec)
    yield from _about_transformation(spec)
    yield from format_violations(spec)
    if spec.tombstones == "delete" and not spec.tombstones_have_an_order:
        yield RuleViolation(
            ("tombstones",),
            f"a null value has no {', '.join(spec.sequence_by)}, so that a delete could not be "
            "placed; write `ignore` or `quarantine`, or sequence by _timestamp or by columns of "
            "`keys`",
        )
    if spec.quarantine_rate.warn_above > spec.quarantine_rate.fail_above:
        yield RuleViolation(
            ("quarantine_rate", "warn_above"),
            f"{spec.quarantine_rate.warn_above:g} lies above `fail_above`, "
            f"{spec.quarantine_rate.fail_above:g}, so that it would never warn; write at most that",
        )


def _about_mode(spec: StreamSpec) -> Iterator[RuleViolation]:
    mode = f"`mode: {spec.mode}`"
    if spec.write_mode.has_keys and not spec.keys:
        needed = f"missing; {mode} needs the columns that identify a row"
        yield RuleViolation(("keys",), f"{needed}, for example `keys: [{spec.columns[0].name}]`")
    if spec.keys and not spec.write_mode.has_keys:
        yield RuleViolation(("keys",), f"{mode} keeps every record as a row of its own; remove it")
    if spec.delivery == "at_least_once" and spec.mode == "aggregate":
        yield RuleViolation(
            ("delivery",),
            "a topic that is read again is folded again, and the sums would count it twice; write "
            "`exactly_once`",
        )
    if spec.sequence_by and not spec.write_mode.has_order:
        yield RuleViolation(("sequence_by",), f"{mode} lets no record win over another; remove it")
    if not spec.write_mode.has_deletes:
        if spec.apply_as_deletes:
            yield RuleViolation(("apply_as_deletes",), f"{mode} deletes no rows; remove it")
        if spec.tombstones == "delete":
            yield RuleViolation(
                ("tombstones",), f"{mode} deletes no rows; write `ignore` or `quarantine`"
            )
    for field, of_mode in _OF_ONE_MODE.items():
        if field in spec.model_fields_set and field not in spec.write_mode.fields:
            said = f"{mode} has no such thing; remove it, or write `mode: {of_mode}`"
            yield RuleViolation((field,), said)
    yield from spec.write_mode.problems(spec)


def _about_transformation(spec: StreamSpec) -> Iterator[RuleViolation]:
    columns, given = [c.name for c in spec.columns], {c.name for c in spec.value_columns}
    for name in spec.select:
        if name not in columns:
            near = get_close_matches(name, columns, n=1, cutoff=0.5)
            hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(columns)}"
            yield RuleViolation(("select", name), f"{name!r} is not a column of `schema`; {hint}")
    if spec.explode:
        yield from _about_explode(spec, spec.explode)
    if spec.transform and spec.select:
        yield RuleViolation(("select",), "declare either `select` or `transform`, not both")
    missing = [name for name in columns if name not in given and name not in spec.select]
    if missing and not spec.transform:
        yield RuleViolation(
            ("select",),
            f"nothing gives {', '.join(missing)}: neither `value_schema` nor `select` has it",
        )


def _about_explode(spec: StreamSpec, name: str) -> Iterator[RuleViolation]:
    types = {column.name: column.type for column in spec.value_columns}
    if spec.value_ddl is None:
        said = "missing; declare the value's columns there, the array among them"
        yield RuleViolation(("value_schema",), said)
    elif name not in types:
        near = get_close_matches(name, types, n=1, cutoff=0.5)
        hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(types)}"
        yield RuleViolation(("explode",), f"{name!r} is not a column of `value_schema`; {hint}")
    elif not types[name].startswith("ARRAY<"):
        said = f"{name} is {types[name]}; only the elements of an ARRAY can give rows"
        yield RuleViolation(("explode",), said)
    if spec.ignore_null_updates:
        yield RuleViolation(
            ("explode",),
            "with `ignore_null_updates` the elements of a record would be filled from each other; "
            "send whole rows",
        )


def _about_topics(spec: StreamSpec) -> Iterator[RuleViolation]:
    if spec.topic is None and not spec.topics and spec.topic_pattern is None:
        yield RuleViolation(
            ("topic",), f"missing; write for example `topic: {spec.name}`, or `topics: [a, b]`"
        )
    if spec.topic_pattern is not None and (spec.topic is not None or spec.topics):
        yield RuleViolation(("topic_pattern",), "declare topics by name or by pattern, not both")
    if spec.topic_pattern is not None and spec.starting.offsets is not None:
        yield RuleViolation(
            ("starting", "offsets"), "nobody can name every partition of a pattern; write a time"
        )
    if spec.table_per_topic and not spec.topics:
        yield RuleViolation(
            ("table_per_topic",),
            "each table is named for its topic when the file is loaded; write `topics: [a, b]`",
        )
    if spec.topic is not None and spec.topics:
        yield RuleViolation(("topics",), "declare either `topic` or `topics`, not both")
    for name in _twice(spec.topics):
        yield RuleViolation(("topics",), f"names {name!r} twice; remove one")


def _about_columns(spec: StreamSpec, field: str, names: tuple[str, ...]) -> Iterator[RuleViolation]:
    known = [column.name for column in spec.columns]
    allowed = [*known, "_timestamp"] if field == "sequence_by" else known
    for name in names:
        if name not in allowed:
            near = get_close_matches(name, allowed, n=1, cutoff=0.5)
            hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(allowed)}"
            yield RuleViolation((field,), f"{name!r} is not a column of `schema`; {hint}")
    for name in _twice(names):
        yield RuleViolation((field,), f"names {name!r} twice; remove one")


def _about_types(spec: StreamSpec) -> Iterator[RuleViolation]:
    types = {column.name: column.type for column in spec.columns}
    for name in spec.keys:
        if _NO_EQUALITY.match(types.get(name, "")):
            problem = f"{name} is {types[name]}, which has no reliable equality"
            yield RuleViolation(("keys",), f"{problem}; identify rows by other columns")
    for name in spec.sequence_by:
        if _NO_ORDER.search(types.get(name, "")):
            problem = f"{name} is {types[name]}, which has no order"
            yield RuleViolation(("sequence_by",), f"{problem}; name other columns")


def _twice(names: tuple[str, ...]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]
