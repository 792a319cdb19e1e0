"""A key to be erased is taken as it is written, or refused with an example."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.operations.erase.key import is_of_key, parse_key
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.storage.location import Location

MORNING = dt.datetime(2026, 11, 22, 10, tzinfo=dt.UTC)
TYPES = {
    "TINYINT": pa.int8(),
    "BIGINT": pa.int64(),
    "DECIMAL(20, 2)": pa.decimal128(20, 2),
    "BOOLEAN": pa.bool_(),
    "STRING": pa.string(),
    "VARCHAR(9)": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}


def parse(folder: Path, type_: str, text: str, **declared: Any) -> list[dict[str, Any]]:
    """Read a key of a stream whose key column is of a type."""
    fields = {"topic": "t", "schema": f"id {type_} NOT NULL, tags ARRAY<INT>", "keys": ["id"]}
    spec = StreamSpec.model_validate({"name": "people", **fields, **declared})
    schema = pa.schema([("id", TYPES[type_]), ("tags", pa.list_(pa.int32()))])
    DeltaTable.create(folder / "people", schema)
    table = DeltaSinkTable("people", Location.of(folder / "people"))
    rows: list[dict[str, Any]] = parse_key(spec, table, text).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("type_", "written", "key"),
    [
        pytest.param("BIGINT", "5", 5, id="number"),
        pytest.param("DECIMAL(20, 2)", "5", Decimal("5.00"), id="whole decimal"),
        pytest.param(
            "DECIMAL(20, 2)", "123456789012345678.25", Decimal("123456789012345678.25"), id="digits"
        ),
        pytest.param("DECIMAL(20, 2)", '"5.25"', Decimal("5.25"), id="decimal in quotes"),
        pytest.param("BOOLEAN", "true", True, id="boolean"),
        pytest.param("STRING", '"5"', "5", id="text"),
        pytest.param("BINARY", '"YWRh"', b"ada", id="base64"),
        pytest.param("DATE", '"2026-11-22"', dt.date(2026, 11, 22), id="date"),
        pytest.param(
            "TIMESTAMP", '"2026-11-22T12:00+02:00"', MORNING,
            id="moment",
        ),
        pytest.param(
            "TIMESTAMP_NTZ", '"2026-11-22T10:00"', MORNING.replace(tzinfo=None), id="no zone"
        ),
    ],
)  # fmt: skip
def test_a_key_is_typed_as_its_column(tmp_path: Path, type_: str, written: str, key: Any) -> None:
    """What a record of JSON may hold there, and a decimal in quotes."""
    assert parse(tmp_path, type_, f'{{"id": {written}}}') == [{"id": key}]


@pytest.mark.parametrize(
    ("type_", "written", "says"),
    [
        pytest.param("BIGINT", '"5"', "id: expected BIGINT", id="text for a number"),
        pytest.param("BIGINT", "5.0", "id: expected BIGINT", id="fraction for a whole number"),
        pytest.param("BIGINT", "true", "id: expected BIGINT", id="boolean for a number"),
        pytest.param("TINYINT", "300", "id: expected TINYINT", id="too large"),
        pytest.param("DECIMAL(20, 2)", "5.255", "would be rounded", id="too many places"),
        pytest.param("DECIMAL(20, 2)", "true", r"id: expected DECIMAL\(20,2\)", id="no decimal"),
        pytest.param("STRING", "5", "id: expected STRING", id="number for a text"),
        pytest.param("BOOLEAN", '"true"', "id: expected BOOLEAN", id="text for a boolean"),
        pytest.param("DATE", "20", "id: expected DATE", id="number for a date"),
        pytest.param("BINARY", '"Ada"', "not base64", id="text for bytes"),
        pytest.param("BIGINT", "null", "id is null, and a key column cannot be null", id="null"),
        pytest.param("BIGINT", "[5]", "id: expected BIGINT", id="list"),
        pytest.param("BIGINT", '5, "id": 6', "comes twice", id="two values"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_an_example(
    tmp_path: Path, type_: str, written: str, says: str
) -> None:
    """Column and type are named, and the example fits the column."""
    with pytest.raises(InvalidSpecError, match=says) as refused:
        parse(tmp_path / "a", type_, f'{{"id": {written}}}')

    example = str(refused.value).partition("Next: write for example ")[2].strip("'")
    assert parse(tmp_path / "b", type_, example)


@pytest.mark.parametrize("type_", TYPES)
def test_an_example_fits_its_column(tmp_path: Path, type_: str) -> None:
    """Each type has one."""
    with pytest.raises(InvalidSpecError) as refused:
        parse(tmp_path / "a", type_, "{}")

    example = str(refused.value).partition("Next: write for example ")[2].strip("'")
    assert json.loads(example).keys() == {"id"}
    assert parse(tmp_path / "b", type_, example)


@pytest.mark.parametrize(
    ("text", "declared", "says"),
    [
        pytest.param("42", {}, "'42' is no JSON object", id="bare"),
        pytest.param("{", {}, "is no JSON object", id="no JSON"),
        pytest.param("{}", {}, "names no column; `keys` are id", id="empty"),
        pytest.param('{"name": "x"}', {}, "names name; `keys` are id", id="other column"),
        pytest.param(
            '{"nosuch": 1}', {"keys": [], "mode": "append"}, "'nosuch' is not a", id="unknown"
        ),
        pytest.param(
            '{"tags": [1]}', {"keys": [], "mode": "append"}, "tags is ARRAY<INT>", id="list"
        ),
    ],
)
def test_what_names_no_key_is_refused(
    tmp_path: Path, text: str, declared: dict[str, Any], says: str
) -> None:
    """The columns of the key, or what is wrong with those that are named."""
    with pytest.raises(InvalidSpecError, match=says):
        parse(tmp_path, "BIGINT", text, **declared)


@pytest.mark.parametrize(
    ("raw_value", "raw_key", "is_of_42"),
    [
        pytest.param('{"id": 42, "payload": {"id": 7}}', None, True, id="a field payload"),
        pytest.param('{"id": 7, "payload": {"id": 42}}', None, False, id="the payload of another"),
        pytest.param('{"id": 7, "after": {"id": 42}}', None, False, id="a field after"),
        pytest.param('{"id": 7, "before": {"id": 42}}', None, False, id="a field before"),
        pytest.param('{"id": 42, "id": 7}', None, None, id="a key that is named twice"),
        pytest.param('{"id": 7, "id": 42}', '{"id": 7}', None, id="twice, beside a Kafka key"),
        pytest.param('{"id": 7, "id": 9}', '{"id": 42}', True, id="twice, and of the Kafka key"),
        pytest.param(
            '{"id": 42, "at": 1, "at": 2}', None, True, id="another name that comes twice"
        ),
        pytest.param('{"id": 42, "at"', '{"id": 7}', None, id="cut short, beside a Kafka key"),
        pytest.param('{"id": 7, "at"', '{"id": 42}', True, id="cut short, and of the Kafka key"),
        pytest.param('{"id": 7, "at"', "42", True, id="cut short, and of the bare Kafka key"),
        pytest.param('{"at": 1}', '{"id": 7}', None, id="no key in the value"),
        pytest.param('{"id": "42"}', None, True, id="of another type"),
        pytest.param(None, '{"id": 7}', False, id="a delete of another"),
        pytest.param(None, '{"id": 42}', True, id="a delete"),
    ],
)
def test_a_bad_record_is_of_the_key_that_it_says(
    raw_value: str | None, raw_key: str | None, is_of_42: bool | None
) -> None:
    """By the whole of it; where that tells nothing, or not which, nobody knows."""
    assert judged({}, raw_value, raw_key) == is_of_42


@pytest.mark.parametrize(
    ("raw_value", "raw_key", "is_of_42"),
    [
        pytest.param('{"op": "u", "before": {"id": 42}, "after": {"id": 7}}', None, True, id="was"),
        pytest.param('{"op": "c", "after": {"id": 42}}', None, True, id="is"),
        pytest.param('{"op": "c", "after": {"id": 7, "after": {"id": 42}}}', None, False, id="no"),
        pytest.param('{"op": "c", "after": {"id": 42, "id": 7}}', None, None, id="twice"),
        pytest.param('{"schema": {}, "payload": {"after": {"id": 42}}}', None, True, id="schema"),
        pytest.param("cut", '{"schema": {}, "payload": {"id": 42}}', True, id="of the Kafka key"),
        pytest.param("cut", '{"schema": {}, "payload": {"id": 7}}', None, id="cut short"),
    ],
)
def test_an_envelope_is_of_the_keys_of_its_rows(
    raw_value: str, raw_key: str | None, is_of_42: bool | None
) -> None:
    """Debezium's envelope has two, with or without their schema around it."""
    assert judged({"format": "debezium"}, raw_value, raw_key) == is_of_42


@pytest.mark.parametrize(
    ("declared", "is_known"),
    [
        pytest.param({"transform": "tests.support.transforms.clean"}, False, id="transform"),
        pytest.param({"select": {"id": "at"}, "value_schema": "at INT"}, False, id="select"),
        pytest.param({"select": {"at": "id"}, "value_schema": "id INT"}, True, id="of another"),
        pytest.param(
            {"explode": "id", "value_schema": "id ARRAY<INT>, at INT"}, False, id="explode"
        ),
    ],
)
def test_a_key_that_is_computed_is_not_known(declared: dict[str, Any], is_known: bool) -> None:
    """What a bad record has under its name may be something else."""
    assert judged(declared, '{"id": 42}', None) == (True if is_known else None)
    assert judged(declared, '{"id": 7}', None) == (False if is_known else None)


def judged(declared: dict[str, Any], raw_value: str | None, raw_key: str | None) -> bool | None:
    """Tell whether a bad record is of key 42."""
    fields = {"topic": "t", "schema": "id INT NOT NULL, at INT", "keys": ["id"]}
    spec = StreamSpec.model_validate({"name": "people", **fields, **declared})
    key = pa.table({"id": pa.array([42], pa.int32())})
    value, of_kafka = (each if each is None else each.encode() for each in (raw_value, raw_key))
    return is_of_key(spec, key, raw_key=of_kafka, raw_value=value)
