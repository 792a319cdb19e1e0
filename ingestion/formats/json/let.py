"""Values that are computed once, and only where they are asked for.

A column that is added to a frame is computed for every row. A branch of ``CASE`` is not; but there
is no name in it for what is used twice, unless as the parameter of a function of array elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

Known = Mapping[str, Column]


def bind(
    first: Known, *more: Callable[[Column], Known], within: Callable[[Column], Column]
) -> Column:
    """Return an expression with names in it.

    Args:
        first: Values by name.
        more: Further values, each made from a struct of all that come before it.
        within: Makes the result from a struct of all.
    """
    bound = F.array(F.struct(*(value.alias(name) for name, value in first.items())))
    for make in more:
        bound = F.transform(bound, _with(make))
    return F.element_at(F.transform(bound, within), 1)


def _with(make: Callable[[Column], Known]) -> Callable[[Column], Column]:
    def add(known: Column) -> Column:
        for name, value in make(known).items():
            known = known.withField(name, value)
        return known

    return add
