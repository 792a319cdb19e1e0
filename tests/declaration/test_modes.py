"""What each write mode asks of a declaration; and its documented example is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from oncelake.ingestion.declaration.files.loader import load_stream
from oncelake.ingestion.declaration.modes import MODES
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import IdentityChangedError
from oncelake.ingestion.recovery.topics import changed_identity
from oncelake.ingestion.tables.commit_metadata import Identity
from tests.support.world import ROOT

EXAMPLES = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "modes.md").read_text(), re.DOTALL)
DDL = "id BIGINT NOT NULL, name STRING, at TIMESTAMP, ratio DOUBLE, price DECIMAL(9, 2)"
DDL += ", more MAP<STRING, INT>"
BASE = {
    "upsert": {"keys": "id"},
    "append": {},
    "insert_only": {"keys": "id"},
    "scd2": {"keys": "id", "sequence_by": "at"},
    "aggregate": {"keys": "id", "sequence_by": "at", "aggregates": {"n": "count(*)"}},
}


def declared(mode: str, **fields: Any) -> StreamSpec:
    """Return a stream of a mode."""
    base = {"name": "s", "topic": "t", "schema": DDL, "mode": mode, **BASE[mode]}
    return StreamSpec.model_validate({**base, **fields})


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_documented_examples_are_declarations(example: str, tmp_path: Path) -> None:
    """Each can be saved and run as it stands."""
    path = tmp_path / "orders.yaml"
    path.write_text(example)

    assert load_stream(path).table_columns


def test_every_mode_is_documented_with_an_example() -> None:
    """The examples name each mode."""
    named = {line.removeprefix("mode: ") for text in EXAMPLES for line in text.splitlines()}

    assert set(MODES) <= named


@pytest.mark.parametrize(
    ("mode", "fields", "said"),
    [
        ("append", {"keys": "id"}, "keys: `mode: append` keeps every record as a row of its own"),
        ("append", {"sequence_by": "at"}, "sequence_by: `mode: append` lets no record win"),
        ("append", {"tombstones": "delete"}, "tombstones: `mode: append` deletes no rows"),
        ("append", {"aggregates": {"n": "count(*)"}}, "aggregates: `mode: append` has no such"),
        ("scd2", {"ignore_null_updates": True}, "ignore_null_updates: `mode: scd2` has no such"),
        (
            "upsert",
            {"ignore_null_updates": True, "sequence_by": "at"},
            "ignore_null_updates: a record that comes late would need an order",
        ),
        (
            "upsert",
            {"ignore_null_updates": True, "deletes": "soft"},
            "ignore_null_updates: a row that stays when it is deleted has nothing to keep",
        ),
        ("scd2", {"deletes": "soft"}, "deletes: `mode: scd2` has no such thing"),
        ("insert_only", {"keys": []}, "keys: missing; `mode: insert_only` needs"),
        ("insert_only", {"apply_as_deletes": "id = 1"}, "apply_as_deletes: `mode: insert_only`"),
        ("scd2", {"sequence_by": []}, "sequence_by: `mode: scd2` needs exactly one column"),
        ("scd2", {"sequence_by": ["at", "name"]}, "sequence_by: `mode: scd2` needs exactly one"),
        ("scd2", {"schema": f"{DDL}, Current INT"}, "schema: column Current is one that"),
        ("upsert", {"track": "name"}, "track: `mode: upsert` has no such thing; remove it"),
        ("scd2", {"track": "nmae"}, "'nmae' is not a column of `schema`; did you mean `name`?"),
        ("scd2", {"track": "id"}, "track: id is a key, which is the same in all versions"),
        ("scd2", {"track": "more"}, "track: more is MAP<STRING, INT>, which has no reliable"),
        (
            "scd2",
            {"track": "name", "renamed_from": {"ratio": "old"}},
            "renamed_from: `track` cannot follow a rename",
        ),
        ("aggregate", {"aggregates": {}}, "aggregates: missing; `mode: aggregate` needs"),
        ("aggregate", {"aggregates": {"x": "sum"}}, "aggregates.x: write `function(column)`"),
        ("aggregate", {"aggregates": {"x": "summ(id)"}}, "did you mean `sum`?"),
        ("aggregate", {"aggregates": {"x": "sum(prise)"}}, "did you mean `price`?"),
        ("aggregate", {"aggregates": {"x": "sum(*)"}}, "'*' is not a column"),
        ("aggregate", {"aggregates": {"x": "sum(ratio)"}}, "declare the column as DECIMAL"),
        ("aggregate", {"aggregates": {"x": "avg(name)"}}, "adds whole numbers and DECIMALs"),
        (
            "aggregate",
            {"schema": f"{DDL}, share DECIMAL(38, 37)", "aggregates": {"x": "sum(share)"}},
            "DECIMALs of a scale below 37",
        ),
        ("aggregate", {"aggregates": {"x": "max(more)"}}, "needs values with an order"),
        ("aggregate", {"aggregates": {"x": "set(ratio)"}}, "needs values with a reliable equality"),
        ("aggregate", {"aggregates": {"x": "approx_distinct(at)"}}, "counts values of INT"),
        ("aggregate", {"aggregates": {"_x": "count(*)"}}, "a column's name is letters"),
        ("aggregate", {"aggregates": {"id": "count(*)"}}, "column id is also of key id"),
        (
            "aggregate",
            {"aggregates": {"x": "avg(id)", "X_sum": "sum(id)"}},
            "column X_sum is also of aggregate x",
        ),
        (
            "aggregate",
            {"sequence_by": [], "aggregates": {"x": "last(name)"}},
            "`last` needs an order between records",
        ),
        ("aggregate", {"extra_fields": "keep"}, "extra_fields: a group has no fields of its own"),
        (
            "aggregate",
            {"window": {"column": "name", "every": "1 hour"}},
            "window.column: name is STRING; write a TIMESTAMP column",
        ),
        (
            "aggregate",
            {"window": {"column": "att", "every": "1 hour"}},
            "window.column: 'att' is not a column of `schema`; did you mean `at`?",
        ),
        ("aggregate", {"window": {"column": "at", "every": "0 days"}}, "a window takes some time"),
    ],
)  # fmt: skip
def test_what_contradicts_a_mode_is_refused(mode: str, fields: Any, said: str) -> None:
    """Each mistake is named by its field, and with what to write instead."""
    with pytest.raises(ValidationError) as raised:
        declared(mode, **fields)

    assert said in str(raised.value)


def test_a_table_of_groups_has_its_own_columns() -> None:
    """Keys, the window and each aggregate with its state."""
    spec = declared(
        "aggregate",
        window={"column": "at", "every": "1 hour"},
        aggregates={
            "mean": "avg(price)",
            "newest": "last(name)",
            "values": "approx_distinct(name)",
        },
    )

    place = (
        "STRUCT<epoch: INT, sequence_1: TIMESTAMP, topic: STRING, partition: INT, offset: BIGINT>"
    )
    assert [(column.name, str(column.type)) for column in spec.table_columns] == [
        ("id", "BIGINT"),
        ("window_start", "TIMESTAMP"),
        ("window_end", "TIMESTAMP"),
        ("mean", "DOUBLE"),
        ("mean_sum", "DECIMAL(37, 2)"),
        ("mean_count", "BIGINT"),
        ("newest", "STRING"),
        ("newest_place", place),
        ("values", "BIGINT"),
        ("values_sketch", "BINARY"),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (declared("insert_only"), declared("insert_only").model_copy(update={"mode": "upsert"})),
        (
            declared("aggregate", aggregates={"x": "min(id)"}),
            declared("aggregate", aggregates={"x": "max(id)"}),
        ),
    ],
    ids=["mode", "aggregate of the same name"],
)
def test_a_table_is_not_written_on_in_another_mode(one: StreamSpec, other: StreamSpec) -> None:
    """Rows of one rule, and of another under the same columns, would be a table of neither."""
    known = Identity(
        cluster_id="c", topic_ids={}, keys=one.keys, order=one.sequence_by, rule=one.rule
    )

    assert changed_identity(one, known) is None
    with pytest.raises(IdentityChangedError, match=f"mode {re.escape(one.rule)}"):
        raise changed_identity(other, known) or AssertionError


def test_a_table_from_before_there_were_modes_is_an_upsert() -> None:
    """Its identity names none."""
    row = {"cluster_id": "c", "topic_ids": {}, "keys": ["id"], "order": []}

    assert Identity.of_row(row).rule == "upsert"
