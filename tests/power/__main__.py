"""Cut the power of a disk to which batches of literal rows are written, and say what came of it.

python -m tests.power [--cuts 1000] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import track

from tests.power.batches import Subject, cut_while_writing
from tests.power.disk import mounted_disk

# Then another disk, with other tables: each batch makes the log longer.
_CUTS_OF_A_DISK = 25


def main() -> int:
    """Cut the power so many times; 1 at the first evidence against us."""
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    console, batches, undone = Console(), 0, 0
    lives = [
        range(at, min(at + _CUTS_OF_A_DISK, asked.cuts))
        for at in range(0, asked.cuts, _CUTS_OF_A_DISK)
    ]
    for cuts in track(lives, console=Console(stderr=True)):
        with tempfile.TemporaryDirectory() as folder, mounted_disk(Path(folder) / "disk") as disk:
            subject = Subject(disk)
            for cut in cuts:
                dice = random.Random(f"{asked.seed} {cut}")
                if problems := cut_while_writing(subject, dice):
                    console.print(f"seed {asked.seed}, cut {cut}:", *problems, sep="\n  ")
                    return 1
            batches, undone = batches + len(subject.acknowledged), undone + subject.undone
    console.print(f"{asked.cuts} power cuts, {batches} batches acknowledged and none lost")
    console.print(f"{undone} half-written commits undone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
