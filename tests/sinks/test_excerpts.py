"""A few rows of a Parquet file are read as the whole file has them, or not at all."""

from __future__ import annotations

import datetime as dt
import random
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from oncelake.ingestion.delta import excerpts
from oncelake.ingestion.delta.excerpts import SMALL_PAGES, NoPagesError, read_rows

ROWS = 5_000
MOMENT = dt.datetime(2024, 2, 28, 12, 34, 56, 789_999, dt.UTC)
WAYS: dict[str, dict[str, Any]] = {
    "ours": {**SMALL_PAGES, "compression": "snappy", "store_decimal_as_integer": True},
    "large pages": {"write_page_index": True},
    "pages of the second kind": {**SMALL_PAGES, "data_page_version": "2.0", "compression": "zstd"},
    "no dictionary": {**SMALL_PAGES, "use_dictionary": False, "compression": "none"},
    "a dictionary that is too large": {**SMALL_PAGES, "dictionary_pagesize_limit": 2_000},
    "pages of three rows": {**SMALL_PAGES, "max_rows_per_page": 3, "write_page_checksum": True},
}


def columns(dice: random.Random) -> pa.Table:
    """Return rows of every plain type, with nulls."""

    def values(make: Any) -> list[Any]:
        return [make(n) if dice.random() < 0.9 else None for n in range(ROWS)]

    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "text": values(lambda n: f"text {n % 700}"),
            "long": values(lambda n: "x" * (n % 300)),
            "bytes": pa.array(values(lambda n: bytes([n % 256] * (n % 5))), pa.binary()),
            "tiny": pa.array(values(lambda n: n % 100), pa.int8()),
            "is_it": values(lambda n: n % 3 == 0),
            "number": pa.array(values(lambda n: n / 7), pa.float32()),
            "day": values(lambda n: dt.date(1960, 1, 1) + dt.timedelta(n)),
            "at": pa.array(
                values(lambda n: MOMENT + dt.timedelta(hours=n)), pa.timestamp("us", "UTC")
            ),
            "local": pa.array(
                values(lambda n: MOMENT.replace(tzinfo=None) + dt.timedelta(n)),
                pa.timestamp("us"),
            ),
            "price": pa.array(values(lambda n: Decimal(n) / 100), pa.decimal128(10, 2)),
            "large": pa.array(values(lambda n: Decimal(n) ** 7), pa.decimal128(38, 0)),
            "nothing": pa.nulls(ROWS, pa.string()),
        }
    )


def some(dice: random.Random, count: int) -> np.ndarray:
    """Return numbers of rows, in their order."""
    return np.array(sorted(dice.sample(range(ROWS), count)), np.int64)


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_read_as_the_file_has_them(tmp_path: Path, way: str) -> None:
    """Few and all, of one row group and of many; a column that it lacks is null, a known one is."""
    dice, file = random.Random(way), tmp_path / "rows.parquet"
    rows = columns(dice)
    pq.write_table(rows, file, row_group_size=dice.choice([999, 10_000]), **WAYS[way])
    more = [pa.field("lacking", pa.int32()), pa.field("known", pa.int64())]
    schema = pa.schema([*rows.schema, *more])

    for count in (1, 2, 50, 1_000, ROWS):
        wanted = some(dice, count)
        read = read_rows(file, schema, wanted, {"known": pa.scalar(7)})

        assert read.select(rows.column_names).equals(rows.take(pa.array(wanted)))
        assert read["lacking"].null_count == count
        assert read["known"].unique().to_pylist() == [7]


def test_rows_of_delta_rs_are_read_as_the_file_has_them(tmp_path: Path) -> None:
    """Its pages are larger, and it says where they are."""
    dice = random.Random(1)
    rows = columns(dice).drop_columns(["nothing"])
    write_deltalake(tmp_path, rows)
    (file,) = tmp_path.glob("*.parquet")
    wanted = some(dice, 40)

    assert read_rows(file, rows.schema, wanted, {}).equals(rows.take(pa.array(wanted)))


@pytest.mark.parametrize(
    ("values", "options"),
    [
        pytest.param([1, 2], {}, id="no page index"),
        pytest.param([[1], [2]], SMALL_PAGES, id="lists"),
        pytest.param([{"n": 1}, {"n": 2}], SMALL_PAGES, id="structs"),
    ],
)
def test_rows_that_cannot_be_read_by_themselves_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[Any], options: dict[str, Any]
) -> None:
    """No column is read then, and the next time not even the footer."""
    file, rows = tmp_path / "rows.parquet", pa.table({"id": [1, 2], "more": values})
    pq.write_table(rows, file, **options)
    monkeypatch.delattr(excerpts, "_excerpt")

    for _ in range(2):
        with pytest.raises(NoPagesError):
            read_rows(file, rows.schema, np.array([1]), {})
        monkeypatch.setattr(excerpts, "_column", None)


@pytest.mark.parametrize(
    ("column", "row", "by"),
    [(1, 1, 2), (3, 1, 2), (5, 0, 2), (5, 2, 1 << 11), (5, -1, 1 << 13)],
    ids=["begin", "size", "first row", "order of rows", "last rows"],
)
def test_a_page_index_that_contradicts_itself_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: int, row: int, by: int
) -> None:
    """Pages follow one another, and so do their rows, from the first on."""
    file, rows = tmp_path / "rows.parquet", pa.table({"id": range(ROWS)})
    pq.write_table(rows, file, **SMALL_PAGES)
    varints = excerpts._varints

    def damaged(content: bytes, count: int) -> Any:
        numbers = varints(content, count)
        numbers.reshape(-1, 7)[row, column] += by
        return numbers

    monkeypatch.setattr(excerpts, "_varints", damaged)

    with pytest.raises(NoPagesError):
        read_rows(file, rows.schema, np.array([1]), {})


def test_most_rows_of_a_file_are_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An excerpt takes memory, and no less time then."""
    file, rows = tmp_path / "rows.parquet", pa.table({"id": range(ROWS)})
    pq.write_table(rows, file, **SMALL_PAGES)
    monkeypatch.setattr(excerpts, "_ROWS_DECODED", 0)

    assert read_rows(file, rows.schema, np.array([7, 600]), {})["id"].to_pylist() == [7, 600]
    with pytest.raises(NoPagesError):
        read_rows(file, rows.schema, np.arange(0, ROWS, 500), {})


def test_a_file_of_the_same_name_is_another_file(tmp_path: Path) -> None:
    """Its length tells."""
    file = tmp_path / "rows.parquet"
    for count in (2_000, 3_000):
        rows = pa.table({"id": range(count)})
        pq.write_table(rows, file, **SMALL_PAGES)
        assert read_rows(file, rows.schema, np.array([count - 1]), {})["id"][0].as_py() == count - 1


def test_small_pages_leave_a_dictionary_to_a_column(tmp_path: Path) -> None:
    """Texts that come again and again take little more room than in large pages."""
    texts = pa.array([f"a text of some length {n}" for n in range(10_000)] * 20)
    sizes = []
    for options in ({}, SMALL_PAGES):
        pq.write_table(pa.table({"text": texts}), tmp_path / "rows.parquet", **options)
        sizes.append((tmp_path / "rows.parquet").stat().st_size)

    assert sizes[1] < 1.2 * sizes[0]


def test_a_footer_of_structs_without_an_end_is_no_crash(tmp_path: Path) -> None:
    """Each begins another."""
    file, depth = tmp_path / "rows.parquet", 100_000
    file.write_bytes(b"PAR1" + b"\x1c" * depth + struct.pack("<i", depth) + b"PAR1")

    with pytest.raises(NoPagesError):
        read_rows(file, pa.schema({"id": pa.int64()}), np.array([1]), {})


@pytest.mark.parametrize("seed", range(60))
def test_a_file_that_is_damaged_is_no_crash(tmp_path: Path, seed: int) -> None:
    """Where its footer or its page index is not as it was written, it is left to whole reads."""
    dice, file = random.Random(seed), tmp_path / "rows.parquet"
    rows = pa.table({"id": range(ROWS)})
    pq.write_table(rows, file, row_group_size=2_000, **SMALL_PAGES)
    content = bytearray(file.read_bytes())
    for _ in range(1 + seed % 3):
        content[-dice.randrange(1, 900)] = dice.randrange(256)
    file.write_bytes(content[: None if seed % 5 else -dice.randrange(900)])

    try:
        read = read_rows(file, rows.schema, some(dice, 50), {})
    except NoPagesError:
        return
    assert len(read) == 50


@pytest.mark.parametrize("values", [[[]], [None, []], [[], ["a", None]]], ids=str)
def test_a_file_with_small_pages_is_read_by_arrow(tmp_path: Path, values: list[Any]) -> None:
    """A page that has no values, as of empty lists, is one that Arrow reads."""
    file = tmp_path / "rows.parquet"
    rows = pa.table({"many": pa.array(values, pa.list_(pa.string()))})
    pq.write_table(rows, file, **SMALL_PAGES)

    assert pq.read_table(file).equals(rows)
