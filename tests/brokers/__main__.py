"""Ingest from three brokers while they, their network and the runs go down, and prove the result.

python -m tests.brokers [--minutes 20] [--seed 1] [--sinks delta,iceberg,postgres,kafka]
                        [--results FILE] [--report]

It needs root, for the network. Every few minutes (``--window``) all is mended, the streams are read
to their ends, and rows are compared with what the producers were promised.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from oncelake.ingestion.errors import IngestionError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.settings import Settings
from tests.brokers.cluster import NUMBERS, ReplicatedCluster, await_true
from tests.brokers.faults import Victims, deck_of, wrong
from tests.brokers.oracle import Reading, evidence_of
from tests.brokers.runs import Runs
from tests.brokers.writers import Writer
from tests.support.postgres import postgres
from tests.support.world import environment_of, settings_in
from tests.trials.main import parser_of
from tests.trials.record import PROOFS, Results, print_evidence, results_of_engine

# A transactional producer writes the one, an idempotent one the other.
TOPICS = ("committed", "plain")
_SINKS = "delta,iceberg,postgres,kafka"


def main() -> int:
    """Soak, and return 1 when anything was wrong."""
    parser = parser_of("tests.brokers", __doc__, results=PROOFS / "brokers.jsonl", minutes=20.0)
    parser.add_argument("--sinks", default=_SINKS)
    parser.add_argument("--window", type=float, default=8.0)
    parser.add_argument("--rate", type=int, default=100, help="records a second of each producer")
    options = parser.parse_args()
    if os.geteuid():
        print("brokers: only root may lay a network. Next: sudo make brokers")
        return 2
    results = results_of_engine(options.results, seed=options.seed)
    if not options.report:
        _soak(options, results)
    recorded = results.read()
    faults = sum((Counter(each["faults"]) for each in recorded), Counter[str]())
    for name, count in sorted(faults.items()):
        print(f"{count:>5} {name}")
    print(f"{faults.total()} faults")
    for each in recorded:
        print({name: each[name] for name in ("minutes", "records", "rows", "runs")})
    return print_evidence(recorded, "minutes")


def _soak(options: argparse.Namespace, results: Results) -> None:
    """Soak for as long as that goes well; the files stay where something was wrong."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="brokers-"))
    with _stage(folder, options) as stage:
        began = time.monotonic()
        end = began + options.minutes * 60
        while time.monotonic() < end:
            faults = stage.harm(min(end, time.monotonic() + options.window * 60))
            found = stage.prove()
            minutes = round((time.monotonic() - began) / 60, 1)
            results.add({"minutes": minutes, "faults": faults, **found})
            print(f"{minutes} min", faults, found, flush=True)
            if found["evidence"]:
                return
    shutil.rmtree(folder, ignore_errors=True)


class ClusterSoak:
    """The cluster, what writes to it, and what reads it."""

    def __init__(
        self, on: Victims, readings: list[Reading], writers: list[Writer], settings: Settings
    ) -> None:
        """Take them; the writers write."""
        self._on, self._readings, self._writers, self._settings = on, readings, writers, settings
        self._deck, self._client = deck_of(on.dice), Kafka(settings)

    def harm(self, end: float) -> dict[str, int]:
        """Do one harm after the other, and return how often each was done."""
        done, runs = Counter[str](), self._on.runs
        kills, runs.codes = runs.kills, Counter()
        self._promised = [len(writer.acknowledged) for writer in self._writers]
        for writer in self._writers:
            writer.paused.clear()
        runs.begin()
        while time.monotonic() < end:
            name = next(self._deck)
            with wrong(name, self._on):
                time.sleep(0 if name == "kill a run" else self._on.dice.uniform(4, 12))
            done[name] += name != "kill a run"
            await_true(self._on.cluster.is_whole, seconds=self._on.dice.choice((0, 5, 20)))
        done["kill a run"] = runs.kills - kills
        runs.rest()
        return dict(done)

    def prove(self) -> dict[str, Any]:
        """Wait until all is mended, read all that is left, and compare."""
        evidence = list[str]()
        if not await_true(self._on.cluster.is_whole, seconds=120):
            evidence.append("the cluster was not whole again after 120 s")
        for writer in self._writers:
            writer.pause()
        runs = self._on.runs
        evidence += [*self._idleness(), *self._unanswered()]
        codes = [runs.once("librdkafka"), runs.once("librdkafka")]
        if codes != [0, 0]:
            evidence.append(f"the last runs ended with {codes}")
        counts, found = evidence_of(self._readings, self._writers, self._settings)
        return {**counts, "runs": dict(runs.codes), "evidence": [*evidence, *runs.wrong, *found]}

    def _unanswered(self) -> Iterator[str]:
        """Yield which broker's death a client does not survive that has lived through it all."""
        for number in NUMBERS:
            self._client.topics("soak", TOPICS)
            self._on.cluster.signal(number, signal.SIGKILL)
            # What is asked of it in its last moment is not answered, and need not be.
            time.sleep(1)
            try:
                self._client.topics("soak", TOPICS)
            except IngestionError as error:
                yield f"a client was not answered after the death of broker {number}: {error}"
            self._on.cluster.start(number)
            await_true(self._on.cluster.is_whole, seconds=60)

    def _idleness(self) -> Iterator[str]:
        """Yield what did not happen since the harm began, without which nothing was shown."""
        for writer, before in zip(self._writers, self._promised, strict=True):
            if len(writer.acknowledged) <= before:
                yield f"{writer.topic}: no record was acknowledged"
        if not self._on.runs.codes["librdkafka 0"]:
            yield "no run by librdkafka ended with 0 between the faults"


@contextmanager
def _stage(folder: Path, options: argparse.Namespace) -> Iterator[ClusterSoak]:
    sinks = options.sinks.split(",")
    with ExitStack() as ends:
        database = ends.enter_context(postgres(folder)) if "postgres" in sinks else None
        cluster = ends.enter_context(ReplicatedCluster.up(folder / "kafka"))
        more = {"postgres": database} if database else {}
        settings = settings_in(folder, cluster.address, **more)
        for topic in TOPICS:
            cluster.make_topic(topic)
        readings = [
            Reading(sink=sink, topics=TOPICS if is_append else TOPICS[:1], is_append=is_append)
            for sink in sinks
            for is_append in (True, False)
        ]
        for reading in readings:
            reading.declare(settings)
        dice = random.Random(options.seed)
        runs = Runs(
            streams=[reading.name for reading in readings],
            environment=environment_of(settings),
            log=folder / "runs.log",
            dice=dice,
        )
        writers = [
            Writer(
                address=cluster.address,
                topic=topic,
                is_transactional=topic == TOPICS[0],
                rate=options.rate,
                seed=options.seed,
            )
            for topic in TOPICS
        ]
        for writer in writers:
            ends.callback(writer.end)
        yield ClusterSoak(
            Victims(cluster=cluster, runs=runs, dice=dice), readings, writers, settings
        )


if __name__ == "__main__":
    sys.exit(main())
