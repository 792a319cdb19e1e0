"""A key that an index may not take goes to quarantine, by both programs, whatever it comes from."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.modes.engines.local import LocalEngine
from oncelake.ingestion.operations.init.decode_sample import judge_here
from oncelake.ingestion.pipeline.plan import compile_plan
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.fold.classify import Classifier
from oncelake.ingestion.verify.read.record import Record

DECLARED = {"name": "s", "topic": "t", "schema": "id STRING NOT NULL, n INT", "keys": ["id"]}
LONGEST = 2_000


def spec(**fields: Any) -> StreamSpec:
    """Declare a stream whose rows PostgreSQL keeps."""
    return StreamSpec.model_validate({**DECLARED, "sink": "postgres", **fields})


def by_engine(declared: StreamSpec, record: Record, folder: Path) -> tuple[str | None, str | None]:
    """Return reason and detail that the engine gives a record; it keeps the bytes of a bad one."""
    columns: dict[str, list[Any]] = {
        "_topic": ["t"],
        "_partition": [0],
        "_offset": [0],
        "_timestamp": [dt.datetime.fromtimestamp(0, dt.UTC)],
        "_key": [record.key],
        "_value": [record.value],
        "_headers": [None],
        "_digest": [7],
    }
    types = [pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC"), pa.binary()]
    schema = pa.schema(zip(columns, [*types, pa.binary(), pa.string(), pa.int64()], strict=True))
    records = pa.table(columns, schema=schema)
    judged = judge_here(records, compile_plan(declared), Settings())
    with closing(LocalEngine("s", folder)) as engine:
        engine.materialize(judged)
        (row,) = engine.rows("SELECT * FROM batch")
    assert (row["_value"] is not None) == (row["_reason"] is not None and record.value is not None)
    return row["_reason"], row["_detail"]


def by_proof(declared: StreamSpec, record: Record) -> str | None:
    """Return why the proof wants a record in quarantine."""
    bad = Classifier(declared).classify([record], seq=1).bad
    return bad[0][1] if bad else None


def record(value: object, key: object = None) -> Record:
    """Return a record of JSON."""
    given = (None if each is None else json.dumps(each).encode() for each in (value, key))
    raw_value, raw_key = given
    return Record("t", 0, 0, 0, raw_key, raw_value, None)


TWO = {"schema": "id STRING NOT NULL, of VARCHAR(3000) NOT NULL", "keys": ["id", "of"]}
BYTES = {"schema": "id BINARY NOT NULL, n INT"}


@pytest.mark.parametrize(
    ("fields", "value", "key", "size"),
    [
        pytest.param({}, {"id": "x" * 2_000}, None, 2_000, id="the longest"),
        pytest.param({}, {"id": "x" * 2_001}, None, 2_001, id="a byte more"),
        pytest.param({}, {"id": "é" * 1_000}, None, 2_000, id="two bytes a letter"),
        pytest.param({}, {"id": "é" * 1_000 + "e"}, None, 2_001, id="bytes, and not letters"),
        pytest.param(TWO, {"id": "x" * 1_500, "of": "y" * 500}, None, 2_000, id="two columns"),
        pytest.param(TWO, {"id": "x" * 1_500, "of": "y" * 501}, None, 2_001, id="their sum"),
        pytest.param(BYTES, {"id": "QUFB" * 667}, None, 2_001, id="bytes of BINARY"),
        pytest.param(BYTES, {"id": "QUFB" * 666}, None, 1_998, id="fewer of them"),
        pytest.param({}, None, {"id": "x" * 2_001}, 2_001, id="a delete"),
        pytest.param({"deletes": "soft"}, None, {"id": "x" * 2_001}, 2_001, id="a soft delete"),
        pytest.param({"schema": "id BIGINT, n INT"}, {"id": 7}, None, 0, id="a number"),
        pytest.param({"mode": "append", "keys": []}, {"id": "x" * 2_001}, None, 0, id="no key"),
        pytest.param({"sink": "delta"}, {"id": "x" * 2_001}, None, 0, id="another sink"),
        pytest.param(
            {"mode": "insert_only", "tombstones": "ignore"},
            *({"id": "x" * 2_001}, None, 2_001),
            id="insert_only",
        ),
    ],
)
def test_both_programs_measure_a_key_alike(
    tmp_path: Path, fields: dict[str, Any], value: object, key: object, *, size: int
) -> None:
    """Its texts, in UTF-8, and its bytes have 2,000 together at most; the detail says how many."""
    declared, sent = spec(**fields), record(value, key)

    reason, detail = by_engine(declared, sent, tmp_path)

    is_long = size > LONGEST
    assert (reason, detail) == (("key_too_long", f"{size} bytes") if is_long else (None, None))
    proof = by_proof(declared, sent)
    assert proof == (f"a key of {size} bytes, and its sink takes {LONGEST}" if is_long else None)


@pytest.fixture
def connection(postgres_address: str) -> Iterator[psycopg.Connection]:
    """A session whose table is gone with it."""
    with psycopg.connect(postgres_address) as connection:
        yield connection


@pytest.mark.parametrize(
    "columns",
    [
        ["text"],
        ["bytea"],
        ["text", "text", "bigint", "numeric(38, 9)", "timestamptz"],
        ["smallint", *["varchar(2000)", "numeric(38, 38)", "boolean", "double precision"] * 3],
    ],
    ids=["a text", "bytes", "several", "many"],
)
def test_the_longest_key_fits_an_index(connection: psycopg.Connection, columns: list[str]) -> None:
    """Whatever cannot be pressed together, of several columns and types, is below the limit."""
    names = [f"c{nth}" for nth in range(len(columns))]
    declared = ", ".join(f"{name} {type_}" for name, type_ in zip(names, columns, strict=True))
    unique = f"UNIQUE ({', '.join(names)})"
    connection.execute(f"CREATE TEMPORARY TABLE long ({declared}, {unique})".encode())
    texts = sum(type_ in ("text", "bytea", "varchar(2000)") for type_ in columns)
    noise = "(SELECT string_agg(chr(33 + (random() * 90)::int), '') FROM generate_series(1, {}))"
    values = {
        "text": noise.format(LONGEST // texts),
        "varchar(2000)": noise.format(LONGEST // texts),
        "bytea": f"convert_to({noise.format(LONGEST)}, 'UTF8')",
        "numeric(38, 9)": f"{'9' * 29}.123456789",
        "numeric(38, 38)": f"0.{'9' * 38}",
        "timestamptz": "now()",
        "bigint": "1",
        "smallint": "1",
        "boolean": "true",
        "double precision": "1.5",
    }
    row = ", ".join(values[type_] for type_ in columns)

    connection.execute(f"INSERT INTO long VALUES ({row})".encode())

    assert connection.execute("SELECT count(*) FROM long").fetchone() == (1,)
