"""The specification, the page of the protocol and the tests that it names are in line."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Final, cast

import pytest

from tests.model.mutations import MUTATIONS
from tests.proofs import RESULTS
from tests.specification.checker import (
    INVARIANTS,
    MODELS,
    TEXT,
    WRONG,
    Finding,
    check,
    find_tlc,
    finding_of,
)
from tests.support.world import ROOT

PAGE: Final = (ROOT / "docs" / "protocol.md").read_text()
TLC: Final = find_tlc()
BATTERY: Final = ROOT / "oncelake" / "testing" / "conformance.py"


def rows(heading: str) -> list[list[str]]:
    """The cells of the page's table whose header begins with some words."""
    table = PAGE.partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    return [re.split(r" *\| *", row.strip("| ")) for row in table.splitlines()[2:]]


def named(cell: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_page_has_every_invariant_and_no_other() -> None:
    """Its table and the specification have the same names, in the same order."""
    assert len(INVARIANTS) >= 8
    assert [row[0].strip("`") for row in rows("invariant")] == list(INVARIANTS)


@pytest.mark.parametrize("row", rows("invariant"), ids=lambda row: row[0])
def test_each_invariant_names_tests_that_exist(row: list[str]) -> None:
    """Those of the battery, too, which have no path there."""
    battery = {each.name for each in ast.walk(ast.parse(BATTERY.read_text())) if _is_test(each)}
    tests = named(row[3])

    assert tests
    assert {test for test in tests if "::" not in test} <= battery
    assert all("::test_" in test for test in tests if "/" in test)


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


def test_the_page_has_every_mistake_and_what_it_breaks() -> None:
    """Each is of the specification, and none of these is left out."""
    told = {
        mistake: breaks.strip("`")
        for cell, breaks in rows("mistake")
        for mistake in named(cell.partition(":")[0])
    }

    assert told == {mistake: invariant for mistake, (_, invariant) in WRONG.items()}
    assert told.keys() == set(re.findall(r'Has\("(\w+)"\)', TEXT))
    assert set(told.values()) == set(INVARIANTS)


def test_most_mistakes_have_the_names_of_the_models() -> None:
    """A reader finds a mistake of the same name in the code's own model."""
    of_the_model = {mutation.__name__ for mutation in MUTATIONS}

    assert len(WRONG.keys() & of_the_model) > len(WRONG) / 2


def test_the_page_has_every_model() -> None:
    """With the number of its states; their sum is the newest that was recorded."""
    states = [int(row[2].replace(",", "")) for row in rows("model")]
    results = map(json.loads, RESULTS.read_text().splitlines())
    recorded = [result["trials"] for result in results if result["proof"] == "specification"]

    assert [row[0].strip("`") for row in rows("model")] == list(MODELS)
    assert sum(states) == recorded[-1]


@pytest.mark.slow
@pytest.mark.skipif(TLC is None, reason="TLC comes with make specification")
@pytest.mark.parametrize(
    ("wrong", "violated"),
    [([], None), (["cuts_looked_for_only_at_the_start"], "OneLogPerEpoch")],
    ids=["ours", "wrong"],
)
def test_the_smallest_model_is_checked(wrong: list[str], violated: str | None) -> None:
    """No state of our protocol violates an invariant, and one of a wrong protocol does."""
    configuration = MODELS["cuts"].configuration(INVARIANTS, wrong)

    assert check(cast("Path", TLC), configuration).violated == violated


def test_the_specification_is_short() -> None:
    """A person reads it in one sitting."""
    assert len([line for line in TEXT.splitlines() if line.strip()]) <= 300


_VISITED: Final = """
Model checking completed. No error has been found.
497,356 states generated, 136,221 distinct states found, 0 states left on queue.
The depth of the complete state graph search is 52.
"""
_VIOLATED: Final = """
Error: Invariant EachRecordOnce is violated.
State 1: <Initial predicate>
State 2: <Produce line 55, col 5 to line 57, col 53 of module Protocol>
895 states generated, 322 distinct states found, 75 states left on queue.
"""


def test_what_the_checker_says_is_understood() -> None:
    """All states without a violation, or the way to one."""
    sound, broken = (finding_of(output, seconds=1) for output in (_VISITED, _VIOLATED))

    assert sound == Finding(states=136_221, violated=None, depth=52, seconds=1)
    assert broken == Finding(states=322, violated="EachRecordOnce", depth=2, seconds=1)


@pytest.mark.parametrize("output", ["", _VISITED.replace(" 0 states", " 7 states")])
def test_a_checker_that_ends_early_has_shown_nothing(output: str) -> None:
    """States that are left are no proof."""
    with pytest.raises(RuntimeError, match="ended early"):
        finding_of(output, seconds=1)
