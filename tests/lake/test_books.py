"""The books balance exactly, or say what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelake.ingestion.lake.books import COUNTS, DISPOSITIONS, imbalances

dispositions = st.fixed_dictionaries({name: st.integers(0, 50) for name in DISPOSITIONS})


def balanced(each: dict[str, int], gaps: int) -> dict[str, int]:
    """Complete dispositions to counts that balance."""
    read = sum(each.values())
    return {**each, "read": read, "gaps": gaps, "offsets": read + gaps}


@given(dispositions, st.integers(0, 50))
def test_counts_that_add_up_balance(each: dict[str, int], gaps: int) -> None:
    """Whatever became of the records, books that add up have no problem."""
    written = each["inserted"] + each["updated"]

    problems = imbalances(balanced(each, gaps), rows_of_seq=written, rows_expected=written)

    assert problems == ()


@given(dispositions, st.integers(0, 50), st.sampled_from(COUNTS), st.sampled_from([-1, 1]))
def test_one_record_more_or_less_is_red(
    each: dict[str, int], gaps: int, name: str, by: int
) -> None:
    """There is no tolerance: a count that is off by one turns the books red."""
    counts = balanced(each, gaps)
    counts[name] += by

    assert imbalances(counts, rows_of_seq=0, rows_expected=0)


@pytest.mark.parametrize("held", [4, 6], ids=["a row is missing", "a row is too many"])
def test_rows_that_the_table_does_not_hold_are_red(held: int) -> None:
    """The rows of a batch are counted in the table itself."""
    counts = balanced({"inserted": 5}, 0)

    (problem,) = imbalances(counts, rows_of_seq=held, rows_expected=5)

    assert problem == f"the table holds {held} rows of this batch, expected 5"


def test_a_count_below_zero_is_red() -> None:
    """Two wrongs that cancel each other out do not balance."""
    counts = balanced({"inserted": 3, "stale": -1}, 0)

    assert imbalances(counts, rows_of_seq=3, rows_expected=3) == ("stale is -1",)
