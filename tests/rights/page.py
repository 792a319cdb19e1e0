"""What the page of rights lists, for the tests that compare it with what commands need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tests.support.world import ROOT

_PAGE: Final = (ROOT / "docs" / "rights.md").read_text()
_ROW: Final = re.compile(r"^\| (`[a-z-]+`.*) \|$", re.MULTILINE)
_CODE: Final = re.compile(r"`([\w-]+)`")
Right = tuple[str, str]


def part_of_page(title: str) -> str:
    """Return the text below a heading."""
    return _PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def documented(title: str, columns: Sequence[str]) -> dict[str, frozenset[Right]]:
    """Return the rights of each command by a table: pairs of a column and what is in its cell."""
    rights = {}
    for line in _ROW.findall(part_of_page(title)):
        commands, *cells = line.split(" | ")
        needed = {
            (column, operation)
            for column, cell in zip(columns, cells, strict=True)
            for operation in _CODE.findall(cell)
        }
        rights |= dict.fromkeys(_CODE.findall(commands), frozenset(needed))
    return rights
