"""Small change for taking parts out of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any


def nothing(*_: Any, **__: Any) -> Any:
    """Do nothing, whatever is asked."""


@contextmanager
def together(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter several patches as one."""
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield
