"""What people read: the mistakes of a declaration in their own words, and bytes made harmless."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ingestion.declaration.names import nearest
from ingestion.declaration.parts import QuarantineRate, Starting, Window
from ingestion.declaration.rules import RuleViolationsError
from ingestion.declaration.spec import StreamSpec
from ingestion.declaration.yaml_reader import FieldPath

FIELDS: Final = tuple(
    field.alias or name for name, field in StreamSpec.model_fields.items() if name != "name"
)

_FIELDS_OF: Final[Mapping[FieldPath, tuple[str, ...]]] = {
    (): FIELDS,
    ("quarantine_rate",): tuple(QuarantineRate.model_fields),
    ("window",): tuple(Window.model_fields),
    ("starting",): tuple(Starting.model_fields),
}
_RENAMED: Final = {
    "ddl": "schema",
    "columns": "schema",
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
    "every": "write a number and a unit, such as `1 hour`, `15 minutes` or `1 day`",
    "allowed_delay": "write a number and a unit, such as `10 minutes`",
    "schedule": "write five fields as cron does, such as `0 3 * * *`, or a name such as @daily",
    "apply_as_deletes": "write an SQL condition, such as `status = 'cancelled'`",
    "where": "write an SQL condition, such as `total > 0`",
    "select": "write an SQL expression, such as `upper(name)`",
    "transform": "write package.module.function",
}
_SAYS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "value_error": lambda context: str(context["error"]),
    "literal_error": lambda context: f"write one of: {context['expected']}",
    "string_type": lambda _: "must be text; put it in quotes",
    "tuple_type": lambda _: "must be a list, such as [a, b]",
    "mapping_type": lambda _: "must be a map, one `key: value` a line",
    "dict_type": lambda _: "must be a map, one `key: value` a line",
    "model_type": lambda _: "must be a map, one `key: value` a line",
    "model_attributes_type": lambda _: "must be a map, one `key: value` a line",
    "datetime_from_date_parsing": lambda _: "write a time such as 2024-01-31T00:00:00Z",
    "datetime_parsing": lambda _: "write a time such as 2024-01-31T00:00:00Z",
    "timezone_aware": lambda _: "has no zone; write a time such as 2024-01-31T00:00:00Z",
    "bool_type": lambda _: "write true or false",
    "int_type": lambda _: "must be a whole number, without quotes",
    "int_from_float": lambda _: "must be a whole number",
    "float_type": lambda _: "must be a number, without quotes",
    "finite_number": lambda _: "must be a finite number",
    "greater_than": lambda context: f"must be above {context['gt']}",
    "greater_than_equal": lambda context: f"must be at least {context['ge']:g}",
    "less_than_equal": lambda context: f"must be at most {context['le']:g}",
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
    """Put every finding into plain words."""
    found = [problem for details in error.errors() for problem in _in_words(details)]
    meant = {(*problem.field[:-1], problem.meant) for problem in found if problem.meant}
    return tuple(each for each in found if not (each.is_missing and each.field in meant))


def unknown_key(field: FieldPath) -> Problem:
    """Say that a key is unknown, and which one was probably meant."""
    key, known = str(field[-1]), _FIELDS_OF.get(field[:-1], ())
    meant = _RENAMED.get(key) or nearest(key, known)
    hint = f"did you mean `{meant}`?" if meant else f"there are: {', '.join(known)}"
    return Problem(field=field, text=f"unknown key; {hint}", meant=meant)


def _in_words(details: ErrorDetails) -> list[Problem]:
    field, kind, context = details["loc"], details["type"], details.get("ctx", {})
    error = context.get("error")
    if isinstance(error, RuleViolationsError):
        return [Problem(field=each.field, text=each.problem) for each in error.violations]
    if kind == "extra_forbidden":
        return [unknown_key(field)]
    return [Problem(field=field, text=_sentence(field, kind, context, details))]


def _sentence(
    field: FieldPath, kind: str, context: Mapping[str, Any], details: ErrorDetails
) -> str:
    names = [part for part in field if isinstance(part, str)] or [""]
    if kind == "missing":
        return f"missing; write for example `{names[-1]}: {_EXAMPLES.get(names[-1], '…')}`"
    value = details["input"]
    if value is None:
        return "has no value; write one, or remove the line"
    if kind == "string_pattern_mismatch":
        text = next((_PATTERNS[n] for n in reversed(names) if n in _PATTERNS), details["msg"])
    else:
        text = _SAYS[kind](context) if kind in _SAYS else details["msg"]
    is_worth_showing = kind != "value_error" and isinstance(value, str | int | float)
    return f"{text}; found {_short(value)}" if is_worth_showing else text


def _short(value: str | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}…"


def printable(raw: bytes | str | None, *, longest: int = 120) -> str:
    """Write bytes as text that is safe to show: cut, and with escapes for all that is not plain.

    Control characters would move a terminal's cursor or run its commands; marks of direction and
    characters without width would show a person something else than what is there.
    """
    if raw is None:
        return "null"
    text = raw if isinstance(raw, str) else raw[: 4 * longest].decode(errors="backslashreplace")
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    unit = "characters" if isinstance(raw, str) else "bytes"
    is_whole = len(safe) <= longest and len(raw) <= 4 * longest
    return safe if is_whole else f"{safe[:longest]}… ({len(raw):,} {unit})"
