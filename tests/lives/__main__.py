"""Live random lives of streams, by the thousand steps: is every promise kept after each?

python -m tests.lives [--steps 60] [--length 50] [--seed 1] [--folder FOLDER] [--life N]
                      [--shrink-minutes 10] [--minutes M] [--results FILE] [--report]

Each step does something to a stream, or to a table of it behind the product's back; then every
command that looks must say what is so. A life has ``--length`` steps, and is drawn from the seed
and its number. Those that ``FOLDER/lives.jsonl`` tells of are not lived again; one that broke a
promise is there with the fewest steps that do, which ``--life N`` plays again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tests.lives.life import Ground, live, play
from tests.lives.step import Step
from tests.lives.streams import KINDS
from tests.lives.subject import Chronicle
from tests.support.world import settings_in
from tests.trials.main import parser_of, within
from tests.trials.record import Results
from tests.trials.world import broker_in, spark_of


def main() -> int:
    """Live, and return 1 when a promise was broken."""
    options = _arguments()
    results = Results(file=options.folder / options.results, shared={"seed": options.seed})
    if options.life is not None:
        with _ground(options.folder) as ground:
            _play_again(results.read()[options.life], ground)
        return 0
    lives = results.read()
    if not options.report and _steps_of(lives) < options.steps:
        with _ground(options.folder) as ground:
            for nth in within(options.minutes, count(len(lives))):
                results.add(_live(nth, {life["promise"] for life in lives}, ground, options))
                lives = results.read()
                if _steps_of(lives) >= options.steps:
                    break
    _report(lives)
    return int(any(life["promise"] for life in lives))


def _arguments() -> argparse.Namespace:
    own = {"steps": 60, "length": 50, "shrink_minutes": 10}
    parser = parser_of("tests.lives", __doc__, results=Path("lives.jsonl"), **own)
    parser.add_argument("--folder", type=Path, help="where results and lakes are")
    parser.add_argument("--life", type=int, help="play the steps of a life again that are recorded")
    options = parser.parse_args()
    options.folder = (options.folder or Path(tempfile.mkdtemp(prefix="lives-"))).absolute()
    options.folder.mkdir(parents=True, exist_ok=True)
    return options


@contextmanager
def _ground(folder: Path) -> Iterator[Ground]:
    """Start broker and Spark, in an environment without settings of this machine."""
    for name in [name for name in os.environ if name.startswith(("ONCELAKE_", "DAGSTER_"))]:
        del os.environ[name]
    kafka = Path(tempfile.mkdtemp(prefix="lives-kafka-"))
    with broker_in(kafka) as address, spark_of(settings_in(kafka, address)) as spark:
        yield Ground(kafka=address, spark=spark, folder=folder)


def _live(nth: int, known: set[str], ground: Ground, options: argparse.Namespace) -> dict[str, Any]:
    """Live a life of a seed, and return what is recorded of it."""
    kind, began = KINDS[nth % len(KINDS)], time.monotonic()
    chronicle = Chronicle(tell=partial(print, flush=True))
    chronicle.tell(f"life {nth} of seed {options.seed}: {kind.name}")
    evidence = ""
    try:
        live(
            kind,
            ground,
            chronicle,
            length=min(options.length, options.steps),
            number=1_000 * options.seed + nth,
            shrink_seconds=options.shrink_minutes * 60,
            known=known,
        )
    except Exception as error:  # noqa: BLE001 (an error of the oracle ends no other life)
        chronicle.promise = chronicle.promise or f"the oracle: {error!r}"
        evidence = "\n".join([*map(str, error.args), *traceback.format_exception(error)[-3:]])
        chronicle.tell(f"{evidence}\n{len(chronicle.fewest)} steps: {chronicle.fewest}")
    return {
        "nth": nth,
        "kind": kind.name,
        "seconds": round(time.monotonic() - began),
        "played": len(chronicle.steps),
        "counts": chronicle.counts,
        "promise": chronicle.promise,
        "evidence": evidence,
        "steps": list(map(asdict, chronicle.fewest or chronicle.steps)),
    }


def _steps_of(lives: list[dict[str, Any]]) -> int:
    return sum(life["played"] for life in lives)


def _play_again(life: dict[str, Any], ground: Ground) -> None:
    (kind,) = (kind for kind in KINDS if kind.name == life["kind"])
    play(kind, [Step(**step) for step in life["steps"]], ground, Chronicle())


def _report(lives: list[dict[str, Any]]) -> None:
    """Sum up what was done in all lives."""
    counts = sum((Counter(life["counts"]) for life in lives), Counter[str]())
    for name, times in sorted(counts.items()):
        print(f"{times:>6} {name}")
    seconds = sum(life["seconds"] for life in lives)
    print(f"{len(lives)} lives of {_steps_of(lives)} steps in {seconds} s")
    broken = [life for life in lives if life["promise"]]
    print(f"violations: {len(broken)}")
    for life in broken:
        print(f"life {life['nth']}, {len(life['steps'])} steps: {life['promise']}")


if __name__ == "__main__":
    sys.exit(main())
