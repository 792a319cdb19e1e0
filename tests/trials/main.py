"""What the command lines of all harnesses have in common."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

Trial = TypeVar("Trial")


def parser_of(
    module: str, doc: str | None, *, results: Path, minutes: float = math.inf, **numbers: float
) -> argparse.ArgumentParser:
    """Return a parser of the common arguments, and of a harness's own ``numbers``.

    Args:
        module: What is run by ``python -m``.
        doc: Its docstring, which explains its own arguments.
        results: Where its results are, unless another file is given.
        minutes: How long it goes on, unless that is given.
        numbers: Its own arguments, with their defaults.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc)
    parser.add_argument(
        "--minutes", type=float, default=minutes, help="begin nothing after so long"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=results, help="file of JSON lines")
    parser.add_argument("--report", action="store_true", help="only say what was found so far")
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return parser


def within(minutes: float, trials: Iterable[Trial]) -> Iterator[Trial]:
    """Yield trials until the time is up."""
    deadline = time.monotonic() + 60 * minutes
    for trial in trials:
        if time.monotonic() >= deadline:
            return
        yield trial
