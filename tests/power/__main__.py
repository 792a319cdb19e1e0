"""Cut the power of a disk to which batches of literal rows are written, and say what came of it.

python -m tests.power [--cuts 1000] [--seed 1] [--minutes M] [--results FILE] [--report]
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from tests.power.batches import Subject, cut_while_writing
from tests.trials.main import parser_of, within
from tests.trials.power import mounted_disk
from tests.trials.record import PROOFS, print_evidence, results_of_engine

# Then another disk, with other tables: each batch makes the log longer.
_CUTS_OF_A_DISK = 25


def main() -> int:
    """Cut the power so many times; 1 when there is evidence against us."""
    file = PROOFS / "power-batches.jsonl"
    options = parser_of("tests.power", __doc__, results=file, cuts=1000).parse_args()
    results = results_of_engine(options.results, seed=options.seed)
    done = {(each["first"], each["cuts"]) for each in results.read()}
    starts = range(0, options.cuts, _CUTS_OF_A_DISK)
    disks = [range(first, min(first + _CUTS_OF_A_DISK, options.cuts)) for first in starts]
    todo = [cuts for cuts in disks if (cuts.start, len(cuts)) not in done and not options.report]
    for cuts in within(options.minutes, track(todo, console=Console(stderr=True))):
        results.add(_cut(options.seed, cuts))
    recorded = results.read()
    cuts, batches, undone = (
        sum(each[k] for each in recorded) for k in ("cuts", "batches", "undone")
    )
    print(f"{cuts} power cuts, {batches} batches acknowledged")
    print(f"{undone} half-written commits undone")
    return print_evidence(recorded, "seed", "first")


def _cut(seed: int, cuts: range) -> dict[str, Any]:
    """Cut the power of one disk again and again, until something is wrong with it."""
    with tempfile.TemporaryDirectory() as folder, mounted_disk(Path(folder) / "disk") as disk:
        subject = Subject(disk)
        for cut in cuts:
            problems = cut_while_writing(subject, random.Random(f"{seed} {cut}"))
            if problems:
                break
    return {
        "first": cuts.start,
        "cuts": len(cuts),
        "batches": len(subject.acknowledged),
        "undone": subject.undone,
        "evidence": [f"cut {cut}: {problem}" for problem in problems],
    }


if __name__ == "__main__":
    sys.exit(main())
