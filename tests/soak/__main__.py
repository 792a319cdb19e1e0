"""Ingest for as long as you like while things go wrong, and prove the result.

python -m tests.soak [--runner sensor|follow] [--minutes 10] [--seed 1] [--records 200000]
                     [--window 3] [--results FILE]

Every few minutes the faults stop: the lag must reach 0 within two runs, and every proof must hold.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from ingestion.errors import IngestionError
from ingestion.lake.lock import holder_of
from ingestion.operations.lag import LagReader
from ingestion.verify.verify import verify
from tests.crash.matrix import engine_version
from tests.soak.nemesis import Nemesis
from tests.soak.runners import RUNNERS
from tests.soak.stage import Stage
from tests.support.world import ROOT

_PATIENCE_SECONDS = 900.0
# One run that died of the last fault, and then two.
_MOST_RUNS = 3


def main() -> int:
    """Soak, and return 1 when anything was wrong."""
    asked = _arguments()
    console = Console(stderr=True)
    stage = Stage(
        folder=Path(tempfile.mkdtemp(prefix="soak-")),
        runs_by=asked.runner,
        seed=asked.seed,
        # Nothing is sent while it is proven.
        rate=asked.records / (asked.minutes * 60) * 2,
        records=asked.records,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    nemesis = Nemesis(stage, random.Random(asked.seed))
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    try:
        stage.set_up()
        for window in _windows(asked, stage, nemesis):
            stage.failures += window["evidence"]
            told = {
                **window,
                "runner": asked.runner,
                "seed": asked.seed,
                "engine": engine_version(),
            }
            with asked.results.open("a") as out:
                out.write(json.dumps(told) + "\n")
            console.print(told, markup=False)
    finally:
        stage.tear_down()
    sent = dict(stage.traffic.sent)
    print(f"sent {sent}; went wrong: {dict(nemesis.done)}")
    print(f"{told['verdict']}; evidence: {stage.failures}")
    return 1 if stage.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--runner", choices=RUNNERS, default="sensor")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--window", type=float, default=3.0, help="minutes between two proofs")
    parser.add_argument("--results", type=Path, default=ROOT / ".proofs" / "soak.jsonl")
    return parser.parse_args()


def _windows(asked: argparse.Namespace, stage: Stage, nemesis: Nemesis) -> Iterator[dict[str, Any]]:
    """Do harm for a window, then none, and prove; until time and records are used up."""
    began = time.monotonic()
    end = began + asked.minutes * 60
    while True:
        nemesis.begin()
        stage.paused.clear()
        last = time.monotonic() + asked.window * 60 >= end
        time.sleep(max(0.0, min(asked.window * 60, end - time.monotonic())))
        while last and not stage.is_fed and time.monotonic() < end + _PATIENCE_SECONDS:
            time.sleep(1)
        stage.paused.set()
        nemesis.rest()
        proof = _prove(stage)
        yield {
            "minutes": round((time.monotonic() - began) / 60, 1),
            "sent": stage.sent,
            "faults": dict(nemesis.done),
            **proof,
        }
        if last or stage.failures:
            return


def _prove(stage: Stage) -> dict[str, Any]:
    """Wait until everything is read, and hold it against the topic."""
    rested = time.time()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    lag = _lag(stage)
    while (lag is None or lag or holder_of(stage.paths)) and time.monotonic() < deadline:
        time.sleep(1)
        lag = _lag(stage)
    evidence = [f"lag {lag} after {_PATIENCE_SECONDS:g} s without faults"] if lag != 0 else []
    assert stage.runner is not None
    runs = stage.runner.runs_since(rested)
    if runs > _MOST_RUNS:
        evidence.append(f"{runs} runs until nothing was left to read")
    verdict = verify(stage.spec, stage.settings)
    if not verdict.holds:
        evidence += [verdict.headline, *map(str, verdict.differences)]
    return {
        "seconds_to_catch_up": round(time.time() - rested),
        "runs_to_catch_up": runs,
        "runs": stage.runner.runs_since(0),
        "verdict": verdict.headline,
        "limits": list(verdict.limits),
        **_resources(stage),
        "evidence": evidence,
    }


def _lag(stage: Stage) -> int | None:
    """Count what is unread; ``None`` while Kafka or a run has to come first."""
    try:
        lag = LagReader(stage.settings).read([stage.spec])[stage.spec.name]
        return None if lag is None else sum(lag.values())
    except IngestionError:
        return None


def _resources(stage: Stage) -> dict[str, float]:
    """Measure what must stay flat: the runner's memory and descriptors, and the disk."""
    assert stage.runner is not None
    tree = stage.runner.tree()
    files = [at.stat().st_size for at in stage.folder.rglob("*") if at.is_file()]
    return {
        "rss_mb": round(sum(each.memory_info().rss for each in tree) / 2**20),
        "descriptors": sum(each.num_fds() for each in tree),
        "checkpoint_files": sum(1 for _ in stage.paths.checkpoints.rglob("*")),
        "disk_mb": round(sum(files) / 2**20),
    }


if __name__ == "__main__":
    sys.exit(main())
