"""The long proofs, one after the other and each in pieces: python -m tests.proofs [--minutes 600].

A piece is a command with a seed of its own. What came of it is appended to a file of JSON lines
with the version of the engine, that is of its source text, so that this may be stopped at any
time, and goes on with the pieces that the version does not have yet.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.crash.matrix import engine_version
from tests.support.world import ROOT

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
    parser = argparse.ArgumentParser(prog="python -m tests.proofs", description=__doc__)
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no piece after so long")
    parser.add_argument("--only", action="append", choices=[proof.name for proof in PROOFS])
    asked = parser.parse_args()
    deadline = time.monotonic() + 60 * asked.minutes
    chosen = [proof for proof in PROOFS if not asked.only or proof.name in asked.only]
    for proof, seed in _missing(chosen):
        if time.monotonic() < deadline:
            _run(proof, seed)
    return _report()


def _missing(proofs: list[Proof]) -> Iterator[tuple[Proof, int]]:
    """Yield the pieces that this version lacks, the first of each proof before the second."""
    done = {(result["proof"], result["seed"]) for result in _results()}
    for seed in range(1, max(proof.pieces for proof in proofs) + 1):
        for proof in proofs:
            if seed <= proof.pieces and (proof.name, seed) not in done:
                yield proof, seed


def _run(proof: Proof, seed: int) -> None:
    command, begun = proof.command.format(seed=seed), time.monotonic()
    piece = {
        "engine": engine_version(),
        "began": f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}",
        "proof": proof.name,
        "seed": seed,
        "command": command,
    }
    ended = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True)
    said = ended.stdout.replace(str(ROOT), ".")
    result = {
        **piece,
        "exit_code": ended.returncode,
        "minutes": round((time.monotonic() - begun) / 60, 1),
        # By which each of these commands ends: its counts.
        "said": [line for line in said.splitlines() if any(map(str.isalpha, line))][-3:],
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")


def _results() -> list[dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    version = engine_version()
    return [each for each in map(json.loads, lines) if each["engine"] == version]


def _report() -> int:
    results = _results()
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
