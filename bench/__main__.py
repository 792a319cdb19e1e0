"""``make bench``: what a run costs, beside naive Spark, delta-rs by hand and dlt.

    python -m bench [--scale 0.01] [--large] [--only PART...] [--write PAGE] [--json FILE]

One embedded broker; every contender reads the same topics. Cold is a new process, from its start
to its end; warm are the second and third repetition in one process, each into an empty lake or a
copy of the loaded one. A table is compared with its topic (``bench/fold.py``) before its figure
counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cpu import run_metered
from bench.freshness import PACE, measure_freshness
from bench.report import markdown, write_figures
from bench.runner import CONTENDERS, ENGINES, MERGING, PEERS, SPARK, Runner
from bench.topic import DELETED, LONG, ORDERS, WIDE
from oncelake.ingestion.local import broker
from oncelake.ingestion.settings import load_settings

_MILLION = 1_000_000
PARTS = ("small", "wide", "batches", "memory", "many", "follow", "large")


def measure_large(runner: Runner, scale: float, sizes: tuple[int, ...]) -> None:
    """Load a million rows, then apply half a million changes; then watch the table grow."""
    topic, fold = runner.declare("orders", ORDERS)
    topic.insert(round(_MILLION * scale))
    fold.read()
    for name in runner.alike():
        runner.warm(name, "load", fold)
        runner.cold(name, "load", fold)
    topic.change(round(450_000 * scale), keys=round(333_000 * scale), inserts=round(50_000 * scale))
    fold.read()
    for name in runner.alike():
        runner.warm(name, "changes", fold)
        runner.cold(name, "changes", fold)
    for millions in sizes if ENGINES[0] in runner.chosen else ():
        topic.insert(max(0, round(millions * _MILLION * scale) - topic.ids))
        fold.read()
        runner.cold(ENGINES[0], f"growing to {millions} M", fold)
        topic.change(round(9_000 * scale), keys=round(9_000 * scale), inserts=round(1_000 * scale))
        fold.read()
        for name in runner.contenders(MERGING):
            runner.warm(name, f"10,000 into {millions} M", fold, of=ENGINES[0])


def measure_small(runner: Runner, rounds: int) -> None:
    """Find a hundred new records, in a table of a hundred."""
    topic, fold = runner.declare("small", ORDERS)
    for part, repeats in {"100 records into no table": 1, "100 records": rounds}.items():
        topic.insert(100)
        fold.read()
        for name in runner.alike():
            runner.cold(name, part, fold, rounds=repeats)


def measure_batches(runner: Runner, scale: float) -> None:
    """Read batches of 500 in one run: deletes, late and bad records are among them."""
    deletes = {"apply_as_deletes": f"status = '{DELETED}'"}
    topic, fold = runner.declare("mixed", ORDERS, max_offsets_per_trigger=500, **deletes)
    topic.mix(500 * max(8, round(25 * scale)))
    fold.read()
    for name in runner.contenders(ENGINES):
        runner.warm(name, "batches", fold, rounds=1)


def measure_wide(runner: Runner) -> None:
    """Read 500 records of 500 columns into no table."""
    topic, fold = runner.declare("wide", WIDE)
    topic.widen(500)
    fold.read()
    for name in runner.contenders(SPARK):
        runner.cold(name, "500 columns", fold)


def measure_memory(runner: Runner, scale: float) -> None:
    """Load a million records of 2 KB in one batch; the figures say how much memory it took."""
    topic, fold = runner.declare("long", LONG, max_offsets_per_trigger=_MILLION)
    topic.lengthen(round(_MILLION * scale))
    fold.read()
    for name in runner.contenders(ENGINES):
        runner.cold(name, "2 KB each", fold)


def measure_follow(runner: Runner, minutes: float) -> None:
    """Follow ten streams that get a hundred records a second each; see ``bench.freshness``."""
    live = [runner.declare(f"live{n}", ORDERS, follow=PACE) for n in range(10)]
    folder = runner.scratch / "follow"
    folder.mkdir()
    figures = measure_freshness(
        [topic for topic, _ in live],
        runner.environment(folder),
        runner.scratch,
        rate=100,
        minutes=minutes,
    )
    for topic, fold in live:
        fold.read()
        fold.check(folder / "lake" / topic.name, "follow")
    runner.note(ENGINES[0], "10 streams", "followed", [figures])


def measure_many(runner: Runner) -> None:
    """Read a thousand records into each of twenty tables by one command, and into one table."""
    many = [runner.declare(f"many{n}", ORDERS) for n in range(21)]
    for topic, fold in many:
        topic.insert(1000)
        fold.read()
    walls = []
    for part in (many[:1], many[1:]):
        folder = runner.scratch / f"many-{len(part)}"
        names = [topic.name for topic, _ in part]
        command = [sys.executable, "-m", "ingestion", "run", *names]
        walls.append(run_metered(command, runner.environment(folder), runner.scratch / "log").wall)
        for topic, fold in part:
            fold.check(folder / "lake" / topic.name, "run")
    figures = {"each": (walls[1] - walls[0]) / 19, "wall": walls[1]}
    runner.note(ENGINES[0], "20 streams of 1,000", "in one run", [figures])


@contextmanager
def embedded_kafka() -> Iterator[Runner]:
    """Bring up a broker in a scratch folder, which is removed at the end."""
    scratch, own = Path(tempfile.mkdtemp(prefix="oncelake-bench-")), load_settings()
    try:
        up = broker.up(scratch / "kafka", jars=own.jars, tied_to_caller=True)
        places = {"lake": scratch / "lake", "state": scratch / "state"}
        yield Runner(own.at_kafka(up.address).model_copy(update=places), scratch)
    finally:
        broker.down(scratch / "kafka")
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    """Measure, print the tables, and write them where asked."""
    options = _options()
    if not PEERS.exists():
        print("dlt is skipped: it is not installed (make bench tries).")
    with embedded_kafka() as runner:
        runner.chosen = tuple(options.contenders or CONTENDERS)
        parts = {
            "small": lambda: measure_small(runner, 3 if options.scale == 1 else 1),
            "wide": lambda: measure_wide(runner),
            "batches": lambda: measure_batches(runner, options.scale),
            "memory": lambda: measure_memory(runner, options.scale),
            "many": lambda: measure_many(runner),
            "follow": lambda: measure_follow(runner, 5 if options.scale == 1 else 1.5),
            "large": lambda: measure_large(
                runner, options.scale, (1, 4, 16) if options.large else (1, 4)
            ),
        }
        for name in options.only or parts:
            parts[name]()
    tables = markdown(runner.figures, options.scale)
    print(tables)
    if options.json:
        about = {"scale": options.scale, "cores": os.cpu_count(), "figures": runner.figures}
        options.json.write_text(json.dumps(about, indent=2))
    if options.write:
        write_figures(options.write, tables)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=main.__doc__)
    parser.add_argument("--scale", type=float, default=1, help="share of every large size")
    parser.add_argument("--large", action="store_true", help="grow the table to 16 M rows, too")
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--contenders", nargs="+", choices=tuple(CONTENDERS))
    parser.add_argument("--write", type=Path, help="page whose tables are replaced")
    parser.add_argument("--json", type=Path, help="file that gets the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
