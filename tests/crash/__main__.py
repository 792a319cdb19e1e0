"""Run the crash matrix, or go on with it, and say what has been found so far.

python -m tests.crash [--minutes 60] [--seed 1] [--way kill_group ...] [--trials 60]
    [--renames | --power] [--results FILE] [--report]

In a store: python -m tests.support.in_a_store .venv/bin/python -m tests.crash ...
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.crash.matrix import KILLS, PLACES, STORE, cells, power_cuts, renames, work
from tests.crash.trial import SINK, Cell
from tests.power.cuts import POWER_CUT
from tests.trials.failpoints import WAYS
from tests.trials.kills import NTH_RENAME
from tests.trials.main import parser_of
from tests.trials.record import (
    PROOFS,
    engine_version,
    print_counts,
    print_evidence,
    results_of_engine,
)
from tests.trials.world import broker_in

_NAMED = ("place", "way", "follow_up", "seed")


def main() -> int:
    """Run until the matrix is full or the time is up; 1 when there is evidence against us."""
    options = _arguments()
    plan = renames if options.renames else power_cuts if options.power else cells
    every = [cell for cell in plan(options.seed) if not options.way or cell.way in options.way]
    every = every[: options.trials]
    results = results_of_engine(options.results)
    done = {tuple(each[name] for name in _NAMED) for each in results.read()}
    todo = [cell for cell in every if astuple(cell) not in done]
    if todo and not options.report:
        _run(options, len(every), todo)
    return _report(results.read())


def _arguments() -> argparse.Namespace:
    where = SINK or ("" if STORE is None else "store")
    name = f"crash-matrix{where and '-'}{where}.jsonl"
    parser = parser_of("tests.crash", __doc__, results=PROOFS / name, minutes=60.0)
    parser.add_argument("--way", action="append", choices=WAYS, help="only trials of such a way")
    parser.add_argument("--trials", type=int, help="only so many trials")
    parser.add_argument("--renames", action="store_true", help="kill at the N-th rename instead")
    parser.add_argument("--power", action="store_true", help="cut the power of the disk instead")
    return parser.parse_args()


def _run(options: argparse.Namespace, every: int, todo: list[Cell]) -> None:
    """Try as many cells at once as this machine has cores, three at most."""
    many = min(3, int(os.environ.get("TRIALS_AT_ONCE", os.cpu_count() or 1)))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        broker_in(Path(tempfile.mkdtemp(prefix="crash-kafka-"))) as address,
        Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("trials", total=every)
        fork = multiprocessing.get_context("spawn")
        parts = [
            (options.results, todo[nth::many], address, options.minutes) for nth in range(many)
        ]
        running = [fork.Process(target=work, args=part) for part in parts]
        for process in running:
            process.start()
        while any(process.is_alive() for process in running):
            time.sleep(1)
            progress.update(bar, completed=len(results_of_engine(options.results).read()))


def _report(results: list[dict[str, Any]]) -> int:
    counts = {place: Counter[str]() for place in PLACES}
    for each in results:
        at = counts.setdefault(each["place"].rstrip("0123456789 "), Counter())
        at["not reached" if each["ended"] == "not reached" else each["way"]] += 1
        at["wrong"] += bool(each["evidence"])
    title = f"engine {engine_version()}, {len(results)} trials"
    print_counts(title, counts, [*WAYS, NTH_RENAME, POWER_CUT, "not reached", "wrong"])
    total = sum(counts.values(), Counter())
    kills = sum(total[way] for way in (*KILLS, NTH_RENAME))
    print(f"{kills} real kills and {total[POWER_CUT]} power cuts")
    print(f"engines that crashed: {dict(Counter(each['engines'][1] for each in results))}")
    return print_evidence(results, *_NAMED)


if __name__ == "__main__":
    sys.exit(main())
