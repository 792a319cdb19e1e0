"""An update that gives a row another key deletes the row of the old one."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.modes.engines.local import LocalEngine
from oncelake.ingestion.modes.keep_columns import keep_columns
from oncelake.ingestion.operations.init.decode_sample import judge_here, table_of
from oncelake.ingestion.operations.init.sample import SampledRecord, TopicSample
from oncelake.ingestion.pipeline.plan import compile_plan
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.fold.classify import Classifier
from oncelake.ingestion.verify.read.record import Record
from tests.support.debezium import MISSING
from tests.verify.factories import Folded

Row = dict[str, Any]
DDL: Final = "id BIGINT NOT NULL, part INT, name STRING, lsn BIGINT"
COMPOSITE: Final = {"keys": ["part", "id"]}


def moving(**fields: Any) -> StreamSpec:
    """A stream of Debezium's events, keyed by ``id`` unless told otherwise."""
    format_ = {"type": "debezium", "columns": {"lsn": "source.lsn"}}
    base = {"name": "s", "topic": "t", "schema": DDL, "keys": ["id"], "format": format_}
    return StreamSpec.model_validate({**base, **fields})


def update(before: Row | None, after: Row | None, op: str = "u") -> bytes:
    """One event."""
    envelope = {"op": op, "before": before, "after": after, "source": {"lsn": 7}}
    return json.dumps(envelope).encode()


def batch_of(spec: StreamSpec, value: bytes) -> pa.Table:
    """What the engine makes of one record."""
    record = SampledRecord(0, 5, 0, b'{"id": 99}', value, ())
    sample = TopicSample(topic="t", partitions=1, ranges=(), records=(record,))
    records = table_of(sample.topic, sample.records)
    rows = judge_here(records, compile_plan(spec), Settings())
    with duckdb.connect() as tables:
        tables.register("decoded", rows.here())
        return tables.sql(rows.sql).to_arrow_table()


def judged(spec: StreamSpec, value: bytes) -> list[Row]:
    """The rows of one record, its own first."""
    rows: list[Row] = batch_of(spec, value).to_pylist()
    return sorted(rows, key=lambda row: row["_index"])


def by_the_engine(spec: StreamSpec, value: bytes) -> list[tuple[Any, ...]]:
    """Each row's disposition, or the reason, and the columns where it can be applied."""
    names = [column.name for column in spec.columns]
    return [
        (row["_reason"],)
        if row["_disposition"] == "quarantined"
        else (row["_disposition"], *(row[name] for name in names))
        for row in judged(spec, value)
    ]


def by_the_proof(spec: StreamSpec, value: bytes) -> tuple[list[tuple[str, str]], int, int]:
    """What the proof makes of it: changes by key, rows beyond the first, records in quarantine."""
    record = Record("t", 0, 5, 0, b'{"id": 99}', value)
    result = Classifier(spec).classify([record], seq=1)
    changes = [("delete" if c.row is None else "row", c.key) for c in result.changes]
    return changes, result.counts["exploded"], len(result.bad)


ONE: Final = {"id": 1, "part": 4, "name": "a"}
TWO: Final = {"id": 2, "part": 4, "name": "b"}
OLD, NEW = ("delete", 1, 4, "a", 7), ("row", 2, 4, "b", 7)
CASES: Final[dict[str, tuple[Row, bytes, list[tuple[Any, ...]]]]] = {
    "another key": ({}, update(ONE, TWO), [NEW, OLD]),
    "only the key of before": ({}, update({"id": 1}, TWO), [NEW, ("delete", 1, None, None, 7)]),
    "the same key": ({}, update(ONE, {**TWO, "id": 1}), [("row", 1, 4, "b", 7)]),
    "no before": ({}, update(None, TWO), [NEW]),
    "before without the key": ({}, update({"name": "a"}, TWO), [NEW]),
    "a null key in before": ({}, update({**ONE, "id": None}, TWO), [NEW]),
    "before of another type": ({}, update({**ONE, "id": "x"}, TWO), [NEW]),
    "the placeholder in before": ({}, update({**ONE, "id": MISSING}, TWO), [NEW]),
    "a column of before that does not fit": (
        {},
        update({**ONE, "part": "x"}, TWO),
        [NEW, ("delete", 1, None, "a", 7)],
    ),
    "a create with a row before": ({}, update(ONE, TWO, op="c"), [NEW]),
    "a snapshot with a row before": ({}, update(ONE, TWO, op="r"), [NEW]),
    "an update that is bad": ({}, update(ONE, {**TWO, "part": "x"}), [("type_mismatch",)]),
    "no key after": ({}, update(ONE, {**TWO, "id": None}), [("missing_key",)]),
    "the first of two": (COMPOSITE, update({**ONE, "id": 2, "part": 3}, TWO), [
        NEW, ("delete", 2, 3, "a", 7)]),
    "the second of two": (COMPOSITE, update(ONE, TWO), [NEW, OLD]),
    "half of a key, which differs": (COMPOSITE, update({"id": 1}, TWO), [("moved_key",)]),
    "half of a key, which does not": (COMPOSITE, update({"id": 2}, TWO), [NEW]),
    "a key of the envelope": ({"keys": ["id", "lsn"]}, update(ONE, TWO), [NEW, OLD]),
    "an order": ({"sequence_by": ["lsn"]}, update(ONE, TWO), [NEW, OLD]),
    "history": ({"mode": "scd2", "sequence_by": ["lsn"]}, update(ONE, TWO), [NEW, OLD]),
    "partial updates": ({"ignore_null_updates": True}, update(ONE, TWO), [NEW, OLD]),
    "partial updates, which cannot keep what is left out": (
        {"ignore_null_updates": True},
        update(ONE, {**TWO, "name": MISSING}),
        [("unavailable_value",)],
    ),
    "inserts alone": ({"mode": "insert_only"}, update(ONE, TWO), [NEW]),
    "every record": ({"mode": "append", "keys": []}, update(ONE, TWO), [NEW]),
    "a soft delete": ({"deletes": "soft"}, update(ONE, TWO), [NEW, OLD]),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "value", "due"), CASES.values(), ids=CASES)
def test_an_update_that_moves_its_key_is_a_delete_too(
    fields: Row, value: bytes, due: list[tuple[Any, ...]]
) -> None:
    """One record gives both rows, or none where the old key is known only in part."""
    spec = moving(**fields)

    assert by_the_engine(spec, value) == due


@pytest.mark.parametrize(("fields", "value", "due"), CASES.values(), ids=CASES)
def test_the_proof_finds_the_same_delete(
    fields: Row, value: bytes, due: list[tuple[Any, ...]]
) -> None:
    """By its own reading of the envelope: the same keys, the same counts."""
    spec = moving(**fields)
    names = [column.name for column in spec.columns]
    is_bad = len(due[0]) == 1
    keys = [] if is_bad else [[row[1 + names.index(name)] for name in spec.keys] for row in due]

    changes, exploded, bad = by_the_proof(spec, value)

    assert (exploded, bad) == (0 if is_bad else len(due) - 1, int(is_bad))
    if spec.keys:
        assert [key for _, key in changes] == [repr(key) for key in keys]


def test_a_soft_delete_of_an_old_key_stands_where_its_row_does() -> None:
    """The row that is marked has the place of the record, as the proof expects it."""
    spec = moving(deletes="soft")
    classifier = Classifier(spec)

    result = classifier.classify([Record("t", 0, 5, 0, None, update(ONE, TWO))], seq=1)

    assert [c.place for c in result.changes] == [
        classifier.place_of(c.row) for c in result.changes if c.row is not None
    ]


@pytest.mark.parametrize(
    ("there", "due"),
    [
        ([], [("quarantined", 2, None)]),
        ([{"id": 1, "name": "kept"}], [("row", 2, "kept"), ("delete", 1, "kept")]),
    ],
    ids=["without the old row", "with it"],
)
def test_what_the_update_leaves_out_decides_about_both_rows(
    tmp_path: Path, there: list[Row], due: list[tuple[Any, ...]]
) -> None:
    """The new row takes it from the old one; where none is known, neither row is applied."""
    spec = moving(sequence_by=["lsn"])
    place = {"lsn": 1, "_topic": "t", "_partition": 0, "_offset": 0, "_epoch": 1}
    batch = batch_of(spec, update(ONE, {**TWO, "name": MISSING}))
    columns = [field for field in batch.schema if field.name in {*spec.types, *place}]
    before = pa.Table.from_pylist(
        [{**row, **place} for row in there], pa.schema([*columns, ("_epoch", pa.int32())])
    )
    with closing(LocalEngine("s", tmp_path)) as engine:
        engine.hold(batch)
        target: Any = SimpleNamespace(
            engine=engine,
            spec=spec,
            epoch=1,
            paths=StreamPaths.of("s", Settings(lake=tmp_path / "lake"), spec.sink),
            table=SimpleNamespace(open_before=lambda _: engine.hold(before, name="before")),
        )
        keep_columns(target)
        rows = engine.rows("SELECT _disposition, id, name FROM batch ORDER BY _index")

    assert [tuple(row.values()) for row in rows] == due


def test_the_proof_takes_along_what_the_old_row_held_at_last() -> None:
    """What an update leaves out is what the key's newest row had, right before that update."""
    spec = moving()
    rows = [{"id": 1, "part": 4, "name": name} for name in ("first", "last")]
    values = [update(None, row) for row in rows] + [update(ONE, {**TWO, "name": MISSING})]
    records = [Record("t", 0, at, 0, None, value) for at, value in enumerate(values)]

    folded = Folded(records[:1], records[1:], spec=spec)

    assert [row[:3] for row in folded.rows] == [(2, 4, "last")]
    assert (folded.recounts[1].counts["exploded"], folded.bad) == (1, {})
