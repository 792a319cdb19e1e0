"""Let TLC check the protocol's specification: python -m tests.specification [--tlc tla2tools.jar].

Every state of each model is visited: no invariant may fail. Then each wrong protocol is checked
for the invariant that it breaks: TLC must find out. 0 when it is all so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.specification.checker import INVARIANTS, MODELS, WRONG, Finding, check, find_tlc


def main() -> int:
    """Check the models, and then the wrong protocols; print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.specification", description=__doc__)
    parser.add_argument("--tlc", type=Path, default=find_tlc(), help="TLC's tla2tools.jar")
    parser.add_argument("--model", action="append", choices=MODELS, help="this one alone")
    options = parser.parse_args()
    if options.tlc is None:
        parser.error("TLC is not installed. Next: make specification")
    names = options.model or list(MODELS)
    models = [(name, MODELS[name].configuration(INVARIANTS), None) for name in names]
    sound = _check(options.tlc, "model", models)
    of_wrong = [
        (mistake, MODELS[model].configuration([invariant], [mistake]), invariant)
        for mistake, (model, invariant) in WRONG.items()
        if model in names
    ]
    refuted = _check(options.tlc, "wrong protocol", of_wrong)
    states = sum(found.states for found in sound)
    print(f"{states} distinct states, {len(refuted)} of {len(of_wrong)} wrong protocols refuted")
    return int(len(sound) < len(models) or len(refuted) < len(of_wrong))


def _check(tlc: Path, title: str, checks: Iterable[tuple[str, str, str | None]]) -> list[Finding]:
    """Check configurations, print a row for each, and return those that violate what they must.

    Args:
        tlc: TLC's jar.
        title: What is checked.
        checks: By name: the configuration, and the invariant that it must violate, if one.
    """
    table, expected = Table(title, "states", "depth", "seconds", "violated"), []
    for name, configuration, must in checks:
        found = check(tlc, configuration)
        cells = (f"{found.states:,}", str(found.depth), f"{found.seconds:.0f}")
        is_expected = found.violated == must
        instead = "" if is_expected else f" INSTEAD OF {must or 'nothing'}"
        table.add_row(name, *cells, f"{found.violated or 'nothing'}{instead}")
        expected += [found] if is_expected else []
    Console().print(table)
    return expected


if __name__ == "__main__":
    sys.exit(main())
