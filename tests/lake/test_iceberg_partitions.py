"""A partition's value is that of Iceberg's specification, for each type, transform and value."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)

from oncelake.ingestion.sinks.files import split
from oncelake.ingestion.sinks.iceberg.partitions import Partitioning, can_compute, transformed

# As far as Python has days and moments, by which pyiceberg computes those of others.
_DAYS: Final = st.integers(-719_162, 2_932_896)
_MOMENTS: Final = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
_TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def decimals(precision: int) -> st.SearchStrategy[Decimal]:
    """Draw decimals of two places, to the last digit."""
    highest = 10**precision - 1
    return st.integers(-highest, highest).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -2))
    )


# Iceberg's types, with Arrow's and their values; days and moments as numbers.
TYPES: Final[dict[str, tuple[iceberg.PrimitiveType, pa.DataType, st.SearchStrategy[Any]]]] = {
    "boolean": (iceberg.BooleanType(), pa.bool_(), st.booleans()),
    "int": (iceberg.IntegerType(), pa.int32(), st.integers(-(2**31) + 2000, 2**31 - 1)),
    "long": (iceberg.LongType(), pa.int64(), st.integers(-(2**63) + 2000, 2**63 - 1)),
    "decimal(9, 2)": (iceberg.DecimalType(9, 2), pa.decimal128(9, 2), decimals(9)),
    "decimal(38, 2)": (iceberg.DecimalType(38, 2), pa.decimal128(38, 2), decimals(38)),
    "string": (iceberg.StringType(), pa.large_string(), _TEXTS),
    "binary": (iceberg.BinaryType(), pa.large_binary(), st.binary(max_size=20)),
    "date": (iceberg.DateType(), pa.date32(), _DAYS),
    "timestamp": (iceberg.TimestampType(), pa.timestamp("us"), _MOMENTS),
    "timestamptz": (iceberg.TimestamptzType(), pa.timestamp("us", "UTC"), _MOMENTS),
}
TRANSFORMS: Final[list[Transform[Any, Any]]] = [
    *(IdentityTransform(), VoidTransform()),
    *(YearTransform(), MonthTransform(), DayTransform(), HourTransform()),
    *(BucketTransform(1), BucketTransform(16), BucketTransform(2**31 - 1)),
    *(TruncateTransform(1), TruncateTransform(3), TruncateTransform(1000)),
]
CASES: Final = [
    pytest.param(type_, transform, id=f"{transform} of {type_}")
    for type_ in TYPES
    for transform in TRANSFORMS
    if transform.can_transform(TYPES[type_][0])
]


def array_of(type_: str, values: list[Any]) -> pa.Array:
    """Make a column of values."""
    arrow = TYPES[type_][1]
    if arrow == pa.date32():
        return pa.array(values, pa.int32()).cast(arrow)
    return (
        pa.array(values, pa.int64()).cast(arrow)
        if pa.types.is_timestamp(arrow)
        else (pa.array(values, arrow))
    )


@pytest.mark.parametrize(("type_", "transform"), CASES)
def test_a_value_is_that_of_pyiceberg(type_: str, transform: Transform[Any, Any]) -> None:
    """Of any value, before 1970 and below zero too; that of null is null."""
    of_one = transform.transform(TYPES[type_][0])

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.none() | TYPES[type_][2], max_size=30))
    def compare(values: list[Any]) -> None:
        found = transformed(transform, array_of(type_, values)).to_pylist()
        assert found == [of_one(value) for value in values]

    compare()


@pytest.mark.parametrize(("type_", "transform"), CASES)
def test_a_value_is_that_of_pyiceberg_core(type_: str, transform: Transform[Any, Any]) -> None:
    """The implementation in Rust gives the same, where it is installed."""
    core = pytest.importorskip("pyiceberg_core").transform
    names = {"BucketTransform": "bucket", "TruncateTransform": "truncate"}
    name = names.get(type(transform).__name__, str(transform))
    parameter = [getattr(transform, "num_buckets", None) or getattr(transform, "width", None)]
    if name in ("identity", "void") or (name, type_) == ("truncate", "binary"):
        pytest.skip("it does not compute that")

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.none() | TYPES[type_][2], max_size=30))
    def compare(values: list[Any]) -> None:
        column = array_of(type_, values)
        theirs = getattr(core, name)(column, *filter(None, parameter))
        if pa.types.is_date(theirs.type):
            theirs = theirs.cast(pa.int32())
        assert transformed(transform, column).to_pylist() == theirs.to_pylist()

    compare()


EXAMPLES: Final = [
    # Those of the specification (Appendix B), and what each mistake would change.
    ("int", BucketTransform(2**31 - 1), 34, 2017239379),
    ("long", BucketTransform(2**31 - 1), 34, 2017239379),
    ("long", BucketTransform(16), -1, 8),
    ("decimal(9, 2)", BucketTransform(2**31 - 1), Decimal("14.20"), (-500754589) & 0x7FFFFFFF),
    ("decimal(9, 2)", BucketTransform(16), Decimal("-1.28"), 13),
    ("date", BucketTransform(2**31 - 1), 17_486, (-653330422) & 0x7FFFFFFF),
    ("timestamp", BucketTransform(2**31 - 1), 1_510_871_468_000_000, (-2047944441) & 0x7FFFFFFF),
    ("timestamptz", BucketTransform(2**31 - 1), 1_510_871_468_000_000, (-2047944441) & 0x7FFFFFFF),
    ("string", BucketTransform(2**31 - 1), "iceberg", 1210000089),
    ("binary", BucketTransform(2**31 - 1), b"\x00\x01\x02\x03", (-188683207) & 0x7FFFFFFF),
    ("int", TruncateTransform(10), -1, -10),
    ("decimal(9, 2)", TruncateTransform(50), Decimal("10.65"), Decimal("10.50")),
    ("decimal(9, 2)", TruncateTransform(50), Decimal("-9999999.99"), Decimal("-10000000.00")),
    ("string", TruncateTransform(2), "é😀x", "é😀"),
    ("string", TruncateTransform(2), "", ""),
    ("binary", TruncateTransform(3), b"\xff\xfe\xfd\xfc", b"\xff\xfe\xfd"),
    ("timestamptz", DayTransform(), -1, -1),
    ("timestamptz", DayTransform(), 86_399_999_999, 0),
    ("timestamp", HourTransform(), -1, -1),
    ("date", MonthTransform(), -1, -1),
    ("date", YearTransform(), -366, -2),
    ("timestamptz", IdentityTransform(), -5, -5),
    ("date", IdentityTransform(), 7, 7),
    # As Java does, which wraps around below the lowest number.
    ("int", TruncateTransform(10), -(2**31), 2_147_483_646),
]


@pytest.mark.parametrize(
    ("type_", "transform", "value", "due"), EXAMPLES, ids=[f"{e[1]} of {e[2]}" for e in EXAMPLES]
)
def test_the_values_of_the_specification(
    type_: str, transform: Transform[Any, Any], value: Any, due: Any
) -> None:
    """They are written down here, so that no library decides what they are."""
    found = transformed(transform, array_of(type_, [None, value, None]))

    assert found.to_pylist() == [None, due, None]


def test_moments_that_python_lacks_have_a_partition() -> None:
    """Thousands of years from now a day, month and year are as they are counted."""
    far = array_of("timestamp", [1 << 62, -(1 << 62)])
    days = np.array([1 << 62, -(1 << 62)]) // 86_400_000_000
    years = days.astype("datetime64[D]").astype("datetime64[Y]").astype(int)

    assert transformed(DayTransform(), far).to_pylist() == days.tolist()
    assert transformed(YearTransform(), far).to_pylist() == years.tolist()
    assert path_of(DayTransform(), iceberg.TimestampType(), int(days[0])) == f"x={days[0]}"


def path_of(transform: Transform[Any, Any], type_: iceberg.PrimitiveType, value: Any) -> str:
    """Name the folder of one value."""
    schema = Schema(iceberg.NestedField(1, "x", type_))
    spec = PartitionSpec(PartitionField(1, 1000, transform, "x"))
    return Partitioning(schema, spec).key((value,)).to_path()


PATHS: Final = [
    (IdentityTransform(), iceberg.StringType(), "a/b=c d", "x=a%2Fb%3Dc+d"),
    (IdentityTransform(), iceberg.StringType(), "", "x="),
    (IdentityTransform(), iceberg.StringType(), None, "x=null"),
    (IdentityTransform(), iceberg.StringType(), "..", "x=.."),
    (IdentityTransform(), iceberg.StringType(), "é" * 60, "x=" + "%C3%A9" * 16 + "%C3"),
    (IdentityTransform(), iceberg.BinaryType(), b"\xff", "x=%2Fw%3D%3D"),
    (IdentityTransform(), iceberg.DateType(), -1, "x=1969-12-31"),
    (DayTransform(), iceberg.TimestamptzType(), 19_723, "x=2024-01-01"),
    (MonthTransform(), iceberg.DateType(), -1, "x=1969-12"),
    (BucketTransform(4), iceberg.LongType(), 3, "x=3"),
    (VoidTransform(), iceberg.LongType(), None, "x=null"),
]


@pytest.mark.parametrize(("transform", "type_", "value", "path"), PATHS)
def test_a_folder_is_named_as_iceberg_does(
    transform: Transform[Any, Any], type_: iceberg.PrimitiveType, value: Any, path: str
) -> None:
    """By the human form of its value, quoted, and never too long for a file system."""
    assert path_of(transform, type_, value) == path


def test_rows_are_divided_by_all_fields_together() -> None:
    """Each row is in one part, in its order there, also where a value is null, or empty."""
    regions = ["eu", None, "", "eu", "us", None, "eu"]
    days = [0, 0, 1, 1, 0, None, 0]
    rows = pa.table(
        {
            "region": pa.array(regions, pa.large_string()),
            "day": pa.array(days, pa.int32()).cast(pa.date32()),
            "n": range(7),
        }
    )
    schema = Schema(
        iceberg.NestedField(1, "region", iceberg.StringType()),
        iceberg.NestedField(2, "day", iceberg.DateType()),
        iceberg.NestedField(3, "n", iceberg.LongType()),
    )
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "region"),
        PartitionField(2, 1001, DayTransform(), "day_day"),
    )

    divided = Partitioning(schema, spec)
    parts = {values: part["n"].to_pylist() for values, part in split(rows, divided.values(rows))}

    assert parts == {
        ("eu", 0): [0, 6],
        (None, 0): [1],
        ("", 1): [2],
        ("eu", 1): [3],
        ("us", 0): [4],
        (None, None): [5],
    }
    assert [*split(rows[:0], divided.values(rows[:0]))] == []


def test_only_what_is_computed_exactly_is_computed() -> None:
    """Floats have two zeros and many NaN; a transform of tomorrow is not known."""
    assert not can_compute(IdentityTransform(), iceberg.DoubleType())
    assert not can_compute(UnknownTransform("zorder"), iceberg.LongType())
    assert not can_compute(BucketTransform(4), iceberg.UUIDType())
    assert not can_compute(HourTransform(), iceberg.DateType())
    assert can_compute(VoidTransform(), iceberg.DoubleType())
