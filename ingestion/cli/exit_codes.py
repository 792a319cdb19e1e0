"""The exit codes of the contract, and which of several wins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

DONE: Final = 0
WRONG: Final = 1
USAGE: Final = 2
REFUSED: Final = 3
UNREACHABLE: Final = 5

# A declaration that is wrong comes last: it lost nothing, and it says the same on every run.
_PRECEDENCE: Final = (WRONG, REFUSED, UNREACHABLE, 4, USAGE)


def first_of(codes: Iterable[int]) -> int:
    """Return the code that a command over several streams exits with.

    A code outside the contract (128 + the number of a signal) gives way to one inside.
    """
    occurred = set(codes) - {DONE}
    known = (code for code in _PRECEDENCE if code in occurred)
    return next(known, max(occurred, default=DONE))
