"""The texts that judge, order and fill a batch say the same in both engines, on literal tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pytest

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import KeyInTwoPartitionsError
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.modes.engines.local import LocalEngine
from oncelake.ingestion.modes.engines.spark import SparkEngine
from oncelake.ingestion.modes.keep_columns import keep_columns
from oncelake.ingestion.modes.ordering import examine_keys
from oncelake.ingestion.pipeline.plan import compile_plan
from oncelake.ingestion.pipeline.rules import batch_of, judged
from oncelake.ingestion.settings import Settings

NOW: Final = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
NAMES: Final = pa.list_(pa.string())
PLACE: Final = [
    ("_topic", pa.string()),
    ("_partition", pa.int32()),
    ("_offset", pa.int64()),
    ("_timestamp", pa.timestamp("us", "UTC")),
]
COLUMNS: Final = [("id", pa.int64()), ("name", pa.string()), ("at", pa.int64())]
RAW: Final = [("_key", pa.binary()), ("_value", pa.binary()), ("_headers", pa.string())]
DECODED: Final = pa.schema(
    [
        *PLACE,
        *COLUMNS,
        *RAW,
        ("_digest", pa.int64()),
        ("_wrong", pa.string()),
        ("_wrong_detail", pa.string()),
        ("_extra", NAMES),
        ("_says_delete", pa.bool_()),
        ("_is_tombstone", pa.bool_()),
        ("_bytes", pa.int32()),
    ]
)
BATCH: Final = pa.schema(
    [
        *PLACE,
        ("_index", pa.int32()),
        *COLUMNS,
        *RAW,
        ("_disposition", pa.string()),
        ("_unavailable", NAMES),
        ("_moved_from", pa.struct([("id", pa.int64())])),
        ("_moves", pa.bool_()),
        ("_reason", pa.string()),
        ("_detail", pa.string()),
    ]
)
BEFORE: Final = pa.schema([*PLACE, *COLUMNS, ("_epoch", pa.int32())])


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An engine that holds nothing yet."""
    if request.param == "local":
        opened: Any = LocalEngine("s", tmp_path)
    else:
        opened = SparkEngine(request.getfixturevalue("spark"))
    yield opened
    opened.close()


def name_table(engine: Any, name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    """Give an engine a table of literal rows."""
    table = pa.Table.from_pylist(rows, schema=schema)
    if isinstance(engine, LocalEngine):
        engine.hold(table, name=name)
    else:
        engine.spark.createDataFrame(table).createOrReplaceTempView(name)


def record(
    offset: int, id: int | None, name: str | None, at: int = 1, **more: Any
) -> dict[str, Any]:
    """A record of partition 0, unless told otherwise."""
    place = {"_topic": "t", "_partition": 0, "_offset": offset, "_timestamp": NOW}
    return {**place, "_index": 0, "id": id, "name": name, "at": at, **more}


def declared(**fields: Any) -> StreamSpec:
    """A stream with a key."""
    base = {"name": "s", "topic": "t", "schema": "id BIGINT, name STRING NOT NULL, at BIGINT"}
    return StreamSpec.model_validate({**base, "keys": ["id"], **fields})


def test_every_record_has_one_disposition(engine: Any) -> None:
    """The first thing that is wrong with a record is its reason; overlap comes before any."""
    rows = [
        record(1, 1, "old"),
        record(2, 1, "a", _says_delete=True),
        record(3, None, "a"),
        record(4, 1, None),
        record(5, 1, None, _says_delete=True),
        record(6, None, None, _wrong="bad_json", _wrong_detail="no document"),
        record(7, 2, "b", _extra=["more"]),
        record(8, None, None, _is_tombstone=True),
    ]
    usual = {"_is_tombstone": False, "_bytes": 3, "_digest": 7, "_value": b"raw"}
    name_table(engine, "decoded", [{**usual, **row} for row in rows], DECODED)

    plan = compile_plan(declared()).judge
    text = batch_of(judged(plan, Offsets({TopicPartition("t", 0): 2})), plan)
    engine.define("batch", text)

    found = engine.rows("SELECT * FROM batch ORDER BY _offset")
    assert [(row["_disposition"], row["_reason"], row["_detail"]) for row in found] == [
        ("overlap", None, None),
        ("delete", None, None),
        ("quarantined", "missing_key", "null: id"),
        ("quarantined", "missing_required", "null: name"),
        ("delete", None, None),
        ("quarantined", "bad_json", "no document"),
        ("row", None, None),
        ("quarantined", "tombstone_without_key", "null: id, name"),
    ]
    assert [row["_value"] is None for row in found] == [
        row["_disposition"] != "quarantined" for row in found
    ]


def test_rows_that_need_no_column_are_all_taken(engine: Any) -> None:
    """Where nothing is declared that may not be null, the text is a query all the same."""
    usual = {"_is_tombstone": False, "_says_delete": False, "_bytes": 3, "_digest": 7}
    name_table(engine, "decoded", [{**usual, **record(1, None, None)}], DECODED)
    spec = declared(schema="id BIGINT, name STRING, at BIGINT", keys=[], mode="append")

    plan = compile_plan(spec).judge
    engine.define("batch", batch_of(judged(plan, Offsets()), plan))

    assert [row["_disposition"] for row in engine.rows("SELECT * FROM batch")] == ["row"]


def test_keys_are_counted_and_a_key_of_two_partitions_is_named(engine: Any) -> None:
    """With an order two partitions are no matter; without one both records are named."""
    rows = [record(1, 1, "a"), record(2, 5, "b"), record(9, 5, "c", _partition=1)]
    name_table(engine, "good", rows, pa.schema([*PLACE, *COLUMNS]))
    target: Any = SimpleNamespace(engine=engine, spec=declared())

    assert examine_keys(target, has_order=True) == (2, {"id": (1, 5)})
    with pytest.raises(KeyInTwoPartitionsError, match=r"key \(id=5\) came from t-0 offset 2 and"):
        examine_keys(target, has_order=False)


@pytest.mark.parametrize("is_moved", [False, True], ids=["same key", "another key"])
def test_an_update_is_filled_from_the_row_before_it(
    engine: Any, tmp_path: Path, is_moved: bool
) -> None:
    """Both updates take the value from the table; an update of a key without row has none."""
    format_ = {"type": "debezium", "columns": {"at": "source.lsn"}}
    spec = declared(format=format_, sequence_by=["at"])
    lacking: dict[str, Any] = {"_disposition": "row", "_unavailable": ["name"]}
    end: dict[str, Any] = {"_disposition": "delete", "_unavailable": ["name"], "_index": 1}
    old = 1 if is_moved else None
    rows = [
        record(5, 1, None, 5, **lacking),
        record(6, 2 if old else 1, None, 6, **lacking, _moved_from=old and {"id": old}),
        *([record(6, 1, None, 6, **end)] if is_moved else []),
        record(7, 3, None, 7, **lacking),
    ]
    name_table(engine, "batch", rows, BATCH)
    before = [{**record(1, 1, "kept", 1), "_epoch": 1}]
    target: Any = SimpleNamespace(
        engine=engine,
        spec=spec,
        epoch=1,
        paths=StreamPaths.of("s", Settings(lake=tmp_path / "lake"), spec.sink),
        table=SimpleNamespace(
            open_before=lambda keys: name_table(engine, "before", before, BEFORE)
        ),
    )

    keep_columns(target)

    filled = engine.rows("SELECT * FROM batch ORDER BY _offset, _index")
    due = [("row", 1, "kept"), ("row", 2 if is_moved else 1, "kept")]
    due += [("delete", 1, "kept")] if is_moved else []
    assert [(row["_disposition"], row["id"], row["name"]) for row in filled] == [
        *due,
        ("quarantined", 3, None),
    ]
    assert filled[-1]["_reason"] == "nothing_to_keep"
