"""What came of trials, as JSON lines, so that a harness may be stopped, and goes on where it was.

Each trial is appended as soon as it is over, and counted as it stands. A trial of another engine,
that is of other source text, is not counted.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.support.world import ROOT

# Where a harness leaves its results, unless it is told otherwise.
PROOFS: Final = ROOT / ".proofs"
# What no run executes.
_BESIDE: Final = {"local", "console", "proof", "verify", "doctor"}


@dataclass(frozen=True, kw_only=True)
class Results:
    """Results in a file.

    Attributes:
        shared: Fields that each of them has, by which it is told from others in the file.
    """

    file: Path
    shared: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> list[dict[str, Any]]:
        """Return those that are there."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        results = map(json.loads, lines)
        return [result for result in results if self.shared.items() <= result.items()]

    def add(self, result: Mapping[str, Any]) -> None:
        """Append one."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps({**self.shared, **result}) + "\n")


def results_of_engine(file: Path, **shared: Any) -> Results:
    """Return the results in a file that are of the engine as it is now."""
    return Results(file=file, shared={"engine": engine_version(), **shared})


def engine_version() -> str:
    """Return a short name for the engine's source text as it is now."""
    files = sorted((ROOT / "ingestion").rglob("*.py"))
    return digest_of(
        path.read_bytes() for path in files if not _BESIDE & {path.stem, path.parent.name}
    )


def digest_of(texts: Iterable[bytes]) -> str:
    """Return a short name for some texts."""
    total = hashlib.sha256()
    for text in texts:
        total.update(text)
    return total.hexdigest()[:12]


def print_counts(
    title: str, counts: Mapping[str, Counter[str]], columns: Iterable[str] | None = None
) -> None:
    """Print a table of counts, with a row for each name."""
    counted = dict.fromkeys(name for row in counts.values() for name in row)
    names = list(counted if columns is None else columns)
    table = Table("", *names, title=title)
    for name, row in counts.items():
        table.add_row(name, *(str(row[column]) for column in names))
    Console(width=140).print(table)


def print_evidence(results: Iterable[Mapping[str, Any]], *names: str) -> int:
    """Print what is wrong with each, by the fields that identify it; return 1 when anything is."""
    wrong = [result for result in results if result["evidence"]]
    print(f"{len(wrong)} trials with evidence against the guarantee")
    for result in wrong:
        print(*(result[name] for name in names), result["evidence"])
    return int(bool(wrong))
