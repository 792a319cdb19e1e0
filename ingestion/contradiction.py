"""One disagreement between the fields of a declaration."""

from __future__ import annotations

from typing import NamedTuple


class Contradiction(NamedTuple):
    """One disagreement: the field to edit, and what is wrong with it."""

    field: tuple[str, ...]
    problem: str
