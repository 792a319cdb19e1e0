"""The house stays as small as ``tests/budgets.yaml`` says."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grimp
import pytest
import yaml

from bench.size import lines_of_code
from tests.support.world import ROOT

BUDGETS: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "budgets.yaml").read_text())
FOLDERS = ("ingestion", "assets", "resources")


def modules(folder: str) -> Iterator[Path]:
    """Yield the files of a folder's code."""
    yield from sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_no_larger_than_its_budget(folder: str) -> None:
    """A feature that makes it larger raises the budget in its own commit."""
    rooms = Counter[str]()
    for file in modules(folder):
        rooms[file.relative_to(ROOT / folder).parts[0]] += lines_of_code(file.read_text())

    assert rooms.total() <= BUDGETS["lines"][folder]
    if folder == "ingestion":
        assert max(rooms.values()) <= BUDGETS["largest_room"] * rooms.total()


def test_a_folder_is_seen_at_one_look() -> None:
    """It has few entries; one that has more may not grow."""
    entries = Counter[str]()
    for folder in FOLDERS:
        for path in {path for file in modules(folder) for path in (file, *file.parents)}:
            if path.is_relative_to(ROOT / folder) and path.name != "__init__.py":
                entries[str(path.parent.relative_to(ROOT))] += path != ROOT / folder

    assert {folder: n for folder, n in entries.items() if n > BUDGETS["entries"]} == {}


def test_a_function_is_read_without_scrolling() -> None:
    """Its body, without the docstring, has few lines."""
    long = [
        f"{file.relative_to(ROOT)}::{node.name}"
        for folder in FOLDERS
        for file in modules(folder)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - _begin(node) >= BUDGETS["function"]
    ]

    assert long == []


def _begin(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the line where the code of a function begins."""
    is_documented = ast.get_docstring(function) is not None and len(function.body) > 1
    return function.body[is_documented].lineno


def test_modules_import_one_another_in_one_direction() -> None:
    """There is no circle, and no chain of imports is longer than its bound."""
    graph = grimp.build_graph("oncelake", exclude_type_checking_imports=True)
    own = {module for module in graph.modules if module.startswith("oncelake.ingestion")}
    below = {each: graph.find_modules_directly_imported_by(each) & own for each in own}
    floors = dict[str, int]()
    for module in TopologicalSorter(below).static_order():
        floors[module] = 1 + max((floors[each] for each in below[module]), default=0)

    assert max(floors.values()) <= BUDGETS["floors"]
