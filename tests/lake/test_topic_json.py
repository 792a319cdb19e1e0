"""A row that is written as JSON is read again as it was."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_type
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.kafka.json import JsonRows
from oncelake.ingestion.sinks.kafka.notes import TopicSchema
from oncelake.ingestion.sinks.kafka.writer import Record, TopicPlace
from oncelake.ingestion.tables.arrow_types import arrow_schema


def column(name: str, type_: str) -> DeclaredColumn:
    """Make a column."""
    return DeclaredColumn(name=name, type=parse_type(type_), nullable=True, comment="")


def rows_of(columns: list[DeclaredColumn], *keys: str) -> JsonRows:
    """Return the format of a topic with these columns."""
    place = TopicPlace(stream="orders", topic="t", settings=Settings())
    schema = TopicSchema(stream="orders", columns=tuple(columns), keys=keys)
    return JsonRows(place=place, schema=schema)


def written(
    rows: list[dict[str, Any]], columns: list[DeclaredColumn], *, keys: tuple[str, ...] = ()
) -> list[Record]:
    """Write rows as records."""
    table = pa.Table.from_pylist(rows, arrow_schema(columns))
    found = rows_of(columns, *keys).records(table, are_gone=False)
    return [one for some in found for one in some]


def read(values: list[str], columns: list[DeclaredColumn]) -> list[dict[str, Any]]:
    """Read the values of records."""
    given = pa.array([value.encode() for value in values])
    return rows_of(columns).decode(given, columns).to_pylist()


CASES: dict[str, tuple[str, list[Any], list[str]]] = {
    "doubles": (
        "DOUBLE",
        [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, 3.0],
        ["0.1", "-0.0", "5e-324", "1.7976931348623157e308", '"Infinity"', '"-Infinity"', "3.0"],
    ),
    "floats": ("FLOAT", [0.10000000149011612, 16777216.0], ["0.1", "16777216.0"]),
    "decimals": (
        "DECIMAL(38, 10)",
        [Decimal("9" * 28 + "." + "9" * 10), Decimal("-1E-10"), Decimal("1.5000000000")],
        ['"' + "9" * 28 + "." + "9" * 10 + '"', '"-0.0000000001"', '"1.5000000000"'],
    ),
    "dates": (
        "DATE",
        [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
        ['"0001-01-01"', '"9999-12-31"'],
    ),
    "moments": (
        "TIMESTAMP",
        [
            dt.datetime(1, 1, 1, tzinfo=dt.UTC),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
        ],
        ['"0001-01-01T00:00:00.000000Z"', '"9999-12-31T23:59:59.999999Z"'],
    ),
    "times of no zone": (
        "TIMESTAMP_NTZ",
        [dt.datetime(1969, 12, 31, 23, 59, 59, 1)],  # noqa: DTZ001 (that is the type)
        ['"1969-12-31T23:59:59.000001"'],
    ),
    "texts": (
        "STRING",
        ["", "null", '"', "it's\n\\n", "\u0000\u001f", "é世😀", "123"],
        ['""', '"null"', '"\\""', '"it\'s\\n\\\\n"', '"\\u0000\\u001F"', '"é世😀"', '"123"'],
    ),
    "bytes": ("BINARY", [b"", b"\x00\xff", None], ['""', '"AP8="', "null"]),
    "whole numbers": ("BIGINT", [-(2**63), 2**63 - 1], [str(-(2**63)), str(2**63 - 1)]),
    "arrays": ("ARRAY<DECIMAL(3, 1)>", [[Decimal("1.5"), None], []], ['["1.5",null]', "[]"]),
    "arrays of texts": ("ARRAY<STRING>", [['"', "\n", None]], ['["\\"","\\n",null]']),
    "structs": (
        "STRUCT<a: BINARY, `it's`: ARRAY<STRUCT<t: TIMESTAMP>>>",
        [{"a": b"x", "it's": [{"t": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}, None]}, None],
        ['{"a":"eA==","it\'s":[{"t":"2024-01-01T00:00:00.000000Z"},null]}', "null"],
    ),
    "maps": (
        "MAP<STRING, STRUCT<b: BINARY>>",
        [[("k", {"b": b"x"}), ("", None)], []],
        ['{"k":{"b":"eA=="},"":null}', "{}"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_value_has_its_form_and_comes_back(case: str) -> None:
    """What is in the record is what the documentation says, and reading it gives the value."""
    type_, values, forms = CASES[case]
    columns = [column("v", type_)]
    rows = [{"v": value} for value in values]

    found = [str(record["value"]) for record in written(rows, columns)]

    assert found == [f'{{"v":{form}}}' for form in forms]
    table = pa.Table.from_pylist(rows, arrow_schema(columns))
    assert str(read(found, columns)) == str(table.to_pylist())


def test_no_number_is_a_number_again() -> None:
    """NaN, which equals nothing, is written by its name."""
    columns = [column("v", "DOUBLE"), column("w", "FLOAT")]

    [record] = written([{"v": math.nan, "w": math.nan}], columns)

    assert record["value"] == '{"v":"NaN","w":"NaN"}'
    assert all(map(math.isnan, read([str(record["value"])], columns)[0].values()))


def test_a_key_has_its_columns_in_their_order() -> None:
    """The key is what is declared, and a record of a row that is gone has nothing else."""
    columns = [column("a", "INT"), column("b", "DECIMAL(3, 1)"), column("c", "STRING")]
    rows = pa.Table.from_pylist([{"a": 1, "b": Decimal("2.5"), "c": "x"}], arrow_schema(columns))

    [[record]] = rows_of(columns, "b", "a").records(rows, are_gone=False)
    [[gone]] = rows_of(columns, "b", "a").records(rows.select(["a", "b"]), are_gone=True)

    assert record == {"key": '{"b":"2.5","a":1}', "value": '{"a":1,"b":"2.5","c":"x"}'}
    assert gone == {"key": '{"b":"2.5","a":1}', "value": None}


def test_a_column_that_a_record_lacks_is_null() -> None:
    """Older records have fewer columns, and may have others."""
    values = ['{"a":1,"gone":[2]}', '{"a":null,"b":"x"}']

    found = read(values, [column("b", "STRING"), column("a", "INT")])

    assert found == [{"b": None, "a": 1}, {"b": "x", "a": None}]


@pytest.mark.parametrize(
    "value",
    ["", "{", "null", "[1]", "5", '"a"', '{"a":"x"}', '{"a":3000000000}', '{"a":[]}', "\\xff"],
)
def test_what_is_no_row_is_refused(value: str) -> None:
    """Somebody else's record is an error, which does not quote it."""
    with pytest.raises(ValueError, match="no object of these columns") as raised:
        read(['{"a":1}', value], [column("a", "INT")])

    assert raised.value.__cause__ is None


def test_a_large_batch_keeps_its_order() -> None:
    """Records come in the order of the rows, some thousand at once."""
    rows = [{"a": number} for number in range(12_345)]

    found = written(rows, [column("a", "INT")], keys=("a",))

    assert [json.loads(str(record["key"])) for record in found] == rows
