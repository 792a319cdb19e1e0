"""Columns of several schemas hold the values of all, and never lose one."""

from __future__ import annotations

import pytest

from oncelake.ingestion.declaration.ddl import parse_columns, parse_type
from oncelake.ingestion.declaration.derived import Derived, adjusted, as_ddl, schema_source, united


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("INT", "BIGINT", "BIGINT"),
        ("BIGINT", "INT", "BIGINT"),
        ("FLOAT", "DOUBLE", "DOUBLE"),
        ("DECIMAL(10, 2)", "DECIMAL(8, 4)", "DECIMAL(12, 4)"),
        ("DECIMAL(38, 0)", "DECIMAL(38, 2)", None),
        ("VARCHAR(3)", "VARCHAR(9)", "VARCHAR(9)"),
        ("INT", "STRING", None),
        ("INT", "DOUBLE", None),
        ("TIMESTAMP", "TIMESTAMP_NTZ", None),
        ("ARRAY<INT>", "ARRAY<BIGINT>", "ARRAY<BIGINT>"),
        ("MAP<STRING, FLOAT>", "MAP<STRING, DOUBLE>", "MAP<STRING, DOUBLE>"),
        (
            "STRUCT<a: INT, b: STRING>",
            "STRUCT<c: DATE, a: BIGINT>",
            "STRUCT<a: BIGINT, b: STRING, c: DATE>",
        ),
        ("STRUCT<a: INT>", "STRUCT<a: STRING>", None),
    ],
)
def test_the_type_of_two_is_the_narrowest_that_holds_both(
    one: str, other: str, both: str | None
) -> None:
    """In either order; where a value would have to be changed there is none."""
    found = parse_type(one).united_with(parse_type(other))
    mirrored = parse_type(other).united_with(parse_type(one))

    assert (found and str(found)) == both
    assert (found is None) == (mirrored is None)
    assert found is None or parse_type(one).widens_to(found)


def test_columns_stay_and_more_may_come() -> None:
    """One that a newer schema lacks stays; a type that does not fit changes nothing."""
    columns = parse_columns("id INT NOT NULL, gone STRING, kept DATE, price FLOAT")
    newer = {"id": "BIGINT", "kept": "INT", "price": "DOUBLE", "note": "STRING", "ID": "STRING"}
    types = {name: parse_type(text) for name, text in newer.items()}

    assert as_ddl(united(columns, types)) == (
        "`id` BIGINT NOT NULL, `gone` STRING, `kept` DATE, `price` DOUBLE, `note` STRING"
    )
    assert as_ddl(united(columns, types, with_new=False, with_wider=False)) == as_ddl(columns)
    assert as_ddl(united(columns, {})) == as_ddl(columns)


def test_columns_are_adjusted_as_declared() -> None:
    """What is excluded goes, what is overridden has its own type, and more is added."""
    columns = parse_columns("id INT, total FLOAT, secret STRING")

    found = adjusted(
        columns,
        overrides={"total": "DECIMAL(18, 2) COMMENT 'euros'", "lsn": "BIGINT NOT NULL"},
        exclude=["secret"],
        required=["id"],
    )

    assert as_ddl(found) == (
        "`id` INT NOT NULL, `total` DECIMAL(18, 2) COMMENT 'euros', `lsn` BIGINT NOT NULL"
    )


def test_a_field_that_cannot_be_a_column_is_left_out_with_the_reason() -> None:
    """By its type, its name, its sink, or another column's name."""
    types = {
        "id": parse_type("INT"),
        "ID": parse_type("INT"),
        "_offset": parse_type("INT"),
        "a b": parse_type("INT"),
        "none": None,
        "any": parse_type("VARIANT"),
        "line\nbreak": parse_type("INT"),
    }

    delta, iceberg = (Derived.of(types, s, fills_variants=False) for s in ("delta", "iceberg"))

    assert [*delta.types] == ["id", "any"]
    assert [*iceberg.types] == ["id", "a b", "any"]
    assert "in other letters" in delta.left_out["ID"]
    assert "Oncelake's own" in delta.left_out["_offset"]
    assert "`sink: delta`" in delta.left_out["a b"]
    assert "holds all" in delta.left_out["none"]
    for name in ("_offset", "a b"):
        assert "`select` gives it another: docs/transform.md, Rename fields" in delta.left_out[name]


def test_what_a_sink_cannot_keep_becomes_json_where_the_format_can_fill_it() -> None:
    """At the innermost place; else it is left out."""
    types = {
        "id": parse_type("INT"),
        "tags": parse_type("ARRAY<STRING>"),
        "by": parse_type("MAP<INT, STRING>"),
        "long" * 16: parse_type("INT"),
    }

    as_json = Derived.of(types, "postgres", fills_variants=True)
    left_out = Derived.of(types, "postgres", fills_variants=False)

    assert {name: str(type_) for name, type_ in as_json.types.items()} == {
        "id": "INT",
        "tags": "VARIANT",
        "by": "VARIANT",
    }
    assert [*left_out.types] == ["id"]
    assert [*left_out.left_out] == ["tags", "by", "long" * 16]
    assert [*Derived.of(types, "kafka", fills_variants=True).types] == ["id", "tags", "long" * 16]


@pytest.mark.parametrize(
    ("schema", "kind", "is_followed"),
    [
        ("registry", "registry", True),
        ("embedded", "embedded", True),
        ({"registry": {"subject": "s"}}, "registry", True),
        ({"registry": {"version": 3}}, "registry", False),
        ({"registry": None}, "registry", True),
        ("id INT", None, False),
    ],
)
def test_a_source_is_told_from_columns(schema: object, kind: str | None, is_followed: bool) -> None:
    """A version is for good; what is no word for a source is DDL."""
    source = schema_source(schema)

    assert (source and source.kind) == kind
    assert bool(source and source.is_followed) == is_followed
