"""The second opinion is itself judged here: a wrong oracle proves wrong things."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ingestion.local.compare import differences, digest, table_rows
from ingestion.local.fold import COORDINATES, Folded, Record, fold
from ingestion.spec import StreamSpec

DDL = "id BIGINT NOT NULL, name STRING, at INT"


def declared(**fields: Any) -> StreamSpec:
    """Return a small stream, ordered by ``at`` unless told otherwise."""
    base = {"name": "s", "topic": "t", "schema": DDL, "keys": "id", "sequence_by": "at"}
    return StreamSpec.model_validate({**base, **fields})


def record(offset: int, value: object, *, partition: int = 0, key: bytes | None = None) -> Record:
    """Return a record whose value is bytes, nothing, or an object to be written as JSON."""
    raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return Record("t", partition, offset, 1_000 * offset, key, raw)


def folded(*records: Record, spec: StreamSpec | None = None) -> Folded:
    """Fold records of a stream whose deletes, if it declares any, have the name ``gone``."""
    spec = spec or declared()
    is_delete = (lambda row: row["name"] == "gone") if spec.apply_as_deletes else None
    return fold(records, spec, is_delete=is_delete)


def test_the_highest_order_wins_whenever_it_comes() -> None:
    """An older update that comes later, even from another partition, changes nothing."""
    newest = record(0, {"id": 1, "name": "new", "at": 9})

    assert folded(newest, record(5, {"id": 1, "name": "old", "at": 3}, partition=1)).rows == {
        (1,): (1, "new", 9, "t", 0, 0)
    }


def test_equal_order_is_decided_by_partition_and_offset() -> None:
    """Of two records of one order, the one further on in the topic wins."""
    rows = folded(record(4, {"id": 1, "at": 9}), record(5, {"id": 1, "at": 9})).rows

    assert rows == {(1,): (1, None, 9, "t", 0, 5)}


def test_the_dead_stay_dead_in_every_order_of_arrival() -> None:
    """A delete beats older updates, and a newer one raises the key, however they arrive."""
    spec = declared(apply_as_deletes="name = 'gone'")
    old, gone, new = ({"id": 1, "name": n, "at": at} for at, n in enumerate(("old", "gone", "new")))

    for order in permutations((old, gone)):
        told = folded(*(record(i, value) for i, value in enumerate(order)), spec=spec)
        assert (told.rows, told.deleted) == ({}, 1)
    for order in permutations((old, gone, new)):
        told = folded(*(record(i, value) for i, value in enumerate(order)), spec=spec)
        assert [row[1] for row in told.rows.values()] == ["new"]


def test_a_delete_needs_no_more_than_key_and_order() -> None:
    """Columns that a living row must have may be null in a delete."""
    spec = declared(schema=f"{DDL}, must INT NOT NULL", apply_as_deletes="name = 'gone'")
    living, dying = ({"id": 1, "name": name, "at": 1} for name in ("here", "gone"))

    told = folded(record(0, living), record(1, dying), spec=spec)

    assert (told.deleted, sum(told.bad.values())) == (1, 1)


def test_without_an_order_the_offset_decides_within_a_partition() -> None:
    """The last record wins; the same key from another partition cannot be ordered."""
    spec = declared(sequence_by=[])
    one, two = record(0, {"id": 1, "at": 9}), record(1, {"id": 1, "at": 3})

    assert folded(one, two, spec=spec).rows == {(1,): (1, None, 3, "t", 0, 1)}
    assert folded(one, two._replace(partition=1), spec=spec).incomparable == ((1,),)


@pytest.mark.parametrize(
    ("key", "is_read"),
    [
        pytest.param(b'{"id": 1}', True, id="object"),
        pytest.param(b"1", True, id="bare scalar"),
        pytest.param(b'"1"', False, id="text for a number"),
        pytest.param(b'{"no": 1}', False, id="another name"),
        pytest.param(None, False, id="no key"),
    ],
)
def test_a_tombstone_takes_its_key_from_kafka(key: bytes | None, is_read: bool) -> None:
    """A tombstone deletes the row of its key, or is bad when it has none."""
    told = folded(
        record(0, {"id": 1, "at": 1}),
        record(1, None, key=key),
        spec=declared(sequence_by="_timestamp"),
    )

    assert (told.deleted, sum(told.bad.values())) == ((1, 0) if is_read else (0, 1))


@pytest.mark.parametrize(
    "key", [b"a-1", b'"a-1"', b'{"name": "a-1"}'], ids=["plain", "JSON string", "object"]
)
def test_a_text_key_may_be_bare(key: bytes) -> None:
    """A key column of text is read from plain text, a JSON string or an object."""
    spec = declared(keys="name", sequence_by=[])
    told = folded(record(0, {"id": 1, "name": "a-1"}), record(1, None, key=key), spec=spec)

    assert told.deleted == 1


@pytest.mark.parametrize(
    ("policy", "bad", "ignored"),
    [(None, 1, 0), ("quarantine", 1, 0), ("ignore", 0, 1)],
    ids=["default", "quarantine", "ignore"],
)
def test_a_tombstone_without_order_is_bad_or_ignored(
    policy: str | None, bad: int, ignored: int
) -> None:
    """Where the order is in the value, a tombstone never deletes."""
    told = folded(
        record(0, {"id": 1, "at": 1}),
        record(1, None, key=b'{"id": 1}'),
        spec=declared(tombstones=policy),
    )

    assert (len(told.rows), sum(told.bad.values()), told.ignored) == (1, bad, ignored)


def test_every_kind_of_difference_is_evidence() -> None:
    """Missing, extra, doubled and altered rows are each named with their place."""
    told = folded(*(record(i, {"id": i, "at": i}) for i in range(4)))
    rows = list(told.rows.values())
    altered = (*rows[2][:2], 99, *rows[2][3:])
    extra = (7, None, 7, "t", 0, 9)

    found = differences(told, declared(), [rows[0], rows[0], altered, rows[3], extra])

    assert found == (
        "key (0,) is in the table twice; again from t-0 at 0",
        "key (2,) from t-0 at 2: at is 99, not 2",
        "key (7,) is in the table, from t-0 at 9, and should not be",
        "key (1,) is missing from the table; the topic has it at t-0 at 1",
    )
    assert differences(told, declared(), rows) == ()


def test_evidence_is_limited() -> None:
    """The first differences are enough."""
    told = folded(*(record(i, {"id": i, "at": i}) for i in range(50)))

    assert len(differences(told, declared(), [])) == 20


def test_a_table_is_read_back_as_the_fold_says_it(tmp_path: Path) -> None:
    """Rows that delta-rs reads equal folded rows, type by type, and have the same hash."""
    spec = declared(
        schema="id INT, name STRING, at TIMESTAMP, on DATE, price DECIMAL(9,2), ok BOOLEAN"
    )
    values = {"id": 1, "at": "2013-01-01T10:00:00.123456+02:00", "on": "2013-01-01", "price": 1.5}
    told = folded(record(3, values), spec=spec)
    names = [*(column.name for column in spec.columns), *COORDINATES]
    types = [pa.int32(), pa.string(), pa.timestamp("us", "UTC"), pa.date32(), pa.decimal128(9, 2)]
    schema = list(
        zip(names, [*types, pa.bool_(), pa.string(), pa.int32(), pa.int64()], strict=True)
    )
    rows = [dict(zip(names, row, strict=True)) for row in told.rows.values()]
    write_deltalake(tmp_path, pa.Table.from_pylist(rows, schema=pa.schema(schema)))

    read = table_rows(tmp_path, spec)

    assert differences(told, spec, read) == ()
    assert digest(read) == digest(told.rows.values())
