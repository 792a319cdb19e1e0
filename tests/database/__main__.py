"""Random histories of a database, for hours: does every table end as the database does?

python -m tests.database [--histories 20000] [--seed 1] [--engine local|spark]
                         [--sinks delta,vectors,divided,iceberg,partitions] [--without FEATURE,…]
                         [--minutes M] [--results FILE] [--report]

A history is what one session does to its rows; several sessions play at once in a topic, under a
declaration that is drawn for them. Topics are played in parts, each with a seed of its own. Those
that the results tell of, of the same engine, are not played again; where one ends wrong it is
there with the fewest steps that do so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from pydantic import SecretStr

from tests.database.history import FEATURES, History
from tests.database.judge import Ground, HistoryError, hold
from tests.database.strategies import histories
from tests.support.postgres import postgres
from tests.trials.main import parser_of, within
from tests.trials.record import PROOFS, digest_of, results_of_engine

_SESSIONS: Final = 8
_TOPICS_OF_A_PART: Final = 25
# Of a part, those that are made smaller: what is wrong often is so for one reason.
_SHORT_ONES: Final = 3
_SINKS: Final = "delta,vectors,divided,iceberg,partitions"


def main() -> int:
    """Play, and return 1 when a history has ended wrong."""
    options = _arguments()
    shared = {"seed": options.seed, "sinks": options.sinks, "without": options.without}
    library = digest_of(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    results = results_of_engine(options.results, **shared, merges=options.engine, library=library)
    parts = results.read()
    if not options.report and _played(parts) < options.histories:
        with _ground(options) as ground:
            for nth in within(options.minutes, count(len(parts))):
                parts.append(_play(nth, ground, options))
                results.add(parts[-1])
                _tell(parts[-1], _played(parts), options.histories)
                if _played(parts) >= options.histories:
                    break
    return _report(parts)


def _arguments() -> argparse.Namespace:
    results = PROOFS / "histories.jsonl"
    parser = parser_of("tests.database", __doc__, results=results, histories=20_000)
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    parser.add_argument("--sinks", default=_SINKS)
    parser.add_argument("--without", default="", help=f"some of: {', '.join(FEATURES)}")
    options = parser.parse_args()
    options.sinks = options.sinks.split(",")
    options.without = [*filter(None, options.without.split(","))]
    if unknown := {*options.without} - {*FEATURES}:
        parser.error(f"--without: {', '.join(unknown)}")
    return options


@contextmanager
def _ground(options: argparse.Namespace) -> Iterator[Ground]:
    with ExitStack() as stack:
        more: dict[str, Any] = {"merge_engine": options.engine}
        if "postgres" in options.sinks:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="histories-"))
            more["postgres"] = SecretStr(stack.enter_context(postgres(Path(folder))))
        yield stack.enter_context(Ground.made(**more))


@dataclass
class _Part:
    """What is counted of a part, and what ended wrong."""

    histories: int = 0
    features: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def play(self, history: History, ground: Ground) -> None:
        """Play a topic; it fails nothing, so that the others are played, too."""
        self.histories += len(history.sessions)
        self.features += history.features()
        try:
            hold(history, ground, is_told_short=len(self.wrong) < _SHORT_ONES)
        except HistoryError as error:
            self.wrong.append(str(error))
            print(f"{error}\n", flush=True)


def _play(nth: int, ground: Ground, options: argparse.Namespace) -> dict[str, Any]:
    """Play some topics; return what is recorded of them."""
    part, began = _Part(), time.monotonic()
    strategy = histories(sessions=_SESSIONS, sinks=options.sinks, without=options.without)

    @seed(1_000_000 * options.seed + nth)
    @settings(
        max_examples=_TOPICS_OF_A_PART,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def play(history: History) -> None:
        part.play(history, ground)

    play()
    return {
        "nth": nth,
        "histories": part.histories,
        "features": part.features,
        "seconds": round(time.monotonic() - began, 1),
        "wrong": part.wrong,
    }


def _played(parts: list[dict[str, Any]]) -> int:
    return sum(part["histories"] for part in parts)


def _tell(part: dict[str, Any], played: int, wanted: int) -> None:
    seconds = part["seconds"]
    print(f"{played:,} of {wanted:,} histories ({seconds} s)", file=sys.stderr, flush=True)


def _report(parts: list[dict[str, Any]]) -> int:
    """Sum up what was played."""
    features = sum((Counter(part["features"]) for part in parts), Counter[str]())
    for name, times in sorted(features.items()):
        print(f"{times:>7,} {name}")
    seconds = sum(part["seconds"] for part in parts)
    wrong = sum(len(part["wrong"]) for part in parts)
    print(f"{_played(parts):,} histories in {seconds:,.0f} s: topics that end wrong: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
