"""The long proofs, one after the other and each in pieces: python -m tests.proofs [--minutes 600].

A piece is a command with a seed of its own. What came of it is appended to a file of JSON lines
with the version of the engine, that is of its source text, so that this may be stopped at any
time, and goes on with the pieces that the version does not have yet.
"""

from __future__ import annotations

import datetime as dt
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.support.world import ROOT
from tests.trials.main import parser_of, within
from tests.trials.record import engine_version, results_of_engine

RESULTS: Final = ROOT / "docs" / "proofs.jsonl"


@dataclass(frozen=True)
class Proof:
    """A proof in pieces, each of which runs ``command`` with a seed from 1 on, in ``{seed}``."""

    name: str
    pieces: int
    command: str


PROOFS: Final = (
    Proof("kills", 10, "make crash-matrix SEED={seed} TRIALS=50 MINUTES=120"),
    Proof("kills, iceberg", 2, "make crash-matrix SINK=iceberg SEED={seed} TRIALS=44"),
    Proof("kills, postgres", 2, "make crash-matrix SINK=postgres SEED={seed} TRIALS=44"),
    Proof("kills, kafka", 2, "make crash-matrix SINK=kafka SEED={seed} TRIALS=44"),
    Proof("kills, store", 2, "make crash-matrix LAKE=s3 SEED={seed} TRIALS=44"),
    Proof("renames", 2, ".venv/bin/python -m tests.crash --renames --seed {seed} --minutes 60"),
    Proof("power cuts", 5, "make power-cuts SEED={seed} TRIALS=40 MINUTES=120"),
    Proof("modes", 1, "make modes-matrix"),
    Proof("double starts", 2, "make double-starts"),
    Proof("operations", 10, "env LONG=1 .venv/bin/pytest tests/crash/test_operation_kills.py"),
    Proof("planted bugs", 1, "make mutants"),
    # A schedule a seed, counted up from SEED: pieces 100,000 apart have no schedule in common.
    Proof("model", 10, "make model SCHEDULES=100000 SEED={seed}00001"),
    Proof("soak", 1, "make soak MINUTES=60 SEED={seed} RECORDS=400000"),
    Proof("soak, follow", 1, "make soak MINUTES=120 SEED={seed} RUNNER=follow RECORDS=800000"),
    Proof("lives", 4, "make lives SEED={seed} STEPS=500"),
)


def main() -> int:
    """Run pieces until all are there or the time is up; 1 when one of this version failed."""
    names = [proof.name for proof in PROOFS]
    parser = parser_of("tests.proofs", __doc__, results=RESULTS, minutes=600.0)
    parser.add_argument("--only", action="append", choices=names)
    options = parser.parse_args()
    results = results_of_engine(options.results)
    chosen = [proof for proof in PROOFS if proof.name in (options.only or names)]
    done = {(result["proof"], result["seed"]) for result in results.read()}
    # The first piece of each before the second.
    todo = [
        (proof, seed)
        for seed in range(1, max(proof.pieces for proof in chosen) + 1)
        for proof in chosen
        if seed <= proof.pieces and (proof.name, seed) not in done
    ]
    for proof, seed in within(options.minutes, [] if options.report else todo):
        results.add(_run(proof, seed))
    return _report(results.read())


def _run(proof: Proof, seed: int) -> dict[str, Any]:
    command, begun = proof.command.format(seed=seed), time.monotonic()
    began = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}"
    ended = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True)
    said = ended.stdout.replace(str(ROOT), ".")
    return {
        "began": began,
        "proof": proof.name,
        "seed": seed,
        "command": command,
        "exit_code": ended.returncode,
        "minutes": round((time.monotonic() - begun) / 60, 1),
        # By which each of these commands ends: its counts.
        "said": [line for line in said.splitlines() if any(map(str.isalpha, line))][-3:],
    }


def _report(results: list[dict[str, Any]]) -> int:
    table = Table("proof", "pieces", "failed", "minutes", "last words", title=engine_version())
    for proof in PROOFS:
        mine = [each for each in results if each["proof"] == proof.name]
        failed, minutes = sum(map(_failed, mine)), sum(each["minutes"] for each in mine)
        said = " | ".join(mine[-1]["said"][-2:]) if mine else ""
        table.add_row(proof.name, f"{len(mine)}/{proof.pieces}", str(failed), f"{minutes:g}", said)
    Console().print(table)
    return int(any(map(_failed, results)))


def _failed(result: dict[str, Any]) -> bool:
    return bool(result["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
