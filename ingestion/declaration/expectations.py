"""The arguments of declared expectations, by the schemas that Great Expectations ships as files.

The library itself takes seconds to import, and Spark with it: a declaration is loaded without.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from oncelake.ingestion.declaration.names import hint, suggest
from oncelake.ingestion.declaration.rules.violations import Violation

# What has no schema: of these only the name and the column are checked.
_WITHOUT_SCHEMA: Final = (
    "expect_column_values_to_be_dateutil_parseable",
    "expect_column_values_to_be_decreasing",
    "expect_column_values_to_be_increasing",
    "expect_column_values_to_be_json_parseable",
    "expect_column_values_to_match_json_schema",
)
# Arguments that name columns of the rows. Expectations of the table name what should be there.
_COLUMN_ARGUMENTS: Final = ("column", "column_A", "column_B", "column_list")
_ABOUT_THE_TABLE: Final = ("expect_table_", "expect_column_to_exist")
# Of every expectation: what a person may write is `type` and `severity`, which are read already.
_INTERNAL: Final = (
    *("id", "meta", "notes", "result_format", "description", "catch_exceptions", "metadata"),
    *("rendered_content", "severity", "windows", "batch_id"),
)
_BOUNDS: Final = ("min_value", "max_value")
# Where a word of a class's name begins.
_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
}


def argument_violations(expectation: str, arguments: Mapping[str, Any]) -> tuple[Violation, ...]:
    """Return what Great Expectations would refuse of an expectation, whatever the columns are.

    Where it is not installed, as without Dagster, nobody evaluates one.
    """
    if not can_evaluate():
        return ()
    return tuple(_violations(expectation, arguments))


def can_evaluate() -> bool:
    """Tell whether Great Expectations is installed."""
    return find_spec("great_expectations") is not None


def _violations(expectation: str, arguments: Mapping[str, Any]) -> Iterator[Violation]:
    if expectation in _WITHOUT_SCHEMA:
        if not isinstance(arguments.get("column"), str):
            yield (), f"missing: {expectation} needs `column`, the name of one"
        return
    if expectation not in _schemas():
        near = hint(expectation, (*_schemas(), *_WITHOUT_SCHEMA))
        yield "type", f"Great Expectations has no {expectation!r}{near}"
        return
    schema = _schema(expectation)
    properties, required = schema["properties"], schema.get("required", [])
    named = [name for name in properties if name not in _INTERNAL]
    for name, value in arguments.items():
        if name not in properties:
            yield name, f"{expectation} has no such argument; {suggest(name, named)}"
        elif not _is_allowed(value, properties[name]):
            yield name, f"{value!r} is no value for it; write {_described(properties[name])}"
    for name in required:
        if arguments.get(name) is None:
            yield (), f"missing: {expectation} needs `{name}`"
    has_bounds = set(_BOUNDS) <= properties.keys() and expectation.endswith("_between")
    if has_bounds and all(arguments.get(name) is None for name in _BOUNDS):
        yield (), f"missing: {expectation} needs `min_value`, `max_value`, or both"


def columns_asked(expectation: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the columns that an expectation asks the rows for, each behind its argument."""
    if expectation.startswith(_ABOUT_THE_TABLE):
        return
    for argument in _COLUMN_ARGUMENTS:
        value = arguments.get(argument)
        for column in value if isinstance(value, list | tuple) else (value,):
            if isinstance(column, str):
                yield argument, column


@cache
def _schemas() -> Mapping[str, Path]:
    """Return the schemas by the names of the expectations, in snake case as people write them."""
    package = find_spec("great_expectations")
    assert package is not None, "without the package nobody asks"
    assert package.origin is not None, "it is a package with files"
    folder = Path(package.origin).parent / "expectations" / "core" / "schemas"
    return {_WORD.sub("_", path.stem).lower(): path for path in folder.glob("Expect*.json")}


@cache
def _schema(expectation: str) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = json.loads(_schemas()[expectation].read_text(encoding="utf-8"))
    return schema


def _is_allowed(value: Any, schema: Mapping[str, Any]) -> bool:
    """Tell whether a value may be one of these; a schema's references are not checked."""
    forms = list(_forms(schema))
    if any("$ref" in form for form in forms) or value is None:
        return True
    plain = [form for form in forms if "type" in form]
    return not plain or any(_has_form(value, form) for form in plain)


def _forms(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and its alternatives."""
    yield schema
    for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _forms(inner)


def _has_form(value: Any, form: Mapping[str, Any]) -> bool:
    if isinstance(value, bool) and form["type"] != "boolean":
        return False
    if not isinstance(value, _TYPES[form["type"]]) or value not in form.get("enum", [value]):
        return False
    if form["type"] in ("number", "integer"):
        low, high = form.get("minimum", value), form.get("maximum", value)
        return bool(low <= value <= high)
    return not str(form.get("format", "")).startswith("date") or _is_date(str(value))


def _is_date(text: str) -> bool:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _described(schema: Mapping[str, Any]) -> str:
    forms = [form for form in _forms(schema) if "type" in form]
    words = (str(form.get("enum") or form.get("format") or form["type"]) for form in forms)
    return " or ".join(dict.fromkeys(word for word in words if word != "object"))
