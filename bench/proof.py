"""What a proof costs beside the load that it proves: a million records of JSON, then 10,000 more.

python -m bench.proof [RECORDS [FEW]] [--modes upsert append insert_only scd2]

Each figure is of a whole process, in one run: the load, the proof of all of it, half as many
changes and their proof, a few records more and the proof that goes on, and one that begins anew.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.cpu import Cost, run_metered
from bench.topic import ORDERS, Topic
from oncelake.ingestion.local import broker
from oncelake.ingestion.settings import load_settings

_KEYED: Final = "keys: id\nsequence_by: updated_at\n"
_MODES: Final = {"upsert": _KEYED, "append": "", "insert_only": _KEYED, "scd2": _KEYED}


def main() -> None:
    """Measure whole processes, and print what they took."""
    parser = argparse.ArgumentParser(prog="bench.proof")
    parser.add_argument("records", nargs="?", type=int, default=1_000_000)
    parser.add_argument("few", nargs="?", type=int, default=10_000)
    parser.add_argument("--modes", nargs="+", choices=_MODES, default=["upsert"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        up = broker.up(at / "kafka", jars=load_settings().jars, tied_to_caller=True)
        try:
            names = ("lake", "state", "streams")
            places = {"kafka": up.address, **{name: str(at / name) for name in names}}
            (at / "streams").mkdir()
            for mode in given.modes:
                _measure(at, places, mode, given.records, given.few)
        finally:
            broker.down(at / "kafka")


def _measure(at: Path, places: dict[str, str], mode: str, records: int, few: int) -> None:
    (at / "streams" / f"{mode}.yaml").write_text(
        f"topic: {mode}\nmode: {mode}\n{_MODES[mode]}schema: {ORDERS}\n"
    )
    given = {**os.environ, **{f"ONCELAKE_{n.upper()}": v for n, v in places.items()}}

    def cost(*words: str) -> Cost:
        command = [sys.executable, "-m", "ingestion", *words]
        return run_metered(command, given, at / "log")

    topic = Topic(load_settings(**places), mode)
    steps: dict[str, Callable[[], None]] = {
        "records": lambda: topic.insert(records),
        "changes": lambda: topic.change(
            records * 45 // 100, keys=records // 3, inserts=records // 20
        ),
        "more": lambda: topic.change(few * 9 // 10, keys=few, inserts=few // 10),
    }
    for name, send in steps.items():
        before = topic.sent
        send()
        count, load, proof = topic.sent - before, cost("run", mode), cost("verify", mode)
        _say(f"{mode}, {count:,} {name}", count, proof, f"load {load.cpu:.1f} CPU-s, ")
        print((at / "log").read_text())
    _say(f"{mode}, all of it, anew", topic.sent, cost("verify", mode, "--whole"))
    _say(f"{mode}, nothing new", 0, cost("verify", mode))


def _say(name: str, records: int, proof: Cost, load: str = "") -> None:
    rate = f"{records / proof.cpu:,.0f} records per CPU-second"
    took = f"{proof.cpu:.1f} CPU-s, {proof.wall:.1f} s, {proof.python_mb:,.0f} MB"
    print(f"{name}: {load}proof {took}, {rate}", flush=True)


if __name__ == "__main__":
    main()
