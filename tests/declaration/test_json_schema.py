"""Editors and the loader take the same files for right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import ValidationError

from oncelake.ingestion.declaration.files.loader import load_stream
from oncelake.ingestion.declaration.spec import StreamSpec, json_schema
from oncelake.ingestion.errors import InvalidSpecError

COMMITTED = Path(__file__).parents[2] / "assets" / "stream.schema.json"
ORDERS = {"topic": "orders", "schema": "id INT NOT NULL", "keys": ["id"]}


def json_schema_text() -> str:
    """Write the schema as ``oncelake schema`` prints it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def test_the_committed_schema_is_the_generated_one() -> None:
    """The file that editors read is up to date; ``oncelake schema`` prints its successor."""
    assert COMMITTED.read_text() == json_schema_text()


def test_the_schema_is_a_schema() -> None:
    """What is generated is valid JSON Schema, and describes every field."""
    Draft202012Validator.check_schema(json_schema())

    fields = json_schema()["properties"]
    assert "name" not in fields
    assert "ddl" not in fields
    assert [name for name, field in fields.items() if "description" not in field] == []


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="least"),
        pytest.param({"keys": "id", "sequence_by": "id"}, id="one word for a list"),
        pytest.param({"format": "json", "mode": "upsert"}, id="short format"),
        pytest.param({"format": {"type": "json"}}, id="format in full"),
        pytest.param({"quarantine_rate": {"warn_above": 0.01}}, id="part"),
        pytest.param({"follow": {"min_records": 1}}, id="pace"),
        pytest.param({"mode": "append", "keys": []}, id="append"),
        pytest.param({"mode": "scd2", "sequence_by": "id"}, id="history"),
        pytest.param({"mode": "aggregate", "aggregates": {"n": "count(*)"}}, id="aggregate"),
        pytest.param({"deletes": "soft", "apply_as_deletes": "id < 0"}, id="upsert"),
        pytest.param(
            {
                "expectations": [
                    {"type": "expect_column_to_exist", "severity": "info", "column": "id"}
                ]
            },
            id="expectation",
        ),
    ],
)
def test_what_the_loader_takes_the_editor_takes(fields: dict[str, Any]) -> None:
    """A right declaration is marked nowhere."""
    StreamSpec.model_validate({"name": "orders", **ORDERS, **fields})

    assert Draft202012Validator(json_schema()).is_valid({**ORDERS, **fields})


SHOP = {"topic": "t", "route_by": "type", "keys": "id"}


@pytest.mark.parametrize(
    ("tables", "is_right"),
    [
        (
            {"a": {"schema": "id INT"}, "b": {"when": [1], "schema": "id INT", "mode": "append"}},
            True,
        ),
        ({"a": {"schemma": "id INT"}}, False),
        ({"a": {"topic": "other"}}, False),
        ({"a": {"mode": 7}}, False),
    ],
)
def test_the_editor_knows_the_fields_of_a_table(tables: Any, *, is_right: bool) -> None:
    """Those of a declaration, without those that say where records come from."""
    validator = Draft202012Validator(json_schema())

    assert validator.is_valid({**SHOP, "tables": tables}) is is_right
    assert not validator.is_valid({"topic": "t", "tables": tables})


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"keyz": ["id"]}, id="unknown key"),
        pytest.param({"name": 1}, id="name"),
        pytest.param({"mode": "upsrt"}, id="mode"),
        pytest.param({"format": "jsn"}, id="format"),
        pytest.param({"format": {"type": "jsn"}}, id="format in full"),
        pytest.param({"topics": ["a"]}, id="topic and topics"),
        pytest.param({"topic": "a b"}, id="topic"),
        pytest.param({"sensor_seconds": 1}, id="bound"),
        pytest.param({"sensor_seconds": "60"}, id="quoted number"),
        pytest.param({"quarantine_rate": {"warn": 0}}, id="unknown key of a part"),
        pytest.param({"expectations": [{"column": "id"}]}, id="missing field of a part"),
        pytest.param({"mode": "append"}, id="keys of a mode without"),
        pytest.param({"mode": "append", "keys": [], "sequence_by": "id"}, id="order of append"),
        pytest.param({"mode": "scd2"}, id="history without an order"),
        pytest.param({"mode": "aggregate"}, id="aggregate of nothing"),
        pytest.param({"aggregates": {"n": "count(*)"}}, id="aggregates of an upsert"),
        pytest.param({"mode": "insert_only", "apply_as_deletes": "id < 0"}, id="deletes"),
        pytest.param({"mode": "scd2", "sequence_by": "id", "deletes": "soft"}, id="soft deletes"),
    ],
)
def test_what_the_editor_refuses_the_loader_refuses(fields: dict[str, Any]) -> None:
    """A wrong declaration is marked while it is written, and refused when it is loaded."""
    assert not Draft202012Validator(json_schema()).is_valid({**ORDERS, **fields})

    with pytest.raises(ValidationError):
        StreamSpec.model_validate({"name": "orders", **ORDERS, **fields})


_SCHEMA = json_schema()


def fields_of(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each field, those of its parts included."""
    for name, field in schema.get("properties", {}).items():
        yield (*path, name)
        for each in (field, *field.get("anyOf", ()), *field.get("oneOf", ())):
            part = _SCHEMA["$defs"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
            yield from fields_of(part, (*path, name))


_ODD = [
    *(5, -1, 1.5, True, None, "", "x y", "!", "9" * 400),
    *([], [1], [None], [{}], ["a", "a"], {}, {"a": 1}, {"a": {"b": [1]}}),
]
_OF_A_LIBRARY = re.compile(
    r"[Ii]nput should|should (have|be|match)|Value error|valid (string|integer|number)|"
    r"Field required|Unable to|Assertion"
)


@pytest.mark.parametrize("path", list(fields_of(_SCHEMA)), ids=".".join)
def test_no_words_of_a_library_reach_a_person(tmp_path: Path, path: tuple[str, ...]) -> None:
    """Whatever is written into a field, the answer is in words of ours."""
    answers = [_answer_to(tmp_path / "orders.yaml", path, odd) for odd in _ODD]

    assert [answer for answer in answers if _OF_A_LIBRARY.search(answer)] == []


def _answer_to(file: Path, path: tuple[str, ...], odd: object) -> str:
    """Return what is said of a declaration with this in that field; nothing when it is fine."""
    field = odd
    for name in reversed(path[1:]):
        field = {name: field}
    file.write_text(json.dumps({**ORDERS, path[0]: field}))
    try:
        load_stream(file)
    except InvalidSpecError as error:
        return str(error)
    return ""
