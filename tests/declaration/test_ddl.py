"""What is read of Spark's DDL without Spark; the rows were tried on Spark 4.2.0."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.types import SqlType


def test_columns_keep_name_type_nullability_and_comment() -> None:
    """A column is read with all that a person says of it, in order."""
    columns = parse_columns("id BIGINT NOT NULL COMMENT 'the key', `name` string")

    assert columns == (
        DeclaredColumn(name="id", type=SqlType(word="BIGINT"), nullable=False, comment="the key"),
        DeclaredColumn(name="name", type=SqlType(word="STRING"), nullable=True, comment=""),
    )


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("LONG", "BIGINT"),
        ("integer", "INT"),
        ("REAL", "FLOAT"),
        ("TIMESTAMP_LTZ", "TIMESTAMP"),
        ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ"),
        ("VARIANT", "VARIANT"),
        ("DECIMAL", "DECIMAL(10, 0)"),
        ("DEC(5)", "DECIMAL(5, 0)"),
        ("NUMERIC(38,38)", "DECIMAL(38, 38)"),
        ("VARCHAR(3)", "VARCHAR(3)"),
        ("ARRAY < ARRAY<INT> >", "ARRAY<ARRAY<INT>>"),
        (
            "MAP<INT,STRUCT<x:LONG NOT NULL, y STRING>>",
            "MAP<INT, STRUCT<x: BIGINT NOT NULL, y: STRING>>",
        ),
    ],
)
def test_types_are_read_in_every_spelling(written: str, kind: str) -> None:
    """Spark's synonyms become the one name that Spark prints."""
    assert [str(column.type) for column in parse_columns(f"a {written}")] == [kind]


@pytest.mark.parametrize(
    ("ddl", "names"),
    [
        pytest.param(
            "order STRING, date DATE, table INT", ["order", "date", "table"], id="keywords"
        ),
        pytest.param("a: INT, b:STRING", ["a", "b"], id="colons"),
        pytest.param("a INT -- why\n, b /* and */ INT", ["a", "b"], id="comments"),
        pytest.param("`naïve` INT", ["naïve"], id="backticks"),
        pytest.param("a INT COMMENT 'one, ' \"two\"", ["a"], id="adjacent literals"),
    ],
)
def test_names_are_read_as_spark_reads_them(ddl: str, names: list[str]) -> None:
    """What Spark takes for a name is one."""
    assert [column.name for column in parse_columns(ddl)] == names


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        pytest.param("a STRNG", "did you mean STRING", id="misspelt"),
        pytest.param("a TEXT", "did you mean STRING", id="another database"),
        pytest.param("a INTERVAL", "INTERVAL is no type", id="not storable"),
        pytest.param("a STRUCT<x: STRNG>", "column x: STRNG", id="nested"),
        pytest.param("a VARCHAR", r"expected `\(` after `a VARCHAR`", id="no length"),
        pytest.param("a VARCHAR(0)", "expected a number from 1 up", id="no room"),
        pytest.param("a DECIMAL(39)", "at most 38 digits", id="too precise"),
        pytest.param("a DECIMAL(5,7)", "behind the point", id="scale beyond precision"),
        pytest.param("a ARRAY<INT", "expected `>`.*found the end", id="unclosed"),
        pytest.param("a MAP<STRING>", "expected `,`", id="map of one"),
        pytest.param("a STRUCT<>", "expected a column's name", id="empty struct"),
        pytest.param("a " + "ARRAY<" * 9_999, "nested too deeply", id="nested without end"),
        pytest.param("a", "expected a type for column a", id="no type"),
        pytest.param("", "no columns", id="empty"),
        pytest.param("a INT,", "expected a column's name", id="trailing comma"),
        pytest.param("a INT b INT", "did not expect `b` after `a INT`", id="no comma"),
        pytest.param("a INT PRIMARY KEY", "did not expect `PRIMARY`", id="constraint"),
        pytest.param("a INT NULL", "did not expect `NULL`", id="null"),
        pytest.param("a INT NOT", "expected `NULL`", id="half a constraint"),
        pytest.param("a INT COMMENT x", "put the comment in quotes", id="bare comment"),
        pytest.param("a INT; b INT", "did not expect `;`", id="semicolon"),
        pytest.param("a-b INT", "needs backticks", id="hyphen"),
        pytest.param("naïve INT", "in backticks: `naïve`", id="accent"),
        pytest.param("1e5 INT", "in backticks: `1e5`", id="number"),
        pytest.param("@at INT", "expected a column's name, found `@`.*backticks", id="sign"),
        pytest.param("`a\0b` INT", "no name has NUL", id="NUL in a name"),
        pytest.param("`a\ud800` INT", "half a character", id="half a character"),
        pytest.param("id INT, ID INT", "ID: declared twice", id="twice"),
        pytest.param("a STRUCT<x INT, x INT>", "x: declared twice", id="nested twice"),
    ],
)
def test_what_no_table_can_have_is_refused(ddl: str, says: str) -> None:
    """A mistake in the DDL is named, with what to write instead."""
    with pytest.raises(ValueError, match=says):
        parse_columns(ddl)


@settings(max_examples=60, deadline=None)
@given(st.text("aB1 _`'\"<>(),:-.;\n INTARAYSTUCM", max_size=40))
def test_any_text_is_columns_or_a_plain_refusal(ddl: str) -> None:
    """No text makes the reader fail in another way than by saying what is wrong."""
    with suppress(ValueError):
        assert parse_columns(ddl)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["INT", "DECIMAL(3, 1)", "MAP<INT, ARRAY<DATE>>"]), min_size=1))
def test_what_is_printed_reads_back_the_same(kinds: list[str]) -> None:
    """A type as printed is the type as read."""
    ddl = ", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds))

    assert [str(column.type) for column in parse_columns(ddl)] == kinds
