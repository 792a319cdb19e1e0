"""The long proofs, one after the other and each in pieces: python -m tests.proofs [--minutes 600].

A piece is a command with a seed of its own. Its result is appended to tests/records/proofs.jsonl
with the version of the engine, that is of its source text. So this may be stopped at any time: it
goes on with the pieces that the version does not have yet. docs/reliability.md has the sums.
"""

from __future__ import annotations

import datetime as dt
import re
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
from tests.trials.record import Results, engine_version

RESULTS: Final = ROOT / "tests" / "records" / "proofs.jsonl"


@dataclass(frozen=True)
class Proof:
    """A proof in pieces, each of which runs ``command`` with a seed from 1 on, in ``{seed}``.

    Attributes:
        trials: The trials of a piece, or what finds their numbers in its command and output.
        is_cumulative: The output counts the trials of the version's earlier pieces, too.
    """

    name: str
    pieces: int
    command: str
    trials: int | str
    is_cumulative: bool = False


_KILLS: Final = r"(\d+) real kills"
_FAULTS: Final = r"'(?:kill|freeze|pause|delete|compact) [^']*': (\d+)"
_PASSED: Final = r"(\d+) passed"

PROOFS: Final = (
    Proof("kills", 10, "make crash-matrix SEED={seed} TRIALS=50 MINUTES=120", _KILLS, True),
    Proof(
        "kills, iceberg", 2, "make crash-matrix SINK=iceberg SEED={seed} TRIALS=44", _KILLS, True
    ),
    Proof(
        "kills, postgres", 2, "make crash-matrix SINK=postgres SEED={seed} TRIALS=44", _KILLS, True
    ),
    Proof("kills, kafka", 2, "make crash-matrix SINK=kafka SEED={seed} TRIALS=44", _KILLS, True),
    Proof("kills, store", 2, "make crash-matrix LAKE=s3 SEED={seed} TRIALS=44", _KILLS, True),
    Proof(
        "renames",
        2,
        ".venv/bin/python -m tests.crash --renames --seed {seed} --minutes 60",
        _KILLS,
        True,
    ),
    Proof(
        "power cuts, runs",
        5,
        "make power-cuts SEED={seed} TRIALS=40 MINUTES=120",
        r"(\d+) power cuts",
        True,
    ),
    # Its cells; the command runs other tests of the modes, too.
    Proof("modes", 1, "make modes-matrix", 144),
    Proof("double starts", 2, "make double-starts", _PASSED),
    Proof(
        "operations", 10, "env LONG=1 .venv/bin/pytest tests/crash/test_operation_kills.py", _PASSED
    ),
    Proof("planted bugs", 1, "make mutants", r"of (\d+) planted bugs"),
    # A schedule a seed, counted up from SEED: pieces 100,000 apart have no schedule in common.
    Proof("model", 10, "make model SCHEDULES=100000 SEED={seed}00001", 100_000),
    # States that were visited, of every model; each wrong protocol must be refuted.
    Proof("specification", 1, "make specification", r"(\d+) distinct states"),
    Proof("soak", 1, "make soak MINUTES=60 SEED={seed} RECORDS=400000", _FAULTS),
    Proof(
        "soak, follow",
        1,
        "make soak MINUTES=120 SEED={seed} RUNNER=follow RECORDS=800000",
        _FAULTS,
    ),
    Proof("brokers", 1, "make soak-brokers SEED={seed}", r"(\d+) faults"),
    Proof("lives", 4, "make lives SEED={seed} STEPS=500", 500),
)


def main() -> int:
    """Run pieces until all are there or the time is up; 1 when one of this version failed."""
    names = [proof.name for proof in PROOFS]
    parser = parser_of("tests.proofs", __doc__, results=RESULTS, minutes=600.0)
    parser.add_argument("--only", action="append", choices=names)
    options = parser.parse_args()
    results = Results(file=options.results, shared={"version": engine_version()})
    chosen = [proof for proof in PROOFS if proof.name in (options.only or names)]
    done = {(result["proof"], result.get("seed")) for result in results.read()}
    # The first piece of each before the second.
    todo = [
        (proof, seed)
        for seed in range(1, max(proof.pieces for proof in chosen) + 1)
        for proof in chosen
        if seed <= proof.pieces and (proof.name, seed) not in done
    ]
    for proof, seed in within(options.minutes, [] if options.report else todo):
        results.add(_run(proof, seed, results.read()))
    return _report(results.read())


def _run(proof: Proof, seed: int, earlier: list[dict[str, Any]]) -> dict[str, Any]:
    command, begun = proof.command.format(seed=seed), time.monotonic()
    date = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}"
    ended = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True)
    output = ended.stdout.replace(str(ROOT), ".")
    return {
        "date": date,
        "proof": proof.name,
        "trials": _trials(proof, output, earlier),
        # That something was found. A person replaces it by the number, and writes a note.
        "found": int(ended.returncode != 0),
        "command": command,
        "seed": seed,
        "minutes": round((time.monotonic() - begun) / 60, 1),
        **({"output": _last_lines(output)} if ended.returncode else {}),
    }


def _trials(proof: Proof, output: str, earlier: list[dict[str, Any]]) -> int:
    if isinstance(proof.trials, int):
        return proof.trials
    trials = sum(map(int, re.findall(proof.trials, output)))
    if proof.is_cumulative:
        trials -= sum(it["trials"] for it in earlier if it["proof"] == proof.name)
    return trials


def _last_lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if any(map(str.isalpha, line))][-3:]


def _report(results: list[dict[str, Any]]) -> int:
    table = Table("proof", "pieces", "trials", "found", "minutes", title=engine_version())
    for proof in PROOFS:
        pieces = [result for result in results if result["proof"] == proof.name]
        trials, found, minutes = (
            sum(piece.get(count, 0) for piece in pieces) for count in ("trials", "found", "minutes")
        )
        done = f"{len(pieces)}/{proof.pieces}"
        table.add_row(proof.name, done, f"{trials:,}", str(found), f"{minutes:g}")
    Console().print(table)
    return int(any(result["found"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
