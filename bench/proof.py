"""What a proof costs beside the load that it proves: a million records of JSON, then 10,000 more.

python -m bench.proof [RECORDS [FEW]]

Each figure is of a whole process, in one run: the load, the proof of all of it, half as many
changes and their proof, a few records more and the proof that goes on, and one that begins anew.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.cpu import Cost, run_metered
from bench.topic import ORDERS, Topic
from oncelake.ingestion.local import broker
from oncelake.ingestion.settings import load_settings


def main(records: int = 1_000_000, few: int = 10_000) -> None:
    """Measure whole processes, and print what they took."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        up = broker.up(at / "kafka", jars=load_settings().jars, tied_to_caller=True)
        try:
            names = ("lake", "state", "streams")
            places = {"kafka": up.address, **{name: str(at / name) for name in names}}
            _measure(at, places, records, few)
        finally:
            broker.down(at / "kafka")


def _measure(at: Path, places: dict[str, str], records: int, few: int) -> None:
    (at / "streams").mkdir()
    (at / "streams" / "orders.yaml").write_text(
        f"topic: orders\nmode: upsert\nkeys: id\nsequence_by: updated_at\nschema: {ORDERS}\n"
    )
    given = {**os.environ, **{f"ONCELAKE_{n.upper()}": v for n, v in places.items()}}

    def cost(*words: str) -> Cost:
        command = [sys.executable, "-m", "ingestion", *words]
        return run_metered(command, given, at / "log")

    topic = Topic(load_settings(**places), "orders")
    steps: dict[str, Callable[[], None]] = {
        f"{records:,} records": lambda: topic.insert(records),
        f"{records // 2:,} changes": lambda: topic.change(
            records * 45 // 100, keys=records // 3, inserts=records // 20
        ),
        f"{few:,} more": lambda: topic.change(few * 9 // 10, keys=few, inserts=few // 10),
    }
    for name, send in steps.items():
        send()
        load, proof = cost("run", "orders"), cost("verify", "orders")
        _say(name, load, proof)
        print((at / "log").read_text())
    _say("all of it, anew", None, cost("verify", "orders", "--whole"))
    _say("nothing new", None, cost("verify", "orders"))


def _say(name: str, load: Cost | None, proof: Cost) -> None:
    loaded = f"load {load.cpu:.1f} CPU-s, " if load else ""
    mb = f"{proof.python_mb:,.0f} MB"
    print(f"{name}: {loaded}proof {proof.cpu:.1f} CPU-s, {proof.wall:.1f} s, {mb}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
