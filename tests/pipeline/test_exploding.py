"""Rows of elements, as they are made of Arrow's batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from oncelake.ingestion.pipeline.explode import exploding, of_any_element

ROW = pa.struct([("id", pa.int32()), ("tag", pa.list_(pa.string()))])
DECODED = pa.struct(
    [("row", ROW), ("reason", pa.string()), ("is_delete", pa.bool_()), ("ended", ROW)]
)


def batch_of(*records: tuple[bytes | None, dict[str, Any]]) -> pa.RecordBatch:
    """Return decoded records, of which most say little."""
    empty = dict.fromkeys(field.name for field in DECODED)
    values = pa.array([value for value, _ in records], pa.binary())
    decoded = pa.array([{**empty, **each} for _, each in records], DECODED)
    return pa.RecordBatch.from_pydict({"_value": values, "_decoded": decoded})


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return value, element, index, and whether there is no element, of each row."""
    (made,) = exploding(lambda batches: batches, "tag")(iter([batch]))
    return [
        (row["_value"], (row["_decoded"]["row"] or {}).get("tag"), row["_index"], row["_is_empty"])
        for row in made.to_pylist()
    ]


def test_each_element_is_a_row_and_the_first_has_the_bytes() -> None:
    """A record without elements, a bad one, a delete and a null value are a row, too."""
    batch = batch_of(
        (b"1", {"row": {"id": 1, "tag": ["a", None]}}),
        (b"2", {"reason": "malformed_json"}),
        (b"3", {"row": {"id": 3, "tag": []}, "ended": {"id": 4, "tag": ["q"]}}),
        (b"4", {"row": {"id": 4, "tag": None}, "is_delete": True}),
        (None, {}),
    )
    rows = [
        (b"1", "a", 0, False),
        (b"", None, 1, False),
        (b"2", None, 0, False),
        (b"3", None, 0, True),
        (b"4", None, 0, False),
        (None, None, 0, False),
    ]

    assert rows_of(batch) == rows
    assert rows_of(batch.slice(1, 2)) == rows[2:4]
    assert rows_of(batch.slice(0, 0)) == []


def test_a_record_is_not_copied_for_each_of_its_elements() -> None:
    """Neither its bytes nor its array: 20,000 elements of 10 MB would be 200 GB."""
    batch = batch_of((b"x" * 10_000_000, {"row": {"id": 1, "tag": ["t"] * 20_000}}))
    before = pa.total_allocated_bytes()

    (made,) = exploding(lambda batches: batches, "tag")(iter([batch]))

    assert made.num_rows == 20_000
    assert pa.total_allocated_bytes() - before < 20_000_000


def test_rows_are_made_of_few_records_at_once() -> None:
    """Each has what its record has beside the array."""
    wide = [(b"x" * 100_000, {"row": {"id": id, "tag": ["t"] * 200}}) for id in range(10)]

    parts = list(exploding(lambda batches: batches, "tag")(iter([batch_of(*wide)])))

    assert len(parts) > 3
    ids = [row["_decoded"]["row"]["id"] for part in parts for row in part.to_pylist()]
    assert ids == [id for id in range(10) for _ in range(200)]
    assert all(part.column("_index")[0].as_py() == 0 for part in parts)


def test_one_bad_element_doubts_the_whole_record() -> None:
    """Its first row has the bytes that the quarantine needs."""
    flags, index = pa.array([False, True, False, False]), pa.array([0, 1, 0, 1])

    assert of_any_element(flags, index).to_pylist() == [True, True, False, False]
    assert of_any_element(flags.slice(0, 0), index.slice(0, 0)).to_pylist() == []
