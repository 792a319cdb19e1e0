"""Kill executors, workers and runs at random moments, and prove that nothing is lost or doubled.

python -m tests.cluster [--kills 20] [--seed 1] [--minutes M] [--results FILE] [--report]
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from oncelake.ingestion.storage.failpoints import Failpoint
from tests.cluster.runs import on_cluster, run
from tests.support.spark_cluster import SparkCluster
from tests.support.world import World, row
from tests.trials.failpoints import PlannedCrash, kills_in
from tests.trials.judge import judge
from tests.trials.main import parser_of, within
from tests.trials.record import PROOFS, print_evidence, results_of_engine
from tests.trials.world import broker_in, folder_of_its_own

RECORDS = 20_000
_WAYS = ("kill_executor", "kill_executor", "kill_worker", "kill_group")
_PLACES = (Failpoint.BATCH_PLANNED, Failpoint.PREPARED)


def main() -> int:
    """Kill, judge, and return 1 when something was wrong."""
    file = PROOFS / "cluster-kills.jsonl"
    options = parser_of("tests.cluster", __doc__, results=file, kills=20).parse_args()
    results = results_of_engine(options.results, seed=options.seed)
    if not options.report:
        with (
            folder_of_its_own("cluster") as folder,
            SparkCluster.started(folder / "cluster") as cluster,
            broker_in(folder / "kafka") as address,
            World.made(on_cluster(folder, address, cluster), cast("Any", None)) as world,
        ):
            world.declare(sequence_by=["at"], max_offsets_per_trigger=RECORDS)
            kills = Kills(world, cluster, random.Random(options.seed))
            results.add(kills.run_through(None))
            for way in within(options.minutes, kills.ways_until(options.kills)):
                results.add(kills.run_through(way))
            last = kills.run_through(None)
            results.add({**last, "evidence": [*last["evidence"], *judge(world)]})
    return _report(results.read())


@dataclass
class Kills:
    """Runs of one stream, most of which lose something on the way."""

    world: World
    cluster: SparkCluster
    dice: random.Random
    sent: int = 0

    @property
    def done(self) -> list[str]:
        """What was killed before its run had ended."""
        return kills_in(self._visits)

    def ways_until(self, kills: int) -> Iterator[str]:
        """Yield ways to die until so many were carried out."""
        while len(self.done) < kills:
            yield self.dice.choice(_WAYS)

    def run_through(self, way: str | None) -> dict[str, Any]:
        """Send records and run; after a run that was killed itself, the next one heals."""
        self._send()
        crash = PlannedCrash(
            place=self.dice.choice(_PLACES) if way else "never",
            way=way or "kill_group",
            visits=str(self._visits),
            master=self.cluster.master,
            delay_seconds=self.dice.uniform(0, 3),
        )
        before, began = len(self.done), time.monotonic()
        ended = run([self.world], crash)
        took = time.monotonic() - began
        killed = [*self.done, "nothing"][before]
        print(f"{killed}: exit {ended.returncode} after {took:.0f} s", flush=True)
        self.cluster.replace_lost_workers()
        return {
            "killed": killed,
            "exit_code": ended.returncode,
            "seconds": took,
            "evidence": [ended.stderr[-3000:]] if ended.returncode > 0 else [],
        }

    @property
    def _visits(self) -> Path:
        return Path(self.world.settings.state).with_name("visits")

    def _send(self) -> None:
        begin, self.sent = self.sent, self.sent + RECORDS
        records = [row(self.dice.randrange(5_000), f"n{at}", at) for at in range(begin, self.sent)]
        for partition in range(2):
            self.world.send(*records[partition::2], partition=partition)


def _report(results: list[dict[str, Any]]) -> int:
    by_victim: dict[str, list[dict[str, Any]]] = {}
    for each in results:
        by_victim.setdefault(each["killed"].split()[0], []).append(each)
    for victim, runs in sorted(by_victim.items()):
        seconds = statistics.median(each["seconds"] for each in runs)
        codes = dict(Counter(each["exit_code"] for each in runs))
        print(f"{victim} killed: {len(runs)} runs, {seconds:.0f} s, exits {codes}")
    print(f"{len(results) - len(by_victim.get('nothing', ()))} kills")
    return print_evidence(results, "seed", "killed")


if __name__ == "__main__":
    sys.exit(main())
