"""``types: {column: lenient}``: values of another type are taken, counted, and proven."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.pipeline.counts import BatchCounts, count_records
from tests.support.decoding import decoded, disagreements, opened
from tests.support.long import twins
from tests.support.proof import find_problems
from tests.support.world import World

DDL = (
    "id BIGINT NOT NULL, tiny TINYINT, total DECIMAL(9, 2), near FLOAT, ratio DOUBLE, "
    "name STRING, code VARCHAR(3)"
)
NUMBERS, TEXTS = ("id", "tiny", "total", "near", "ratio"), ("name", "code")
LENIENT = (*NUMBERS, *TEXTS)
WRITTEN = (
    *('"1"', '"-0"', '"1.50"', '"1.505"', '"1e2"', '"1E400"', '"300"', '"9223372036854775808"'),
    *('""', '" 1"', '"1 "', '"+1"', '"01"', '".5"', '"1."', '"0x1"', '"NaN"', '"true"', '"one"'),
    *('"\\u0031"', '"\\u0661"', '"\\n1"', '"\\"1\\""', '"0.30000001192092895"', '"-0.0"'),
    *(f'"{"1" * 1001}"', f'"-0.{"0" * 999}1"', f'"-0.{"0" * 1000}1"', f'"{"1" * 39}"'),
    *("1", "-0", "1.50", "1e2", "1E400", "12345", "true", "false", "null", "[]", '{"a": 1}'),
    *("1234567890123456789012345678901234567890", "1.0", "0.1e-5"),
)


def fields(**values: str) -> bytes:
    """An object of values that are written as JSON."""
    inner = ", ".join(f'"{name}": {text}' for name, text in {"id": "1", **values}.items())
    return f"{{{inner}}}".encode()


def found_in(*values: bytes, lenient: tuple[str, ...] = LENIENT) -> list[dict[str, Any]]:
    """Decode values."""
    return decoded(opened("json", DDL, lenient=lenient), values)


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        pytest.param("id", '"17"', 17, id="a whole number in quotes"),
        pytest.param("total", '"1.50"', "1.50", id="a decimal in quotes"),
        pytest.param("ratio", '"1e2"', 100.0, id="an exponent in quotes"),
        pytest.param("name", "1.50", "1.50", id="a number as text, as it is written"),
        pytest.param("name", "17", "17", id="a whole number as text"),
        pytest.param("name", "true", "true", id="a boolean as text"),
        pytest.param("code", "false", None, id="too long as text"),
        pytest.param("tiny", '"300"', None, id="a number that does not fit"),
        pytest.param("id", '"1.0"', None, id="no whole number"),
        pytest.param("total", '"1.505"', None, id="a number that would be rounded"),
        pytest.param("total", '" 1"', None, id="a blank"),
        pytest.param("total", '""', None, id="nothing"),
        pytest.param("total", "true", None, id="a boolean is no number"),
        pytest.param("name", "[]", None, id="a list is no text"),
    ],
)
def test_a_lenient_column_takes_what_is_written_as_another_type(
    column: str, text: str, expected: Any
) -> None:
    """A number in quotes is the number, a number or boolean as text is what was written."""
    (struct,) = found_in(fields(**{column: text}))

    if expected is None:
        assert struct["reason"] in {"wrong_type", "too_long", "inexact_number", "out_of_range"}
    else:
        assert str(struct["row"][column]) == str(expected)
        assert struct["coerced"] == [column]


def test_only_values_of_another_type_are_counted() -> None:
    """A record whose values have the declared types is decoded as ever."""
    sound = fields(total="1.50", name='"a"')
    many = found_in(*[sound] * 200, fields(total='"1"', name="2"), sound)

    assert [each["coerced"] for each in many] == [*[None] * 200, ["total", "name"], None]


def test_other_columns_stay_strict() -> None:
    """Leniency is of the columns that are named, and of no other."""
    first, second = found_in(fields(total='"1"'), fields(ratio='"1"'), lenient=("total",))

    assert (first["reason"], second["reason"]) == (None, "wrong_type")


def test_engine_and_proof_agree_on_every_lenient_value() -> None:
    """Each text, as each column's value, is the same to both, or bad to both."""
    values = [fields(**{name: text}) for name, text in product(LENIENT, WRITTEN) if name != "id"]
    values += [fields().replace(b"1", text.encode(), 1) for text in WRITTEN]

    assert disagreements("json", DDL, values, lenient=LENIENT) == []


@pytest.mark.parametrize(
    "key", [b'"5"', b"5", b'{"id": "5"}', b'{"id": 5}', b'"x"', b'{"id": true}']
)
def test_a_key_is_as_lenient_as_its_column(key: bytes) -> None:
    """A null value finds its row by a key that is written as the values write it."""
    ddl, how = "id BIGINT NOT NULL", {"is_key": True, "lenient": ["id"]}
    (struct,) = decoded(opened("json", ddl, **how), [key])

    assert disagreements("json", ddl, [key], **how) == []
    assert (struct["row"] == {"id": 5}) == (b"5" in key)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        pytest.param({"format": "avro"}, "`lenient` is for JSON's formats", id="avro"),
        pytest.param({"format": "csv"}, "`lenient` is for JSON's formats", id="csv"),
        pytest.param({"format": "debezium"}, "`lenient` is for JSON's formats", id="debezium"),
        pytest.param({"types": {"at": "lenient"}}, "at is DATE; only a number", id="a date"),
        pytest.param({"types": {"tota": "lenient"}}, "did you mean `total`?", id="misspelt"),
        pytest.param({"types": {"total": "loose"}}, "'lenient'", id="another word"),
    ],
)
def test_a_declaration_that_cannot_be_lenient_is_refused(
    declared: dict[str, Any], says: str
) -> None:
    """Where a format has types of its own, or a column has no other spelling, loading says so."""
    base = {"name": "s", "topic": "t", "schema": "id INT NOT NULL, total INT, at DATE"}
    fields = {**base, "keys": ["id"], "types": {"total": "lenient"}, **declared}

    with pytest.raises(ValidationError, match=says):
        StreamSpec.model_validate(fields)


@pytest.mark.kafka
@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({}, id="in a worker"),
        *twins(pytest.param({"where": "at < 100"}, id="in Spark")),
    ],
)
def test_lenient_values_are_counted_and_proven(world: World, extra: dict[str, Any]) -> None:
    """Rows, deletes and the ledger's count are those that the proof finds; a redrive's, too."""
    world.declare(schema="id INT NOT NULL, name STRING, at INT", **extra)
    world.send({"id": "1", "name": 5, "at": "7"}, {"id": 2, "name": "b", "at": 8})
    world.run()
    assert len(world.quarantined()) == 1
    world.declare(types={"id": "lenient", "name": "lenient", "at": "lenient"})

    world.send({"id": "3", "name": True, "at": "9"}, {"id": "4", "name": 1.50, "at": "x"})
    world.send(b'{"id": "3", "name": 1.50, "at": 10}', {"id": "5", "at": 100})
    world.send(None, id="2")
    world.run()
    world.redrive()

    counted = [row.counts.get("values_coerced", 0) for row in world.ledger]
    # A record that is filtered, or bad for another value, is not counted.
    assert counted == [0, 5 if extra else 6, 3]
    assert world.rows() == [
        {"id": 1, "name": "5", "at": 7},
        {"id": 3, "name": "1.50", "at": 10},
        *([] if extra else [{"id": 5, "name": None, "at": 100}]),
    ]
    assert find_problems(world) == ()


@pytest.mark.spark
def test_an_exploded_record_is_counted_once(world: World) -> None:
    """Its values are its own, however many rows its array gives; engine and proof count alike."""
    value = "id INT NOT NULL, name STRING, at ARRAY<INT>"
    world.declare(value_schema=value, explode="at", types={"name": "lenient"}, where="at > 1")
    world.declare(mode="append", keys=(), schema="id INT NOT NULL, name STRING, at INT")
    world.send({"id": 1, "name": 5, "at": [2, 3]}, {"id": 2, "name": 6, "at": [1, 2]})
    world.send({"id": 3, "name": 7, "at": []}, {"id": 4, "name": 8, "at": ["x"]})
    world.run()

    # The first rows of the second and the third are left out by `where`, or not there.
    assert world.ledger[-1].counts["values_coerced"] == 1
    assert find_problems(world) == ()


@pytest.mark.kafka
def test_a_count_that_is_wrong_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof counts by itself: a ledger that says another number is disproved."""
    world.declare(types={"at": "lenient"})
    world.send({"id": 1, "name": "a", "at": "7"})

    def count_one_more(engine: Engine) -> BatchCounts:
        counted = count_records(engine)
        return replace(counted, coerced=counted.coerced + 1)

    with monkeypatch.context() as patched:
        patched.setattr("oncelake.ingestion.pipeline.batch.count_records", count_one_more)
        world.run()

    assert any("values_coerced" in problem for problem in find_problems(world))
