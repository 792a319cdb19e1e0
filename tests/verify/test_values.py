"""What the second opinion takes for JSON, and for a value of a type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from oncelake.ingestion.declaration.ddl import parse_type
from oncelake.ingestion.verify.decode.coerce import BadRecordError, UnprovableError, of_json, scaled
from oncelake.ingestion.verify.decode.json import parse_object


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"\xef\xbb\xbf{}",
        b'{"a":1}{"a":2}',
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":NaN}',
        b"{'a':1}",
        b'{"a":01}',
        b'{"a":"\xff"}',
        b'{"a":1',
        b"[" * 100_000,
    ],
    ids=[
        "empty",
        "null",
        "array",
        "byte order mark",
        "two documents",
        "name twice",
        "nested name twice",
        "NaN",
        "single quotes",
        "leading zero",
        "invalid UTF-8",
        "truncated",
        "too deep",
    ],
)
def test_a_lenient_parsers_favourites_are_refused(value: bytes) -> None:
    """What leaves room for doubt is no JSON object."""
    with pytest.raises(BadRecordError):
        parse_object(value)


@pytest.mark.parametrize(
    ("type", "text", "stored"),
    [
        ("INT", "2147483647", 2_147_483_647),
        ("BIGINT", "-9223372036854775808", -(2**63)),
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", "1.5e3", 1500.0),
        ("DECIMAL(5, 2)", "1.20", Decimal("1.20")),
        ("DECIMAL(38, 0)", "9" * 38, Decimal("9" * 38)),
        ("DECIMAL(12, 6)", "4.0E-4", Decimal("0.000400")),
        ("DECIMAL(5, 2)", "0." + "0" * 39, Decimal("0.00")),
        ("STRING", '"a"', "a"),
        ("FLOAT", "0.1", 0.10000000149011612),
        ("FLOAT", "1.00000017881393432617187499", 1.0000001192092896),
        ("FLOAT", "16777217", 16777216.0),
        ("BINARY", '"aGk="', b"hi"),
        ("TIMESTAMP_NTZ", '"2013-01-01 05:00:00"', dt.datetime(2013, 1, 1, 5)),  # noqa: DTZ001
        ("ARRAY<INT>", "[1, null]", [1, None]),
        ("MAP<STRING, DECIMAL(5, 2)>", '{"a": 1.5}', {"a": Decimal("1.50")}),
        ("STRUCT<a: INT NOT NULL, b: ARRAY<DATE>>", '{"a": 1, "c": 2}', {"a": 1, "b": None}),
        ("BOOLEAN", "true", True),
        ("DATE", '"2024-02-29"', dt.date(2024, 2, 29)),
        (
            "TIMESTAMP",
            '"2013-01-01T00:00:00.5+01:00"',
            dt.datetime(2012, 12, 31, 23, 0, 0, 500_000, dt.UTC),
        ),
        ("TIMESTAMP", '"2013-01-01 05:00:00"', dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)),
    ],
    ids=str,
)
def test_values_become_what_spark_stores(type: str, text: str, stored: object) -> None:
    """A value that fits its type is taken without loss."""
    value = of_json(parse_type(type))(parse_object(f'{{"v": {text}}}'.encode())["v"])

    assert (value, repr(value)) == (stored, repr(stored))


@pytest.mark.parametrize(
    ("type", "text"),
    [
        ("INT", "2147483648"),
        ("INT", "1.0"),
        ("INT", "true"),
        ("INT", '"1"'),
        ("DOUBLE", "1e400"),
        ("DOUBLE", '"1"'),
        ("DECIMAL(5, 2)", "1.239"),
        ("DECIMAL(5, 2)", "1234.5"),
        ("DECIMAL(5, 2)", '"1.50"'),
        ("DECIMAL(5, 2)", "1e3"),
        ("DECIMAL(5, 2)", "1e-3"),
        ("DECIMAL(5, 2)", "1e999999999"),
        ("DECIMAL(5, 2)", "1e-999999999"),
        ("VARCHAR(3)", '"abcd"'),
        ("STRING", "1.50"),
        ("STRING", '{"a" : [1.50, "é"]}'),
        ("STRUCT<a: INT>", '{"A": 1}'),
        ("TIMESTAMP", '"2013-01-01T00:00:00+19:00"'),
        ("DECIMAL(5, 2)", '"NaN"'),
        ("FLOAT", "3.5e38"),
        ("BINARY", '"aGk"'),
        ("TIMESTAMP_NTZ", '"2013-01-01T00:00:00Z"'),
        ("ARRAY<INT>", '[1, "x"]'),
        ("ARRAY<INT>", "1"),
        ("MAP<STRING, INT>", "[]"),
        ("STRUCT<a: INT NOT NULL>", "{}"),
        ("STRUCT<a: INT>", '{"a": 1.0}'),
        ("BOOLEAN", "1"),
        ("DATE", '"2024-2-3"'),
        ("DATE", '"2023-02-29"'),
        ("TIMESTAMP", '"2013-02-30T00:00:00Z"'),
        ("TIMESTAMP", '"0001-01-01T00:00:00+05:00"'),
        ("TIMESTAMP", '"2013-01-01T00:00:00.1234567Z"'),
    ],
    ids=str,
)
def test_values_that_would_be_bent_are_refused(type: str, text: str) -> None:
    """A value that its type cannot hold exactly is an error, never another value."""
    value = parse_object(f'{{"v": {text}}}'.encode())["v"]

    with pytest.raises((ValueError, OverflowError)):
        of_json(parse_type(type))(value)


@pytest.mark.parametrize("type", ["MAP<INT, INT>", "ARRAY<MAP<INT, INT>>"])
def test_a_type_unknown_to_the_classifier_is_no_verdict(type: str) -> None:
    """Columns that cannot be judged stop the proof instead of passing."""
    with pytest.raises(UnprovableError, match="not provable"):
        of_json(parse_type(type))


@pytest.mark.parametrize(("type", "value"), [("DECIMAL(5, 2)", Decimal("50.00")), ("BIGINT", 50)])
def test_a_decimal_may_have_a_negative_scale(type: str, value: object) -> None:
    """Avro and Connect allow it: 5 of scale -1 is 50."""
    read = scaled(parse_type(type), -1)

    assert read is not None
    assert read(5) == value
