"""Run the crash matrix, or go on with it, and say what has been found so far.

python -m tests.crash [--minutes 60] [--seed 1] [--way kill_group ...] [--trials 60]
    [--renames | --power] [--results FILE] [--report]

In a store: python -m tests.support.in_a_store .venv/bin/python -m tests.crash ...
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.crash.child_process import NTH_RENAME
from tests.crash.failpoint_hook import WAYS
from tests.crash.matrix import (
    KILLS,
    STORE,
    broker_of_its_own,
    cells,
    engine_version,
    power_cuts,
    renames,
    results,
    summary,
    work,
    workers,
)
from tests.crash.trial import SINK, Cell
from tests.power.cuts import POWER_CUT
from tests.support.world import ROOT


def main() -> int:
    """Run until the matrix is full or the time is up; 1 when there is evidence against us."""
    asked = _arguments()
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    every = cells(asked.seed)
    if asked.renames or asked.power:
        every = renames(asked.seed) if asked.renames else power_cuts(asked.seed)
    every = [cell for cell in every if not asked.way or cell.way in asked.way][: asked.trials]
    done = {_name(each) for each in results(asked.results)}
    todo = [cell for cell in every if _name_of(cell) not in done]
    if not asked.report and todo:
        _run(asked, every, todo)
    return _report(asked)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--way", action="append", choices=WAYS, help="only trials of such a way")
    parser.add_argument("--trials", type=int, help="only so many trials")
    where = SINK or ("" if STORE is None else "store")
    name = f"crash-matrix{where and '-'}{where}.jsonl"
    parser.add_argument("--results", type=Path, default=ROOT / ".proofs" / name)
    parser.add_argument("--renames", action="store_true", help="kill at the N-th rename instead")
    parser.add_argument("--power", action="store_true", help="cut the power of the disk instead")
    parser.add_argument("--report", action="store_true", help="only say what was found so far")
    return parser.parse_args()


def _run(asked: argparse.Namespace, every: list[Cell], todo: list[Cell]) -> None:
    deadline = time.monotonic() + asked.minutes * 60
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        broker_of_its_own() as address,
        Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("trials", total=len(every), completed=len(every) - len(todo))
        fork = multiprocessing.get_context("spawn")
        over = fork.Event()
        many = workers()
        running = [
            fork.Process(target=work, args=(asked.results, todo[nth::many], address, over))
            for nth in range(many)
        ]
        for each in running:
            each.start()
        while any(each.is_alive() for each in running) and time.monotonic() < deadline:
            time.sleep(1)
            progress.update(bar, completed=len(results(asked.results)))
        over.set()
        for each in running:
            each.join()


def _report(asked: argparse.Namespace) -> int:
    found = results(asked.results)
    table = Table(title=f"engine {engine_version()}, {len(found)} trials")
    names = [*WAYS, NTH_RENAME, POWER_CUT, "not reached", "wrong"]
    for name in ("place", *names):
        table.add_column(name, justify="left" if name == "place" else "right")
    counts = summary(found)
    for place, of in counts.items():
        table.add_row(place, *(str(of[name]) for name in names))
    console = Console(width=140)
    console.print(table)
    cuts = sum(of[POWER_CUT] for of in counts.values())
    kills = sum(of[way] for of in counts.values() for way in (*KILLS, NTH_RENAME))
    wrong = [each for each in found if each["evidence"]]
    console.print(f"{kills} real kills and {cuts} power cuts")
    console.print(f"{len(wrong)} trials with evidence against the guarantee")
    console.print(f"engines that crashed: {dict(Counter(each['engines'][1] for each in found))}")
    for each in wrong:
        console.print(_name(each), each["evidence"], markup=False)
    return 1 if wrong else 0


def _name(result: dict[str, object]) -> str:
    return " ".join(str(result[key]) for key in ("place", "way", "follow_up", "seed"))


def _name_of(cell: Cell) -> str:
    return str(cell)


if __name__ == "__main__":
    sys.exit(main())
