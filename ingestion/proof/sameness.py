"""Whether two values of a column are the same: as ``==``, but that NaN is NaN."""

from __future__ import annotations

import math
from typing import Any


def is_same(one: Any, other: Any) -> bool:
    """Tell whether a table that holds ``one`` holds what ``other`` says."""
    if one == other:
        return True
    if isinstance(one, float) and isinstance(other, float):
        return math.isnan(one) and math.isnan(other)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return all(is_same(value, other[name]) for name, value in one.items())
    return False
