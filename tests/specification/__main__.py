"""Let TLC check the protocol's specification: python -m tests.specification [--tlc tla2tools.jar].

Every state of each model is visited: no invariant may fail. Then each wrong protocol is checked
for the invariant that it breaks: TLC must find out. 0 when it is all so.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.specification.checker import INVARIANTS, MODELS, WRONG, check, find_tlc


def main() -> int:
    """Check the models, and then the wrong protocols; print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.specification", description=__doc__)
    parser.add_argument("--tlc", type=Path, default=find_tlc(), help="TLC's tla2tools.jar")
    parser.add_argument("--model", action="append", choices=MODELS, help="this one alone")
    options = parser.parse_args()
    if options.tlc is None:
        parser.error("TLC is not installed. Next: make specification")
    names = options.model or list(MODELS)
    wrong = [mistake for mistake, (model, _) in WRONG.items() if model in names]
    states = _check_models(options.tlc, names)
    refuted = _refute(options.tlc, wrong)
    print(f"{states} distinct states, {refuted} of {len(wrong)} wrong protocols refuted")
    return int(states == 0 or refuted < len(wrong))


def _check_models(tlc: Path, names: list[str]) -> int:
    """Return how many states there are in all models; 0 where an invariant fails in one."""
    table, states, is_sound = Table("model", "states", "steps", "seconds", "violated"), 0, True
    for name in names:
        found = check(tlc, MODELS[name].configuration(INVARIANTS))
        states, is_sound = states + found.states, is_sound and found.violated is None
        cells = (f"{found.states:,}", str(found.steps), f"{found.seconds:.0f}")
        table.add_row(name, *cells, found.violated or "nothing")
    Console().print(table)
    return states if is_sound else 0


def _refute(tlc: Path, wrong: list[str]) -> int:
    """Return how many wrong protocols break the invariant that they must break."""
    table, refuted = Table("wrong protocol", "states", "steps", "seconds", "violated"), 0
    for mistake in wrong:
        model, invariant = WRONG[mistake]
        found = check(tlc, MODELS[model].configuration([invariant], [mistake]))
        refuted += found.violated == invariant
        cells = (f"{found.states:,}", str(found.steps), f"{found.seconds:.0f}")
        table.add_row(mistake, *cells, found.violated or f"NOTHING, not even {invariant}")
    Console().print(table)
    return refuted


if __name__ == "__main__":
    sys.exit(main())
