"""Messages for people: the mistakes of a declaration, and bytes made harmless."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from oncelake.ingestion.declaration.fields import NOT_WRITTEN
from oncelake.ingestion.declaration.files.yaml_reader import FieldPath
from oncelake.ingestion.declaration.gate import Guard, Publish, Rule
from oncelake.ingestion.declaration.names import nearest
from oncelake.ingestion.declaration.parts import (
    FollowPace,
    Maintenance,
    QuarantineRate,
    Starting,
    Window,
)
from oncelake.ingestion.declaration.routes import RoutedFile
from oncelake.ingestion.declaration.rules.violations import RuleViolationsError
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import harmless

_FIELDS_OF: Final[Mapping[FieldPath, tuple[str, ...]]] = {
    (): tuple(
        field.alias or name
        for name, field in {**StreamSpec.model_fields, **RoutedFile.model_fields}.items()
        if name not in NOT_WRITTEN
    ),
    ("expect",): tuple(Rule.model_fields),
    ("publish",): tuple(Publish.model_fields),
    ("guard",): tuple(Guard.model_fields),
    ("follow",): tuple(FollowPace.model_fields),
    ("maintenance",): tuple(Maintenance.model_fields),
    ("quarantine_rate",): tuple(QuarantineRate.model_fields),
    ("window",): tuple(Window.model_fields),
    ("starting",): tuple(Starting.model_fields),
}
_RENAMED: Final = {
    "ddl": "schema",
    "primary_key": "keys",
    "value_ddl": "value_schema",
}
_EXAMPLES: Final = {
    "schema": "id BIGINT NOT NULL, name STRING",
    "type": "expect_column_values_to_be_unique",
}
_PATTERNS: Final = {
    "topic": "a topic is letters, digits, `.`, `_` and `-`, at most 249 of them",
    "topics": "a topic is letters, digits, `.`, `_` and `-`, at most 249 of them",
    "type": "write a Great Expectations type, such as expect_column_values_to_be_unique",
    "owners": "write an e-mail address, or team:name",
    "group": "write letters, digits and underscores",
    "tags": "write keys and values of letters, digits, `_`, `.` and `-`, 63 at most",
    "every": "write a number and a unit, such as `1 hour`, `15 minutes` or `1 day`",
    "retention_warning": "write a number and a unit, such as `24 hours` or `30 minutes`",
    "allowed_delay": "write a number and a unit, such as `10 minutes`",
    "schedule": "write five fields as cron does, such as `0 3 * * *`, or a name such as @daily",
    "apply_as_deletes": "write an SQL condition, such as `status = 'cancelled'`",
    "where": "write an SQL condition, such as `total > 0`",
    "select": "write an SQL expression, such as `upper(name)`",
    "expect": "a rule's name is letters, digits and underscores, 64 at most",
    "branch": "write a name of letters, digits and underscores, such as audit",
    "rule": "write an SQL condition, such as `total > 0`",
    "transform": "write package.module.function",
}
_COLUMNS: Final = ("schema", "value_schema")
_NO_START: Final = ("literal_error", "model_type", "model_attributes_type")
_STARTS: Final = (
    "write one of: `earliest`, `latest`, `{timestamp: 2024-01-31T00:00:00Z}`, or "
    "`{offsets: {orders: {0: 1200, 1: 1180}}}`, with one offset for each partition"
)
_MAP: Final = "must be a map, one `key: value` a line"
_TIME: Final = "write a time such as 2024-01-31T00:00:00Z"
_SAYS: Final[Mapping[str, str]] = {
    "value_error": "{error}",
    "literal_error": "write one of: {expected}",
    "string_type": "must be text; put it in quotes",
    "tuple_type": "must be a list, such as [a, b]",
    "mapping_type": _MAP,
    "dict_type": _MAP,
    "model_type": _MAP,
    "model_attributes_type": _MAP,
    "datetime_from_date_parsing": _TIME,
    "datetime_parsing": _TIME,
    "datetime_type": _TIME,
    "string_too_short": "must not be empty",
    **dict.fromkeys(
        ("date_type", "date_from_datetime_parsing", "date_from_datetime_inexact"),
        "write a date, such as 2024-01-31",
    ),
    "timezone_aware": f"has no zone; {_TIME}",
    "bool_type": "write true or false",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing to edit.

    Attributes:
        field: Where it is, empty for the whole file.
        text: What is wrong, and what to write instead.
        meant: The field that was probably meant, when another was written.
    """

    field: FieldPath
    text: str
    meant: str | None = None

    @property
    def is_missing(self) -> bool:
        """Tell whether the field is not there at all."""
        return self.text.startswith("missing")

    @property
    def touches(self) -> set[str]:
        """The top-level fields whose value cannot be relied on."""
        return {str(part) for part in (*self.field[:1], self.meant) if part is not None}


def problems_in(error: ValidationError) -> tuple[Problem, ...]:
    """Put everything that is wrong into plain words."""
    problems = [problem for details in error.errors() for problem in _in_words(details)]
    meant = {(*problem.field[:-1], problem.meant) for problem in problems if problem.meant}
    return tuple(one for one in problems if not (one.is_missing and one.field in meant))


def _in_words(details: ErrorDetails) -> list[Problem]:
    field = details["loc"]
    error = details.get("ctx", {}).get("error")
    if isinstance(error, RuleViolationsError):
        return [Problem(field=(*field, *at), text=problem) for at, problem in error.violations]
    if details["type"] == "extra_forbidden":
        return [_unknown_key(field)]
    return [Problem(field=field, text=_sentence(field, details))]


def _unknown_key(field: FieldPath) -> Problem:
    key, known = str(field[-1]), _FIELDS_OF.get(field[:1] if len(field) > 2 else field[:-1], ())
    meant = _RENAMED.get(key) or nearest(key, known)
    hint = f"did you mean `{meant}`?" if meant else f"there are: {', '.join(known)}"
    return Problem(field=field, text=f"unknown key; {hint}", meant=meant)


def _sentence(field: FieldPath, details: ErrorDetails) -> str:
    kind, value = details["type"], details["input"]
    names = [part for part in field if isinstance(part, str)] or [""]
    if kind == "missing":
        return f"missing; write for example `{names[-1]}: {_EXAMPLES.get(names[-1], '…')}`"
    if value is None:
        return "has no value; write one, or remove the line"
    if kind == "string_type" and names[-1] in _COLUMNS:
        return _columns_as_text(names[-1], value)
    if names[-2:] in (["starting"], ["starting", "at"]) and kind in _NO_START:
        text = _STARTS
    elif kind == "string_pattern_mismatch":
        text = next((_PATTERNS[n] for n in reversed(names) if n in _PATTERNS), details["msg"])
    else:
        text = _SAYS[kind].format(**details.get("ctx", {})) if kind in _SAYS else details["msg"]
    is_worth_showing = kind != "value_error" and isinstance(value, str | int | float)
    return f"{text}; found {_short(value)}" if is_worth_showing else text


def _columns_as_text(field: str, value: Any) -> str:
    """Say how columns are written: with those that were given as a map, or as a list."""
    given = value.items() if isinstance(value, dict) else value if isinstance(value, list) else ()
    columns = [
        f"{each['name']} {each['type']}"
        if isinstance(each, dict) and {"name", "type"} <= each.keys()
        else " ".join(map(str, each if isinstance(each, tuple) else (each,)))
        for each in given
    ]
    is_flat = columns and not any(set(column) & set("{}[]'") for column in columns)
    example = ", ".join(columns) if is_flat else _EXAMPLES["schema"]
    return f"columns are written as one text, as in SQL; write for example `{field}: {example}`"


def _short(value: str | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}…"


def printable(raw: bytes | str | None, *, longest: int = 120) -> str:
    """Write bytes as one line of text that is safe to show: cut, and ``harmless``."""
    if raw is None:
        return "null"
    text = raw if isinstance(raw, str) else raw[: 4 * longest].decode(errors="backslashreplace")
    safe = harmless(text).replace("\n", "\\n")
    unit = "characters" if isinstance(raw, str) else "bytes"
    is_whole = len(safe) <= longest and len(raw) <= 4 * longest
    return safe if is_whole else f"{safe[:longest]}… ({len(raw):,} {unit})"
