"""Where a format and the rest of a declaration contradict one another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from ingestion.contradiction import Contradiction
from ingestion.formats import FORMATS
from ingestion.formats.options import DebeziumOptions

if TYPE_CHECKING:
    from ingestion.spec import StreamSpec


# Formats without fields: what the one column must be.
_BARE: Final = {"raw": "BINARY", "string": "STRING"}
_NESTED_OR_BYTES: Final = re.compile(r"ARRAY|MAP|STRUCT|BINARY")


def format_contradictions(spec: StreamSpec) -> Iterator[Contradiction]:
    """Yield every disagreement between a format and other fields of ``spec``."""
    name, key = spec.format.type, spec.key_format.type
    if not FORMATS[key].for_keys:
        yield Contradiction(("key_format",), f"`{key}` is no format of keys; write `json`")
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


def _about_what_only_json_can(spec: StreamSpec) -> Iterator[Contradiction]:
    name = spec.format.type
    for column in spec.value_columns:
        if "VARIANT" in column.type:
            problem = f"column {column.name}: `format: {name}` cannot fill a VARIANT"
            yield Contradiction(("schema",), f"{problem}; write the type that it has")
    if spec.extra_fields == "keep":
        problem = f"`format: {name}` cannot keep them; write `ignore` or `reject`"
        yield Contradiction(("extra_fields",), problem)


def _about_keys(spec: StreamSpec) -> Iterator[Contradiction]:
    """Tell keys that no Kafka key could give, or not as the values do."""
    name = spec.key_format.type
    types = {column.name: column.type for column in spec.columns}
    of_keys = [types[key] for key in spec.keys if key in types]
    if name in _BARE and of_keys != [_BARE[name]]:
        problem = f"`{name}` reads exactly one key column, a {_BARE[name]}"
        yield Contradiction(("key_format",), f"{problem}; the keys are {', '.join(of_keys)}")
    if name == "csv" and any(map(_NESTED_OR_BYTES.match, of_keys)):
        yield Contradiction(("key_format",), "a field of CSV is none of these keys; write `json`")
    of_value = {column.name for column in spec.value_columns}
    for key in spec.keys:
        if key in spec.select and key in of_value:
            yield Contradiction(
                ("select", key),
                f"it makes another {key} of the value's; a null value has only its Kafka key, to "
                "which it is not applied, so that the delete would miss its row; write "
                "`tombstones: quarantine`, or `ignore`",
            )


def _about_one_column(spec: StreamSpec, type_: str) -> Iterator[Contradiction]:
    if [column.type for column in spec.value_columns] != [type_]:
        problem = f"`format: {spec.format.type}` fills exactly one column, a {type_}"
        yield Contradiction(("schema",), f"{problem}; write for example `value {type_} NOT NULL`")


def _about_flat_columns(spec: StreamSpec) -> Iterator[Contradiction]:
    for column in spec.value_columns:
        if _NESTED_OR_BYTES.match(column.type):
            problem = f"column {column.name}: a field of CSV is no {column.type}"
            yield Contradiction(("schema",), f"{problem}; declare STRING")


def _about_debezium(spec: StreamSpec, options: DebeziumOptions) -> Iterator[Contradiction]:
    known = [column.name for column in spec.value_columns]
    units = options.timestamps if isinstance(options.timestamps, dict) else {}
    for option, names in (("columns", options.columns), ("timestamps", units)):
        for name in names:
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(known)}"
                yield Contradiction(
                    ("format", option), f"{name!r} is not a column of `schema`; {hint}"
                )
    for name in spec.sequence_by:
        if name in known and name not in {*options.columns, *spec.keys}:
            yield Contradiction(
                ("sequence_by",),
                f"a delete does not tell its {name} reliably; sequence by a column that `columns` "
                "takes from the envelope, such as `lsn: source.lsn`, or leave it out: Kafka keeps "
                "the order of each key",
            )
