"""What ``make test`` leaves to ``make test-long``: twins of what it tries, by another way in."""

from __future__ import annotations

import os
from typing import TypeVar

IS_LONG = bool(os.environ.get("LONG"))
Param = TypeVar("Param")


def twins(*params: Param) -> tuple[Param, ...]:
    """Return further parameters of a test, when there is time for them."""
    return params if IS_LONG else ()
