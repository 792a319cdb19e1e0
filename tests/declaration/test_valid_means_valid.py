"""What can be known of a declaration without Spark is refused when it is loaded, all at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from oncelake.ingestion.declaration.expectations import argument_violations
from oncelake.ingestion.declaration.files.loader import load_stream
from oncelake.ingestion.declaration.messages import problems_in
from oncelake.ingestion.declaration.rules.stream import unknown_names
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import with_names
from oncelake.ingestion.errors import InvalidSpecError

BASE = {
    "name": "orders",
    "topic": "orders",
    "schema": "id INT NOT NULL, total DECIMAL(9, 2), who STRUCT<name: STRING>, "
    "tags ARRAY<STRUCT<key: STRING>>, more MAP<STRING, INT>, sent TIMESTAMP",
    "keys": ["id"],
    "tombstones": "ignore",
}
BETWEEN = "expect_column_values_to_be_between"
# One of those of which Great Expectations ships no schema.
INCREASING = "expect_column_values_to_be_increasing"
# Conditions over these columns; ``tests/pipeline/test_transform.py`` asks Spark about each.
UNDERSTOOD = (
    "TOTAL > 0 AND `id` IS NOT NULL",
    "try_element_at(filter(_headers, h -> h.key = 'a'), -1).value IS NULL",
    "exists(tags, t -> t.key = who.name)",
    "aggregate(transform(tags, (t, i) -> i + id), 0, (sum, n) -> sum + n) > 1",
    "tags.key IS NULL OR tags[0].key = 'x' OR more.any > 1 OR more['x'] = 2",
    "timestampadd(HOUR, 1, sent) > sent + INTERVAL 2 DAYS",
    "extract(YEAR FROM sent) = date_part('month', sent)",
    "timestampdiff(DAY, sent, _timestamp) > 3",
    "position('a' IN who.name) = 1 AND trim(BOTH 'x' FROM who.name) = \"text\"",
    "named_struct('a', id).a = struct(id AS b).b",
    "from_json(string(_key), 'a INT').a = 1",
    "CASE id WHEN 1 THEN true ELSE total::INT > 3 END",
    "mask(who.name, upperChar => 'Q') LIKE ANY ('a', 'b')",
    "id IN (1, 2) AND NOT id <=> 3 AND total BETWEEN 1 AND 2",
)


def said_of(**fields: Any) -> list[str]:
    """Return what is said of a declaration with these fields, each behind its field."""
    with pytest.raises(ValidationError) as raised:
        StreamSpec.model_validate({**BASE, **fields})
    return [
        f"{'.'.join(map(str, problem.field))}: {problem.text}"
        for problem in problems_in(raised.value)
    ]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        pytest.param(
            {"where": "totl > 0"},
            "where: 'totl' is not a column of `schema`; did you mean `total`?",
            id="where",
        ),
        pytest.param(
            {"where": "who.nam = 'a'"},
            "where: 'nam' is not a column of `who` in `schema`; did you mean `name`?",
            id="field of a struct",
        ),
        pytest.param(
            {"select": {"total": "_timestmp"}},
            "select.total: '_timestmp' is not a column of `schema`; did you mean `_timestamp`?",
            id="select",
        ),
        pytest.param(
            {"value_schema": "id INT, cents INT", "select": {"total": "cent / 100"}},
            "select.total: 'cent' is not a column of `value_schema`; did you mean `cents`?",
            id="column of the value",
        ),
        pytest.param(
            {"apply_as_deletes": "_key IS NULL"},
            "apply_as_deletes: '_key' is not a column of `schema`; "
            "there are: id, total, who, tags, more, sent",
            id="apply_as_deletes",
        ),
        pytest.param(
            {"expectations": [{"type": "expect_column_values_to_be_betwen"}]},
            "expectations.0.type: Great Expectations has no 'expect_column_values_to_be_betwen'; "
            f"did you mean `{BETWEEN}`?",
            id="expectation",
        ),
        pytest.param(
            {"expectations": [{"type": BETWEEN, "column": "totl", "min_value": 0}]},
            "expectations.0.column: 'totl' is not a column of the table; did you mean `total`?",
            id="column of an expectation",
        ),
        pytest.param(
            {"expectations": [{"type": BETWEEN, "column": "id", "min_value": 0, "max": 9}]},
            f"expectations.0.max: {BETWEEN} has no such argument; there are: column, ",
            id="argument",
        ),
        pytest.param(
            {"expectations": [{"type": BETWEEN, "column": "id"}]},
            f"expectations.0: missing: {BETWEEN} needs `min_value`, `max_value`, or both",
            id="no bound",
        ),
        pytest.param(
            {"expectations": [{"type": BETWEEN, "min_value": 0}]},
            f"expectations.0: missing: {BETWEEN} needs `column`",
            id="no column",
        ),
        pytest.param(
            {"expectations": [{"type": BETWEEN, "column": "id", "min_value": [0]}]},
            "expectations.0.min_value: [0] is no value for it; write number or date",
            id="value of an argument",
        ),
        pytest.param(
            {"expectations": [{"type": BETWEEN, "column": None, "min_value": 0}]},
            f"expectations.0: missing: {BETWEEN} needs `column`",
            id="empty column",
        ),
        pytest.param(
            {"expectations": [{"type": INCREASING, "column": 5}]},
            f"expectations.0: missing: {INCREASING} needs `column`",
            id="number for a column, without a schema",
        ),
    ],
)
def test_what_is_not_there_is_refused_by_its_field(fields: dict[str, Any], says: str) -> None:
    """A misspelt column, expectation or argument is named, with the nearest that there is."""
    assert [said for said in said_of(**fields) if said.startswith(says)], said_of(**fields)


@pytest.mark.parametrize("sql", UNDERSTOOD)
def test_what_spark_understands_is_not_refused(sql: str) -> None:
    """Lambdas, fields, units of time, names of arguments and another case are no unknown names."""
    assert StreamSpec.model_validate({**BASE, "where": sql}).where == sql


def test_sql_that_is_none_is_refused_without_names_of_classes() -> None:
    """What the parser's library says is told without its own insides."""
    (said,) = said_of(where="id >>> 1")

    assert said == "where: 'id >>> 1' is no SQL expression: Required keyword: 'expression' missing"


PATHS = ("$", "$.a.$b", "$['a b']['$c']", "$.a[0][*].y", "$.*", "$.é")
NO_PATHS = ("$[", "a", "$a", "$..a", "$.", "", "$[-1]", "$[1:2]", '$["a"]', "$.a[?(@.b)]", " $.a")


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_spark_reads_is_taken_as_it_is_written(path: str) -> None:
    """By Spark's own grammar; it stays so where a column gets another name beside it."""
    sql = f'get_json_object(who.name, "{path}") = 1'
    escaped = path.replace("'", r"\'")

    assert StreamSpec.model_validate({**BASE, "where": sql}).where == sql
    assert with_names(sql, {"who": "it"}) == f"GET_JSON_OBJECT(`it`.name, '{escaped}') = 1"


@pytest.mark.parametrize("path", NO_PATHS)
def test_a_path_that_spark_answers_with_null_is_refused(path: str) -> None:
    """Spark says nothing of it, and no record would meet the condition, or each."""
    (said,) = said_of(where=f"get_json_object(who.name, '{path}') IS NULL")

    assert said.startswith("where: ")
    assert f"{path!r}, which is no path of get_json_object: it would always be null" in said


def test_a_name_is_told_once() -> None:
    """An expression that has it three times says so once; another has its own line."""
    spec = StreamSpec.model_validate(BASE)

    found = [name for name, _ in unknown_names("a = 1 OR a = 2 OR b = 1 OR id = a", spec.types)]

    assert sorted(found) == ["a", "b"]


def test_expectations_of_the_table_s_own_columns_are_taken() -> None:
    """What every table has, what the mode adds, and what should exist may all be named."""
    asked = [
        {"type": "expect_column_values_to_not_be_null", "column": "_offset"},
        {"type": "expect_column_values_to_not_be_null", "column": "_deleted"},
        {"type": "expect_column_to_exist", "column": "comes_later"},
        {"type": "expect_table_columns_to_match_set", "column_set": ["id", "other"]},
        {"type": "expect_compound_columns_to_be_unique", "column_list": ["id", "total"]},
    ]

    spec = StreamSpec.model_validate({**BASE, "deletes": "soft", "expectations": asked})

    assert len(spec.expectations) == 5


def test_all_mistakes_of_a_file_are_listed(tmp_path: Path) -> None:
    """Mistakes of every kind, one of them in each column and item, are told in one go."""
    path = tmp_path / "orders.yaml"
    path.write_text(
        "topic: orders\nschema: id INT, total INT\nkeys: id\nwhere: totl > 0\n"
        "select:\n  id: rand()\n  total: sum +\napply_as_deletes: idd = 1\n"
        "expectations:\n- type: expect_nothing\n- type: expect_column_values_to_be_null\n"
        "  column: it\nverify: maybe\nstarting: yesterday\n"
    )

    with pytest.raises(InvalidSpecError) as raised:
        load_stream(path)

    lines = str(raised.value).replace(str(path), "").splitlines()
    assert [line.split(": ")[0] + line.split(":")[2] for line in lines] == [
        *(":4 where", ":6 select.id", ":7 select.total", ":8 apply_as_deletes"),
        *(":10 expectations[0].type", ":12 expectations[1].column", ":13 verify", ":14 starting"),
    ]


def test_each_column_of_a_schema_has_its_own_line() -> None:
    """Three misspelt types are three problems."""
    said = said_of(schema="id INTT, a ARRAY<STRNG>, b DECIMAL(9, 2), c TIMESTMP", keys=[])

    assert [each.split()[2] for each in said] == ["id:", "a:", "c:"]


@pytest.mark.parametrize(
    ("columns", "example"),
    [
        ({"id": "BIGINT NOT NULL", "name": "STRING"}, "id BIGINT NOT NULL, name STRING"),
        (["id BIGINT", "name STRING"], "id BIGINT, name STRING"),
        ([{"name": "id", "type": "BIGINT"}], "id BIGINT"),
        ({"id": {"type": "BIGINT"}}, "id BIGINT NOT NULL, name STRING"),
    ],
    ids=["map", "list", "list of maps", "nested"],
)
def test_columns_as_a_map_are_written_out_as_text(columns: Any, example: str) -> None:
    """Who writes a map or a list is shown the text that it would be, ready to paste."""
    (said,) = said_of(schema=columns)

    assert said == (
        f"schema: columns are written as one text, as in SQL; write for example `schema: {example}`"
    )


@pytest.mark.parametrize("start", ["yesterday", 3, ["latest"], {"at": "now"}])
def test_every_form_of_a_start_is_named(start: Any) -> None:
    """A start that is none is answered with all four."""
    (said,) = said_of(starting=start)

    assert all(form in said for form in ("`earliest`", "`latest`", "{timestamp: ", "{offsets: "))


@pytest.mark.filterwarnings("ignore")
def test_great_expectations_agrees() -> None:
    """What is refused without importing the library, the library refuses; and the other way."""
    from oncelake.ingestion.pipeline.gate.expectations import great_expectations

    great_expectations()
    from great_expectations.expectations import registry

    known = registry.list_registered_expectation_implementations()
    missed = [
        name
        for name in known
        if name.startswith("expect_") and list(argument_violations(name, {})) == _none(name)
    ]
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        (BETWEEN, {"column": "a", "min_value": 1}),
        (BETWEEN, {"column": "a", "min_value": "2024-01-01"}),
        (BETWEEN, {"column": "a", "min_value": "soon"}),
        (BETWEEN, {"column": "a", "min": 1}),
        (BETWEEN, {"column": "a"}),
        ("expect_column_values_to_be_in_set", {"column": "a", "value_set": ["x"]}),
        ("expect_column_values_to_be_in_set", {"column": "a", "value_set": 3}),
        ("expect_column_values_to_be_unique", {"column": "a", "mostly": 0.9}),
        ("expect_column_values_to_be_unique", {"column": "a", "mostly": 2}),
        ("expect_column_values_to_match_regex_list", {"column": "a", "regex_list": ["x"]}),
        ("expect_table_row_count_to_equal", {"value": 3}),
    )
    ours = [not list(argument_violations(name, arguments)) for name, arguments in cases]
    assert missed == []
    assert ours == [_is_built(registry, name, arguments) for name, arguments in cases]


def _none(name: str) -> list[Any]:
    return [("type", f"Great Expectations has no {name!r}")]


def _is_built(registry: Any, name: str, arguments: dict[str, Any]) -> bool:
    try:
        registry.get_expectation_impl(name)(**arguments)
    except ValueError:
        return False
    return True


def test_expectations_are_checked_without_their_library(tmp_path: Path) -> None:
    """A declaration with expectations loads neither Great Expectations nor Spark."""
    path = tmp_path / "orders.yaml"
    path.write_text(
        "topic: orders\nschema: id INT\nkeys: id\nwhere: id > 1\n"
        f"expectations:\n- {{type: {BETWEEN}, column: id, min_value: 1}}\n"
    )
    code = (
        "import sys, pathlib\n"
        "from oncelake.ingestion.declaration.files.loader import load_stream\n"
        f"load_stream(pathlib.Path({str(path)!r}))\n"
        "print({'great_expectations', 'pyspark', 'pyarrow'} & set(sys.modules) or 'none')\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "none"
