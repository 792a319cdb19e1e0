"""Which files upkeep sorts together, so that the ranges of their values lie apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelake.ingestion.sinks.sorting import Extent, groups_to_sort

TARGET = 100
# The rows of a file, each a value of two columns and a byte large.
Rows = tuple[tuple[int, int], ...]


def extent_of(rows: Rows, *, is_due: bool = False) -> Extent[Rows]:
    """Return what the log would say of a file."""
    bounds = [(min(values), max(values)) for values in zip(*rows, strict=True)]
    return Extent.of(rows, bounds, len(rows), is_due=is_due)


def sorted_together(group: Sequence[Rows]) -> list[Rows]:
    """Sort the rows of files, and divide them into files again."""
    rows = sorted(row for file in group for row in file)
    return [tuple(rows[at : at + TARGET]) for at in range(0, len(rows), TARGET)]


def upkeep(files: Sequence[Rows]) -> tuple[list[Rows], int]:
    """Return the files behind one upkeep, and how many rows were written."""
    groups = groups_to_sort(map(extent_of, files), TARGET)
    left = [*files]
    for file in (file for group in groups for file in group):
        left.remove(file)
    written = [file for group in groups for file in sorted_together(group)]
    return [*left, *written], sum(map(len, written))


def are_apart(files: Sequence[Rows]) -> bool:
    """Tell whether each file ends before the next begins, in the order of all columns."""
    in_order = sorted((min(file), max(file)) for file in files)
    return all(highest <= lowest for (_, highest), (lowest, _) in pairwise(in_order))


VALUES = st.tuples(st.integers(0, 5), st.integers(0, 1000))
FILES = st.lists(st.lists(VALUES, min_size=1, max_size=TARGET).map(tuple), min_size=1, max_size=12)


@given(FILES)
@settings(max_examples=300, deadline=None)
def test_upkeep_comes_to_an_end_and_loses_no_row(files: list[Rows]) -> None:
    """A file that was not worth it stays; what was sorted is not sorted again."""
    rows = sorted(row for file in files for row in file)
    for _ in range(6):
        files, written = upkeep(files)
        assert sorted(row for file in files for row in file) == rows
        if not written:
            break
    assert not written


def runs(count: int, *, size: int = TARGET) -> list[Rows]:
    """Return files whose ranges follow one another."""
    return [tuple((at * 1000 + n, 0) for n in range(size)) for at in range(count)]


def test_rows_that_come_at_one_end_leave_the_others_alone() -> None:
    """Only what overlaps them is written anew."""
    settled = runs(20)
    new = [tuple((19_050 + 2 * n, k) for n in range(40)) for k in range(3)]

    files, written = upkeep([*settled, *new])

    assert are_apart(files)
    assert written == 40 * 3 + TARGET
    assert {*settled[:19]} <= {*files}


def test_rows_from_all_over_the_table_wait_until_they_are_worth_it() -> None:
    """Small files are merged meanwhile, and large ones that lie apart stay."""
    settled = runs(20)
    new = [tuple((n * 400 + k, 0) for n in range(49)) for k in range(2)]

    files, written = upkeep([*settled, *new])
    assert {*settled} <= {*files}
    assert written == 98

    more = [tuple((n * 200 + k, 1) for n in range(99)) for k in range(5)]
    files, written = upkeep([*files, *more])
    assert are_apart(files)
    assert written == 20 * TARGET + 98 + 5 * 99


def test_a_file_that_is_due_is_written_by_itself() -> None:
    """Between two others, it stays between them."""
    settled = runs(3)

    groups = groups_to_sort(
        [extent_of(file, is_due=nth == 1) for nth, file in enumerate(settled)], TARGET
    )

    assert groups == [[settled[1]]]


def test_no_new_file_spans_one_that_stays() -> None:
    """Two files that are due on both sides of another are not sorted together."""
    settled = runs(3)

    groups = groups_to_sort(
        [extent_of(file, is_due=nth != 1) for nth, file in enumerate(settled)], TARGET
    )

    assert groups == [[settled[0]], [settled[2]]]


def test_files_of_one_value_are_told_apart_by_the_next_column() -> None:
    """Of a column with few values, most files have one."""
    apart = [tuple((1, k * 1000 + n) for n in range(TARGET)) for k in range(3)]
    mixed = [tuple((2, n * 3 + k) for n in range(TARGET)) for k in range(3)]

    files, written = upkeep([*apart, *mixed])

    assert written == 3 * TARGET
    assert are_apart(files)


def test_a_file_that_begins_within_a_value_lies_behind_those_of_that_value() -> None:
    """Of the lowest value of its first column, it has what is left."""
    dice = random.Random(1)
    rows = [(dice.randrange(3), at) for at in range(10 * TARGET)]
    dice.shuffle(rows)

    files, written = upkeep([tuple(rows[at : at + TARGET]) for at in range(0, len(rows), TARGET)])

    assert written == len(rows)
    assert upkeep(files) == (files, 0)


def test_a_file_that_is_due_is_written_anew_though_it_is_not_worth_the_others() -> None:
    """By itself, large as it is."""
    settled = runs(20)
    wide = tuple((n * 200, 1) for n in range(99))

    extents = [*map(extent_of, settled), extent_of(wide, is_due=True)]

    assert groups_to_sort(extents, TARGET) == [[wide]]


def test_one_file_that_is_larger_than_any_other_leaves_them_apart() -> None:
    """They have more rows together."""
    settled = runs(20)
    wide = tuple((n * 100, 1) for n in range(199))

    assert groups_to_sort(map(extent_of, [*settled, wide]), TARGET) == []


def test_small_files_that_follow_one_another_are_merged() -> None:
    """Though their ranges lie apart; a large one between two of them stays."""
    small = [tuple((at * 10 + n, 0) for n in range(10)) for at in range(4)]
    large = tuple((100 + n, 0) for n in range(TARGET))
    behind = [tuple((300 + at * 10 + n, 0) for n in range(10)) for at in range(3)]

    files, written = upkeep([*small, large, *behind])

    assert sorted(map(len, files)) == [30, 40, TARGET]
    assert written == 70


@pytest.mark.parametrize("bounds", [[(None, 5)], [(5, None)], [], [(None, None), (1, 2)]])
def test_a_file_without_bounds_is_merged_only_where_it_is_small(bounds: list[object]) -> None:
    """Nobody knows what it overlaps."""
    files = [Extent.of(at, bounds, size, is_due=False) for at, size in enumerate((100, 3, 100, 4))]  # type: ignore[arg-type]

    assert [sorted(group) for group in groups_to_sort(files, TARGET)] == [[1, 3]]
