"""The harness itself: it tells a bug that is noticed from one that is not, and from none at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.harness import copied_project, try_mutant
from tests.mutants.plan import Edit, Mutant, UnfitMutantError, load, mutated
from tests.support.long import only_long
from tests.support.world import ROOT

BOOKS = Mutant(
    name="books",
    kind=4,
    edits=(
        Edit(
            file="ingestion/lake/books.py",
            old='    if of["read"] + of["exploded"] != accounted:',
            new='    if abs(of["read"] + of["exploded"] - accounted) > 1:',
        ),
    ),
    why="to see it noticed",
    tests=("tests/lake/test_books.py",),
)


@pytest.fixture(scope="module")
def copy() -> Iterator[Path]:
    """One copy of the project for all of these."""
    with copied_project() as folder:
        yield folder


def test_every_planted_bug_fits_the_code() -> None:
    """Each text is in the code exactly once, leaves code, and each class of bug is planted."""
    for mutant in load():
        texts = mutated(mutant, ROOT)
        assert texts
        for name, text in texts.items():
            compile(text, name, "exec")

    assert {mutant.kind for mutant in load()} == set(range(1, 11))
    assert len({mutant.name for mutant in load()}) == len(load())


def test_a_bug_that_the_code_has_outgrown_is_an_error() -> None:
    """A text that is gone cannot pass for a bug that was planted."""
    gone = replace(BOOKS, edits=(replace(BOOKS.edits[0], old="no such line"),))

    with pytest.raises(UnfitMutantError, match=r"0 times in ingestion/lake/books\.py"):
        mutated(gone, ROOT)


def test_a_planted_bug_is_killed_by_its_test(copy: Path) -> None:
    """The test that fails is named, and the copy is honest again."""
    result = try_mutant(BOOKS, copy)

    assert (result.verdict, result.by) == ("killed", "test_one_record_more_or_less_is_red")
    assert (copy / "ingestion/lake/books.py").read_bytes() == (
        ROOT / "ingestion/lake/books.py"
    ).read_bytes()


@only_long
def test_a_bug_that_no_test_notices_survives(copy: Path) -> None:
    """Tests that pass are no evidence against it."""
    result = try_mutant(replace(BOOKS, tests=("tests/kafka/test_offsets.py",)), copy)

    assert result.verdict == "survived"


@only_long
def test_code_that_cannot_run_proves_nothing(copy: Path) -> None:
    """A syntax error, or a name that is missing, is not a bug that a test noticed."""
    unreadable = replace(BOOKS, edits=(replace(BOOKS.edits[0], new="    if of["),))
    nameless = replace(BOOKS, edits=(replace(BOOKS.edits[0], new="    if nosuchname:"),))

    assert [try_mutant(each, copy).verdict for each in (unreadable, nameless)] == [
        "broken",
        "broken",
    ]
