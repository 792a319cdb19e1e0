"""Live random lives of streams: is a healthy table ever called damaged, or a damaged one proven?

python -m tests.lives [--steps 60] [--minutes 30] [--seed 1] [--keep-going]

Each step does something to one of four streams, or to a table of it behind the product's back; then
every command that looks must say what is so.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from ingestion.local import broker
from ingestion.pipeline.session import start_session
from tests.lives.harm import inflict, live_through
from tests.lives.streams import KINDS, Kind
from tests.lives.subject import BrokenPromiseError, Chronicle, Subject
from tests.support.world import JARS, World, settings_in

_OPERATIONS = ("run", "redrive", "erase", "rewind", "replay", "maintain", "rebuild", "harm")
_WEIGHTS = (5, 2, 1, 1.2, 1, 1.2, 0.8, 3)


def main() -> int:
    """Live, and return 1 when a promise was broken."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = _arguments()
    folder, chronicle = (
        Path(tempfile.mkdtemp(prefix="lives-")),
        Chronicle(goes_on=arguments.keep_going),
    )
    is_whole = False
    try:
        with _subjects(folder, arguments.seed, chronicle) as subjects:
            _live(subjects, arguments, chronicle)
        is_whole = not chronicle.broken
    except BrokenPromiseError:
        chronicle.steps.append(chronicle.step)
    finally:
        _report(arguments.seed, chronicle)
        if is_whole:
            shutil.rmtree(folder)
        else:
            print("\n".join(chronicle.steps), f"the lake is in {folder}", sep="\n")
    return 0 if is_whole else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lives", description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=30.0, help="stop after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep-going", action="store_true", help="count what is broken, and go on")
    return parser.parse_args()


@contextmanager
def _subjects(folder: Path, seed: int, chronicle: Chronicle) -> Iterator[list[Subject]]:
    """Start broker and Spark, and let four streams read their first records."""
    # So that no other project's settings, and no Dagster, are found.
    (folder / "dagster.yaml").touch()
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith(("ONCELAKE_", "DAGSTER_"))]:
        del os.environ[name]
    address = broker.up(folder / "kafka", jars=JARS, tied_to_caller=True).address
    settings = settings_in(folder, address)
    client = {"bootstrap.servers": address, "log_level": 0}
    spark = start_session(settings)

    def subject(kind: Kind) -> Subject:
        parts = {"admin": AdminClient(client), "producer": Producer(client), "topic": kind.name}
        world = World(settings=settings, spark=spark, **parts)
        world.create_topic()
        os.environ.update(world.environment())
        return Subject(
            kind=kind,
            world=world,
            folder=folder,
            dice=random.Random(f"{seed} {kind.name}"),
            chronicle=chronicle,
            clock=int(time.time()) - 3_600,
        )

    try:
        yield [subject(kind) for kind in KINDS]
    finally:
        spark.stop()
        broker.down(folder / "kafka")


def _live(subjects: list[Subject], arguments: argparse.Namespace, chronicle: Chronicle) -> None:
    dice, deadline = random.Random(arguments.seed), time.monotonic() + arguments.minutes * 60
    for step in range(1, arguments.steps + 1):
        subject = dice.choice(subjects)
        (name,) = dice.choices(_OPERATIONS, weights=_WEIGHTS)
        chronicle.step, began = f"{step}: {subject.name} {name}", time.monotonic()
        _harm(subject) if name == "harm" else getattr(subject, name)()
        if not subject.is_spoilt:
            subject.look()
        if subject.is_spoilt:
            subject.start_over()
        chronicle.steps.append(f"{chronicle.step} ({time.monotonic() - began:.0f} s)")
        print(chronicle.steps[-1], flush=True)
        if time.monotonic() > deadline:
            break
    for subject in subjects:
        subject.look()


def _harm(subject: Subject) -> None:
    subject.type("run", subject.name)
    harm = inflict(subject)
    if harm is not None:
        harmless = "" if harm.matters else ", harmless"
        subject.chronicle.step += f" {harm.table}: {harm.what}{harmless}"
        subject.chronicle.counts[f"harm: {harm.table}, {harm.what}{harmless}"] += 1
        live_through(subject, harm)


def _report(seed: int, chronicle: Chronicle) -> None:
    print(f"\nseed {seed}: {len(chronicle.steps)} steps")
    for name, count in sorted(chronicle.counts.items()):
        print(f"{count:>6} {name}")
    print(f"violations: {chronicle.broken.total()}")
    for promise, count in chronicle.broken.most_common():
        print(f"{count:>6} {promise}")


if __name__ == "__main__":
    sys.exit(main())
