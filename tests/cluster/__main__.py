"""Kill executors, workers and runs at random moments, and prove that nothing is lost or doubled.

python -m tests.cluster --kills 20 --seed 1
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

from ingestion.local import broker
from ingestion.storage.failpoints import Failpoint
from tests.cluster.kill_hook import PlannedKill
from tests.cluster.runs import on_cluster, run
from tests.support.proof import find_problems
from tests.support.spark_cluster import SparkCluster
from tests.support.world import JARS, World, row

RECORDS = 20_000
_VICTIMS = ("executor", "executor", "worker", "run")
_PLACES = (Failpoint.BATCH_PLANNED, Failpoint.PREPARED)


def main() -> int:
    """Read the command line, kill, and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cluster-"))
    try:
        with SparkCluster.started(folder / "cluster") as cluster:
            address = broker.up(folder / "kafka", jars=JARS, tied_to_caller=True).address
            settings = on_cluster(folder, address, cluster)
            with World.made(settings, cast("Any", None)) as world:
                world.declare(sequence_by=["at"], max_offsets_per_trigger=RECORDS)
                return _judge(world, Kills(world, cluster, chosen.seed), chosen.kills)
    finally:
        broker.down(folder / "kafka")
        shutil.rmtree(folder, ignore_errors=True)


class Kills:
    """What was killed, and how each run ended."""

    def __init__(self, world: World, cluster: SparkCluster, seed: int) -> None:
        self._world = world
        self._cluster = cluster
        self._dice = random.Random(seed)
        self._sent = 0
        self._done = world.settings.lake.parent / "kills"
        self.seconds: dict[str, list[float]] = {}
        self.codes: Counter[tuple[str, int]] = Counter()

    @property
    def done(self) -> list[str]:
        """A line for each kill that came before its run had ended."""
        return self._done.read_text().splitlines() if self._done.exists() else []

    def run_through(self, victim: str | None) -> None:
        """Send records and run; after a run that was killed itself, run again."""
        self._send()
        kills = [] if victim is None else [self._plan(victim)]
        before, began = len(self.done), time.monotonic()
        ended = run([self._world], kills=kills)
        took = time.monotonic() - began
        came = len(self.done) > before
        what = f"{victim} killed" if came else "no kill"
        self.seconds.setdefault(what, []).append(took)
        self.codes[what, ended.returncode] += 1
        last = self.done[-1] if came else "nothing"
        print(f"{last}: exit {ended.returncode} after {took:.0f} s", flush=True)
        if ended.returncode > 0:
            print(ended.stderr[-3000:], flush=True)
        self._cluster.replace_lost_workers()

    def _plan(self, victim: str) -> PlannedKill:
        return PlannedKill(
            victim=victim,
            within=self._cluster.master,
            place=self._dice.choice(_PLACES),
            delay_seconds=self._dice.uniform(0, 3),
            done=str(self._done),
        )

    def _send(self) -> None:
        begin, self._sent = self._sent, self._sent + RECORDS
        records = [
            row(self._dice.randrange(5_000), f"n{at}", at) for at in range(begin, self._sent)
        ]
        for partition in range(2):
            self._world.send(*records[partition::2], partition=partition)


def _judge(world: World, kills: Kills, wanted: int) -> int:
    kills.run_through(None)
    dice = random.Random(wanted)
    while len(kills.done) < wanted:
        kills.run_through(dice.choice(_VICTIMS))
    kills.run_through(None)
    problems = find_problems(world)
    for what, seconds in sorted(kills.seconds.items()):
        codes = {code: n for (of, code), n in kills.codes.items() if of == what}
        print(f"{what}: {len(seconds)} runs, {statistics.median(seconds):.0f} s, exits {codes}")
    print(f"{len(kills.done)} kills; " + ("\n".join(problems) or "nothing lost, nothing doubled"))
    failed = any(code > 0 for (_, code) in kills.codes)
    return 1 if problems or failed else 0


if __name__ == "__main__":
    sys.exit(main())
