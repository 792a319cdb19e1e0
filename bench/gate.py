"""What rules cost: the same topic into a table without any, and into one whose batches are judged.

python -m bench.gate [RECORDS [BATCHES [ROUNDS]]]

A load in one process, and batches of 500 in another, both in turns. The figures are CPU-seconds of
whole processes, JVM and workers included.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from bench.cpu import run_metered
from bench.topic import ORDERS, Topic
from oncelake.ingestion.local import broker
from oncelake.ingestion.settings import load_settings

_FILE: Final = "topic: {topic}\nkeys: id\nsequence_by: updated_at\nschema: {ddl}\n"
_RULES: Final = """\
publish: checked
guard: true
expect:
  priced: {rule: price >= 0 AND quantity > 0, on_miss: refuse}
  placed: city IS NOT NULL AND length(city) < 100
  known: {rule: "status IN ('ordered', 'packed', 'shipped', 'delivered')", on_miss: quarantine}
"""


def main() -> None:
    """Measure both in turns, and print the ratios."""
    records, batches, rounds = [int(each) for each in sys.argv[1:]] + [1_000_000, 40, 3][
        len(sys.argv) - 1 :
    ]
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        up = broker.up(at / "kafka", jars=load_settings().jars, tied_to_caller=True)
        try:
            _measure(at, up.address, "load", records, rounds, "")
            small = "max_offsets_per_trigger: 500\n"
            _measure(at, up.address, "batches", 500 * batches, rounds, small)
        finally:
            broker.down(at / "kafka")


def _measure(at: Path, kafka: str, name: str, records: int, rounds: int, more: str) -> None:
    places = {"kafka": kafka, **{each: str(at / each) for each in ("lake", "state", "streams")}}
    given = {**os.environ, **{f"ONCELAKE_{n.upper()}": v for n, v in places.items()}}
    (at / "streams").mkdir(exist_ok=True)
    Topic(load_settings(**places), name).insert(records)
    costs: dict[str, list[float]] = {"plain": [], "judged": []}
    for nth in range(2 * rounds):
        kind = ("plain", "judged")[(nth + nth // 2) % 2]
        for each in (at / "lake", at / "state"):
            shutil.rmtree(each, ignore_errors=True)
        text = _FILE.format(topic=name, ddl=ORDERS) + more + (_RULES if kind == "judged" else "")
        (at / "streams" / f"{name}.yaml").write_text(text)
        command = [sys.executable, "-m", "ingestion", "run", name]
        costs[kind].append(run_metered(command, given, at / "log").cpu)
    ratio = median(costs["judged"]) / median(costs["plain"])
    shown = {kind: " ".join(f"{each:.1f}" for each in found) for kind, found in costs.items()}
    print(f"{name}, {records:,} records: {shown} CPU-s, ratio {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
