"""What ``make test`` leaves to ``make test-long``: twins of what it tries, and what takes long."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

IS_LONG = bool(os.environ.get("LONG"))
Param = TypeVar("Param")
only_long = pytest.mark.skipif(not IS_LONG, reason="left to make test-long")


def twins(*params: Param) -> tuple[Param, ...]:
    """Return further parameters of a test, when there is time for them."""
    return params if IS_LONG else ()
