"""Values that a store may change on their way: extremes of each type, and texts that mean more."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

MOMENT: Final = dt.datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
NUL: Final = "\0"
_LARGEST_FLOAT: Final = 3.4028234663852886e38
_LARGEST_DOUBLE: Final = 1.7976931348623157e308
_TEXTS: Final = (
    *("", " ", "  padded  ", "NULL", "null", "NaN", "t", "\\N", "\\.", "\n\\.\n", "\\", "\\\\"),
    *('"', '""', 'say "no"', "'", ",", "a,b", "\n", "\r", "\r\n", "a\r\nb\rc\nd", "\t", "\x01"),
    *("\ufeffmark", "\u00e9\u4e16", "e\u0301", "\U0001f600", "\u2028", "\x7f", "\x85"),
    "\uffff" * 20,
    *(f"a{NUL}b", NUL, f"{NUL}{NUL}c"),
    "x" * 100_000,
)
# A count of nanoseconds in 64 bits begins in 1677 and ends in 2262.
_MOMENTS: Final = (
    MOMENT,
    dt.datetime(1901, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),
    dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    dt.datetime(1582, 10, 10, 0, 0, 0, 999_999, tzinfo=dt.UTC),
    dt.datetime(1677, 9, 21, 0, 12, 43, 145_223, tzinfo=dt.UTC),
    dt.datetime(2262, 4, 11, 23, 47, 16, 854_777, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
)
EXTREMES: Final[Mapping[str, tuple[Any, ...]]] = {
    "BOOLEAN": (True, False),
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INT": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1, 2**53 + 1),
    "FLOAT": (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-45, _LARGEST_FLOAT, 1.5),
    "DOUBLE": (math.nan, math.inf, -math.inf, -0.0, 0.0, -5e-324, _LARGEST_DOUBLE, 0.1, 1 / 3),
    "STRING": _TEXTS,
    "BINARY": (b"", b"\x00", b"\\x00", bytes(range(256)), b"a\nb", b"\xff" * 100_000),
    "DATE": (dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(1969, 12, 31), dt.date(9999, 12, 31)),
    "TIMESTAMP": _MOMENTS,
    "TIMESTAMP_NTZ": tuple(each.replace(tzinfo=None) for each in _MOMENTS),
    "DECIMAL(1, 0)": (Decimal(9), Decimal(-9)),
    "DECIMAL(9, 2)": (Decimal("9999999.99"), Decimal("-9999999.99"), Decimal("0.01")),
    "DECIMAL(10, 0)": (Decimal("9999999999"), Decimal("-1234567890")),
    # Of which a double keeps the first 15 or 16 digits.
    "DECIMAL(17, 2)": (Decimal("999999999999999.99"), Decimal("-123456789012345.67")),
    "DECIMAL(18, 9)": (Decimal("999999999.999999999"), Decimal("-123456789.000000001")),
    "DECIMAL(19, 0)": (Decimal("9" * 19), Decimal("-9223372036854775809")),
    "DECIMAL(28, 14)": (Decimal(f"{'9' * 14}.{'9' * 14}"), Decimal("-1.00000000000001")),
    "DECIMAL(37, 7)": (Decimal(f"{'9' * 30}.{'9' * 7}"), Decimal(f"-{'123456789' * 3}.0000001")),
    "DECIMAL(38, 0)": (Decimal("9" * 38), Decimal("-" + "9" * 38)),
    "DECIMAL(38, 10)": (
        Decimal("9" * 28 + "." + "9" * 10),
        Decimal("-0.0000000001"),
        Decimal("1.5"),
    ),
    "DECIMAL(38, 38)": (Decimal("0." + "9" * 38), Decimal("-1E-38")),
    "ARRAY<INT>": ([], [None], [2**31 - 1, None, -(2**31)], [*range(1_000)]),
    "ARRAY<STRING>": ([], [""], [None, "", "NULL", "a,b", '"', "{}", "\\"]),
    "ARRAY<ARRAY<DOUBLE>>": ([], [[]], [None, [], [0.1, None, math.inf]]),
    "MAP<STRING, BIGINT>": ([], [("", None)], [("a", 1), ("A", 2**63 - 1), ("b c", None)]),
    "MAP<STRING, ARRAY<STRING>>": ([], [("a", [])], [("a", None), ("b", [None, "x"])]),
    "STRUCT<a: INT, b: STRING>": ({"a": None, "b": None}, {"a": 1, "b": ""}),
    "STRUCT<a: STRUCT<b: DECIMAL(20, 5)>, c: ARRAY<TIMESTAMP>>": (
        {"a": None, "c": []},
        {"a": {"b": None}, "c": None},
        {"a": {"b": Decimal("123456789012345.67891")}, "c": [_MOMENTS[-1], None]},
    ),
}
# Of these, keys are made.
KEY_TYPES: Final = tuple(
    word
    for word in EXTREMES
    if word.partition("<")[0] not in {"BOOLEAN", "FLOAT", "DOUBLE", "ARRAY", "MAP", "STRUCT"}
)
# A store that does not compare texts by their characters takes some of these for the same.
ALIKE: Final = (
    *("a", "A", "a ", " a", "\u00e9", "\u00c9", "e\u0301", "e", "E", "ss", "\u00df", "\u1e9e"),
    *("i", "I", "\u0130", "\u0131", "1", "01", "1.0", "\uff21", "", " "),
)


def exact(rows: pa.Table) -> list[str]:
    """Write rows so that only those that are the same to the bit compare as equal."""
    return sorted(map(repr, rows.to_pylist()))
