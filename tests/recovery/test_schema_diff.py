"""The types of Delta's log and those of a declaration are compared as trees, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.recovery.schema_diff import column_changes
from oncelake.ingestion.settings import Settings

POINT = {"type": "struct", "fields": [
    {"name": "x", "type": "integer", "nullable": True, "metadata": {}},
    {"name": "y-z", "type": "decimal(5,2)", "nullable": True, "metadata": {}},
]}  # fmt: skip
POINTS = {"type": "array", "elementType": POINT, "containsNull": True}
NAMED = {"type": "map", "keyType": "string", "valueType": POINT, "valueContainsNull": True}
CODE = {"type": "struct", "fields": [
    {"name": "Code", "type": "string", "nullable": True, "metadata": {}},
]}  # fmt: skip
LENGTH = {"__CHAR_VARCHAR_TYPE_STRING": "struct<Code:varchar(3)>"}


def changes(folder: Path, declared: str, stored: Any, metadata: dict[str, str]) -> list[str]:
    """Return what differs of a column that is stored as one type and declared as another."""
    paths = StreamPaths.of("s", Settings(lake=folder))
    field = {"name": "v", "type": stored, "nullable": True, "metadata": metadata}
    DeltaTable.create(paths.data.path, Schema([Field.from_json(json.dumps(field))]))
    spec = StreamSpec.model_validate(
        {"name": "s", "topic": "t", "schema": f"v {declared}", "mode": "append"}
    )
    return [change.what for change in column_changes(spec, paths)]


@pytest.mark.parametrize(
    ("declared", "stored", "metadata"),
    [
        ("LONG", "long", {}),
        ("TIMESTAMP_LTZ", "timestamp", {}),
        ("DEC(5, 2)", "decimal(5,2)", {}),
        ("ARRAY<STRUCT<x: INT NOT NULL, `y-z`: DECIMAL(5, 2)>>", POINTS, {}),
        ("MAP<STRING, STRUCT<x: INT, `y-z`: DECIMAL(5, 2)>>", NAMED, {}),
        ("VARCHAR(3)", "string", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
        ("STRUCT<Code: VARCHAR(3)>", CODE, LENGTH),
    ],
    ids=str,
)
def test_the_type_that_was_declared_is_found_in_the_log(
    tmp_path: Path, declared: str, stored: Any, metadata: dict[str, str]
) -> None:
    """Neither spelling nor a NOT NULL within makes another type."""
    assert changes(tmp_path, declared, stored, metadata) == []


@pytest.mark.parametrize(
    ("declared", "stored", "metadata", "what"),
    [
        ("INT", "long", {}, "is BIGINT in the table, declared INT"),
        ("VARCHAR(2)", "string", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}, "is VARCHAR(3) in"),
        ("STRUCT<`y-z`: DECIMAL(5, 2), x: INT>", POINT, {}, "is STRUCT<x: INT, `y-z`: DECIMAL(5, "),
    ],
    ids=["width", "length", "order of fields"],
)
def test_another_type_is_named(
    tmp_path: Path, declared: str, stored: Any, metadata: dict[str, str], what: str
) -> None:
    """Both types are told in the words of a declaration."""
    (change,) = changes(tmp_path, declared, stored, metadata)

    assert what in change
