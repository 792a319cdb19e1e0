"""Which names a stream's fields and columns may have, and that the advice about others works."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from oncelake.ingestion.declaration.files.yaml_reader import read_tree
from oncelake.ingestion.declaration.modes import (
    CURRENT,
    DELETED_COLUMN,
    EXTRA_COLUMN,
    RESERVED,
    VALID_FROM,
    VALID_TO,
    WINDOW_COLUMNS,
)
from oncelake.ingestion.declaration.names import plain_name
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import asks_for, quoted

INGESTION = Path(__file__).parents[2] / "ingestion"
AVRO = {"kafka": {"format": "avro"}}
# Names of a field that some program may take for something else.
ODD = {
    "blank": "a b",
    "point": "a.b",
    "sign": "@timestamp",
    "backtick": "x`y",
    "quotes": "q'\"",
    "newline": "a\nb",
    "statement": "x` FROM t; DROP TABLE t --",
    "accent": "naïve",
    "ours": "_Offset",
    "of a batch": "_disposition",
    "of the proof": "_row",
    "Spark's": "_metadata",
}
# Names within SQL that are of no column of a batch or a table.
NO_COLUMNS = {
    *(
        "_delta_log",
        "_last_checkpoint",
        "_sidecars",
        "_session",
        "_supported_endpoints",
        "_table",
        "_snapshots",
        "_rollbacks",
        "_known",
        "_clustered",
    ),
    *("_stack", "_gateway_client", "_error", "_cb", "_lsn", "_uuid", "_version", "_id", "_at"),
    *("_on", "_deleted_at", "_erased", "_written_off", "_ledger", "_between", "_count", "_sum"),
    *(
        "_place",
        "_sketch",
        "_to_be_unique",
        # Of a table of upkeep's own, beside all columns of a stream.
        "_place_",
        "_value_",
        "_topic_",
        "_partition_",
        "_offset_",
        "_of",
        "_op",
        "_no",
    ),
}


def declared(**fields: Any) -> StreamSpec:
    """A stream keyed by ``id``."""
    base = {"name": "orders", "topic": "t", "keys": ["id"], "schema": "id INT NOT NULL"}
    return StreamSpec.model_validate(base | fields)


@pytest.mark.parametrize("name", ODD.values(), ids=ODD)
def test_a_value_may_have_fields_of_any_name(name: str) -> None:
    """`value_schema`, `where` and `select` read them; only two names of one field are refused."""
    field = quoted(name)

    spec = declared(
        schema="id INT NOT NULL, other INT",
        value_schema=f"id INT, {field} INT, s STRUCT<{field}: INT>",
        where=f"{field} > 1 AND s.{field} > 2",
        select={"other": f"{field} + s.{field}"},
    )

    assert [column.name for column in spec.value_columns] == ["id", name, "s"]
    assert name.lower() not in spec.record_names
    with pytest.raises(ValidationError, match="differ only in case"):
        declared(
            value_schema=f"id INT, {field} INT, {quoted(name.upper() + 'Z')} INT, "
            f"{quoted(name.lower() + 'z')} INT"
        )


@pytest.mark.parametrize("name", ["__deleted", "__op", "_id", "_rev", "_deleted", "_extra_fields"])
@pytest.mark.parametrize("sink", ["delta", "iceberg", "postgres", "kafka", AVRO], ids=str)
def test_a_column_may_begin_as_ours_do(name: str, sink: Any) -> None:
    """Only what a table has of its own is taken, and of some only where it has it."""
    spec = declared(schema=f"id INT NOT NULL, {name} BOOLEAN", sink=sink, apply_as_deletes=name)

    assert [column.name for column in spec.table_columns] == ["id", name]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *(pytest.param(name, {}, id=name) for name in ("_topic", "_Offset", "_SEQ", "_epoch")),
        *(pytest.param(name, {}, id=name) for name in ("_partition", "_timestamp")),
        *(pytest.param(name, {}, id=name) for name in ("_Disposition", "_index", "_row", "_KEY")),
        pytest.param("_Deleted", {"deletes": "soft"}, id="mark of soft deletes"),
        pytest.param("_extra_Fields", {"extra_fields": "keep"}, id="extra fields"),
        pytest.param("a b", {}, id="blank in Delta"),
        pytest.param("a.b", {"sink": "iceberg"}, id="point in Iceberg"),
        pytest.param("x`y", {"sink": "iceberg"}, id="backtick in Iceberg"),
        pytest.param("xmin", {"sink": "postgres"}, id="the server's own"),
        pytest.param("@t", {"sink": AVRO}, id="sign in Avro"),
        pytest.param("naïve", {"sink": AVRO}, id="accent in Avro"),
        pytest.param("a,b", {"keys": ["id", "a,b"], "sink": "iceberg"}, id="key of a delete"),
        pytest.param("a=b", {"sequence_by": ["a=b"], "sink": "postgres"}, id="order of a delete"),
    ],
)
def test_a_name_that_a_table_cannot_have_is_selected_as_another(
    name: str, fields: dict[str, Any]
) -> None:
    """The refusal says how the field is read, and the stream loads once that is done."""
    ddl = f"id INT NOT NULL, {quoted(name)} INT"
    with pytest.raises(ValidationError) as refused:
        declared(schema=ddl, **fields)

    (other,) = re.findall(r"such as (\w+), which `", str(refused.value))
    (select,) = re.findall(r"`select: (\{.*\})` gives it", str(refused.value))
    renamed = {
        field: [other if each == name else each for each in value]
        for field, value in fields.items()
        if isinstance(value, list)
    }
    spec = declared(
        schema=f"id INT NOT NULL, {other} INT",
        value_schema=ddl,
        select=read_tree(f"select: {select}").content["select"],
        **{**fields, **renamed},
    )
    assert dict(spec.select) == {other: quoted(name)}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        pytest.param("a b", {"sink": "iceberg"}, id="Iceberg"),
        pytest.param("a.b`c", {"sink": "postgres"}, id="PostgreSQL"),
        pytest.param("a.b`c\n", {"sink": "kafka"}, id="JSON"),
        pytest.param("a b", {"sink": "kafka", "keys": ["a b"]}, id="key of a log"),
        pytest.param(
            "a b", {"sink": "postgres", "keys": ["a b"], "mode": "insert_only"}, id="no deletes"
        ),
        pytest.param("@timestamp", {"sequence_by": ["@timestamp"]}, id="sign in Delta"),
    ],
)
def test_a_sink_keeps_the_names_that_it_can(name: str, fields: dict[str, Any]) -> None:
    """What another sink could not store is no matter."""
    spec = declared(schema=f"id INT NOT NULL, {quoted(name)} INT", **fields)

    assert name in spec.types


def test_a_field_within_a_struct_is_made_anew_by_select() -> None:
    """The refusal of its name says how, and the stream loads once that is done."""
    ddl = "id INT NOT NULL, s STRUCT<`a b`: INT>"
    with pytest.raises(ValidationError) as refused:
        declared(schema=ddl)

    (select,) = re.findall(r"`select: (\{.*\})`", str(refused.value))
    spec = declared(
        schema="id INT NOT NULL, s STRUCT<a_b: INT>",
        value_schema=ddl,
        select=read_tree(f"select: {select}").content["select"],
    )
    assert dict(spec.select) == {"s": "named_struct('a_b', `s`.`a b`)"}


def test_a_function_gets_the_place_of_its_record() -> None:
    """So a value's field of that name can only be selected."""
    fields = {"schema": "id INT, n INT", "value_schema": "id INT, n INT, _offset INT"}
    with pytest.raises(
        ValidationError, match="value_schema: `transform` gets the record's own _of"
    ):
        declared(**fields, transform="tests.support.transforms.clean")

    assert "_offset" not in declared(**fields, select={"n": "_offset"}).record_names


@pytest.mark.parametrize(
    ("text", "is_asked"),
    [
        pytest.param("_timestamp > now", True, id="column"),
        pytest.param("CAST(_TimeStamp AS DATE)", True, id="another case"),
        pytest.param("s._timestamp", False, id="field of a struct"),
        pytest.param("'_timestamp' = a", False, id="text"),
        pytest.param("_timestamp.a", True, id="field of it"),
    ],
)
def test_an_expression_reads_the_columns_that_it_names(text: str, is_asked: bool) -> None:
    """A field of the same name is another one."""
    assert asks_for("_timestamp", text) == is_asked


@pytest.mark.parametrize(
    ("name", "plain"),
    [("a b", "a_b_2"), ("@x", "x"), ("__", "column"), ("1 a", "c1_a"), ("_Offset", "Offset")],
)
def test_a_plain_name_is_like_the_other_and_free(name: str, plain: str) -> None:
    """Letters, digits and _ stay; case tells no two names apart."""
    assert plain_name(name, ["A_B"]) == plain


def test_no_name_of_a_batch_is_forgotten() -> None:
    """Whatever the engine's SQL and frames call a column is refused as the name of another."""
    found = {
        name
        for folder in ("pipeline", "sinks", "lake", "recovery", "operations")
        for file in (INGESTION / folder).rglob("*.py")
        if "init" not in file.parts
        for text in _texts(file)
        for name in re.findall(r"(?<![A-Za-z0-9_{}.\-])_[a-z][a-z_]*(?![\w(])", text)
    }

    added = {DELETED_COLUMN, EXTRA_COLUMN, VALID_FROM, VALID_TO, CURRENT, *WINDOW_COLUMNS}
    assert found - RESERVED - added - NO_COLUMNS == set()


def _texts(file: Path) -> list[str]:
    tree = ast.parse(file.read_text())
    with_docstrings = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        ast.get_docstring(n, clean=False) for n in ast.walk(tree) if isinstance(n, with_docstrings)
    }
    values = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
    return [each for each in values if isinstance(each, str) and each not in docstrings]
