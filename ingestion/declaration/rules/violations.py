"""Several mistakes at once, each with the field to edit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

# The field to edit, or the way to it, and what is wrong with it.
Violation: TypeAlias = tuple[str | tuple[str | int, ...], str]


class RuleViolationsError(ValueError):
    """Every mistake in one part of a declaration, in ``violations``: the way to it, and a text."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = [((at,) if isinstance(at, str) else at, text) for at, text in violations]
        named = (": ".join((".".join(map(str, at)), text)) for at, text in self.violations)
        super().__init__("; ".join(each.removeprefix(": ") for each in named))
