"""Live random lives of streams, by the thousand steps: is every promise kept after each?

python -m tests.lives [--steps 60] [--length 50] [--seed 1] [--folder FOLDER] [--life N]

Each step does something to a stream, or to a table of it behind the product's back; then every
command that looks must say what is so. A life is drawn from the seed and its number. Those that
``FOLDER/lives.jsonl`` tells of are not lived again; one that broke a promise is there with the
fewest steps that do, which ``--life N`` plays again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ingestion.local import broker
from ingestion.pipeline.session import start_session
from tests.lives.life import Ground, live, play
from tests.lives.step import Step
from tests.lives.streams import KINDS
from tests.lives.subject import Chronicle
from tests.support.world import JARS, settings_in


def main() -> int:
    """Live, and return 1 when a promise was broken."""
    arguments = _arguments()
    file = arguments.folder / "lives.jsonl"
    lives = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    lives = [life for life in lives if life["seed"] == arguments.seed]
    with _ground(arguments.folder) as ground:
        if arguments.life is not None:
            _play_again(lives[arguments.life], ground)
            return 0
        while sum(life["played"] for life in lives) < arguments.steps:
            lives.append(_live_next(lives, ground, arguments))
            with file.open("a") as written:
                written.write(json.dumps(lives[-1]) + "\n")
    _report(lives)
    return int(any(life["promise"] for life in lives))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lives", description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--length", type=int, default=50, help="steps of one life")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None, help="where results and lakes are")
    parser.add_argument("--life", type=int, help="play the steps of a life again that are recorded")
    parser.add_argument("--shrink-minutes", type=int, default=10)
    arguments = parser.parse_args()
    arguments.folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="lives-"))).absolute()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    return arguments


@contextmanager
def _ground(folder: Path) -> Iterator[Ground]:
    """Start broker and Spark, in an environment without settings of this machine."""
    for name in [name for name in os.environ if name.startswith(("ONCELAKE_", "DAGSTER_"))]:
        del os.environ[name]
    kafka = Path(tempfile.mkdtemp(prefix="lives-kafka-"))
    address = broker.up(kafka, jars=JARS, tied_to_caller=True).address
    spark = start_session(settings_in(kafka, address))
    try:
        yield Ground(kafka=address, spark=spark, folder=folder)
    finally:
        spark.stop()
        broker.down(kafka)
        shutil.rmtree(kafka)


def _live_next(
    lives: list[dict[str, Any]], ground: Ground, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Live the next life of a seed, and return what is recorded of it."""
    nth, known = len(lives), {life["promise"] for life in lives}
    kind, began = KINDS[nth % len(KINDS)], time.monotonic()
    chronicle = Chronicle(tell=partial(print, flush=True))
    length = min(arguments.length, arguments.steps)
    chronicle.tell(f"life {nth} of seed {arguments.seed}: {kind.name}")
    evidence = ""
    try:
        number, seconds = 1_000 * arguments.seed + nth, arguments.shrink_minutes * 60
        parts = {"length": length, "number": number, "shrink_seconds": seconds, "known": known}
        live(kind, ground, chronicle, **parts)
    except Exception as error:  # noqa: BLE001 (an error of the oracle ends no other life)
        chronicle.promise = chronicle.promise or f"the oracle: {error!r}"
        evidence = "\n".join([*map(str, error.args), *traceback.format_exception(error)[-3:]])
        chronicle.tell(f"{evidence}\n{len(chronicle.fewest)} steps: {chronicle.fewest}")
    return {
        "seed": arguments.seed,
        "nth": nth,
        "kind": kind.name,
        "seconds": round(time.monotonic() - began),
        "played": len(chronicle.steps),
        "counts": chronicle.counts,
        "promise": chronicle.promise,
        "evidence": evidence,
        "steps": list(map(asdict, chronicle.fewest or chronicle.steps)),
    }


def _play_again(life: dict[str, Any], ground: Ground) -> None:
    (kind,) = (kind for kind in KINDS if kind.name == life["kind"])
    play(kind, [Step(**step) for step in life["steps"]], ground, Chronicle())


def _report(lives: list[dict[str, Any]]) -> None:
    """Sum up what was done in all lives."""
    counts = sum((Counter(life["counts"]) for life in lives), Counter[str]())
    for name, count in sorted(counts.items()):
        print(f"{count:>6} {name}")
    steps, seconds = (sum(life[name] for life in lives) for name in ("played", "seconds"))
    print(f"{len(lives)} lives of {steps} steps in {seconds} s")
    broken = [life for life in lives if life["promise"]]
    print(f"violations: {len(broken)}")
    for life in broken:
        print(f"life {life['nth']}, {len(life['steps'])} steps: {life['promise']}")


if __name__ == "__main__":
    sys.exit(main())
