"""Ingest for as long as you like while things go wrong, and prove the result.

python -m tests.soak [--runner sensor|follow] [--minutes 10] [--seed 1] [--records 200000]
                     [--window 3] [--results FILE] [--report]

Every few minutes (``--window``) the faults stop: the lag must reach 0 within two runs, and every
proof must hold.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from oncelake.ingestion.errors import IngestionError
from oncelake.ingestion.lake.lock import holder_of
from oncelake.ingestion.operations.status.lag import LagReader
from tests.soak.nemesis import Nemesis
from tests.soak.runners import RUNNERS
from tests.soak.stage import Stage
from tests.support.proof import prove
from tests.trials.judge import differing_rows
from tests.trials.main import parser_of
from tests.trials.record import PROOFS, Results, print_evidence, results_of_engine

_PATIENCE_SECONDS = 900.0
# One run that died of the last fault, and then two.
_MOST_RUNS = 3


def main() -> int:
    """Soak, and return 1 when anything was wrong."""
    own = {"minutes": 10.0, "records": 200_000, "window": 3.0}
    parser = parser_of("tests.soak", __doc__, results=PROOFS / "soak.jsonl", **own)
    parser.add_argument("--runner", choices=RUNNERS, default="sensor")
    options = parser.parse_args()
    results = results_of_engine(options.results, runner=options.runner, seed=options.seed)
    if not options.report:
        _soak(options, results)
    recorded = results.read()
    for last in recorded[-1:]:
        print(f"sent {last['kinds']}; went wrong: {last['faults']}")
        print(last["verdict"])
    return print_evidence(recorded, "minutes")


def _soak(options: argparse.Namespace, results: Results) -> None:
    """Soak for as long as that goes well; the files stay where something was wrong."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder, console = Path(tempfile.mkdtemp(prefix="soak-")), Console(stderr=True)
    # Nothing is sent while it is proven.
    rate = options.records / (options.minutes * 60) * 2
    parts = {"seed": options.seed, "rate": rate, "records": options.records}
    with Stage.started(folder, options.runner, **parts) as stage:
        for window in _windows(options, stage, Nemesis(stage, random.Random(options.seed))):
            results.add(window)
            console.print(window, markup=False)
            if window["evidence"]:
                return
    shutil.rmtree(folder, ignore_errors=True)


def _windows(
    options: argparse.Namespace, stage: Stage, nemesis: Nemesis
) -> Iterator[dict[str, Any]]:
    """Do harm for a window, then none, and prove; until time and records are used up."""
    began, last = time.monotonic(), False
    end = began + options.minutes * 60
    while not last:
        nemesis.begin()
        stage.paused.clear()
        last = time.monotonic() + options.window * 60 >= end
        time.sleep(max(0.0, min(options.window * 60, end - time.monotonic())))
        is_late = end + _PATIENCE_SECONDS
        while last and stage.sent < stage.records and time.monotonic() < is_late:
            time.sleep(1)
        stage.paused.set()
        nemesis.rest()
        yield {
            "minutes": round((time.monotonic() - began) / 60, 1),
            "sent": stage.sent,
            "kinds": dict(stage.traffic.sent),
            "faults": dict(nemesis.done),
            **_prove(stage),
        }


def _prove(stage: Stage) -> dict[str, Any]:
    """Wait until everything is read, and hold it against the topic."""
    rested = time.time()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    lag = _lag(stage)
    while (lag is None or lag or holder_of(stage.world.paths)) and time.monotonic() < deadline:
        time.sleep(1)
        lag = _lag(stage)
    evidence = [f"lag {lag} after {_PATIENCE_SECONDS:g} s without faults"] if lag != 0 else []
    runs = stage.runner.runs_since(rested)
    if runs > _MOST_RUNS:
        evidence.append(f"{runs} runs until nothing was left to read")
    verdict = prove(stage.world)
    if not verdict.holds:
        evidence += [verdict.headline, *map(str, verdict.differences)]
    return {
        "seconds_to_catch_up": round(time.time() - rested),
        "runs_to_catch_up": runs,
        "runs": stage.runner.runs_since(0),
        "verdict": verdict.headline,
        "limits": list(verdict.limits),
        **_resources(stage),
        "evidence": [*evidence, *differing_rows(stage.world)],
    }


def _lag(stage: Stage) -> int | None:
    """Count what is unread; ``None`` while Kafka or a run has to come first."""
    world = stage.world
    try:
        lag = LagReader(world.settings).read([world.spec])[world.name]
        return None if lag is None else sum(lag.values())
    except IngestionError:
        return None


def _resources(stage: Stage) -> dict[str, float]:
    """Measure what must stay flat: the runner's memory and descriptors, and the disk."""
    tree = stage.runner.tree()
    files = [at.stat().st_size for at in stage.folder.rglob("*") if at.is_file()]
    return {
        "rss_mb": round(sum(each.memory_info().rss for each in tree) / 2**20),
        "descriptors": sum(each.num_fds() for each in tree),
        "checkpoint_files": sum(1 for _ in stage.world.paths.checkpoints.rglob("*")),
        "disk_mb": round(sum(files) / 2**20),
    }


if __name__ == "__main__":
    sys.exit(main())
