"""The list of planted bugs, read and checked: an edit that no longer fits is an error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

MODEL = "tests/model/test_model.py::test_seeded_schedules_hold"
_HERE = Path(__file__).parent


class UnfitMutantError(ValueError):
    """A planted bug whose text is not in the code exactly once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """One replacement of text.

    Attributes:
        file: Path within the project.
        old: Text that is there exactly once.
        new: What it becomes.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One planted bug.

    Attributes:
        name: Names it in the report.
        kind: Class of planted bug, 1 to 10.
        edits: What is wrong.
        why: What it would do.
        tests: What must notice, files, or single tests.
    """

    name: str
    kind: int
    edits: tuple[Edit, ...]
    why: str
    tests: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Identify the planted bug by all that it says."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


def load(path: Path = _HERE / "mutants.yaml") -> tuple[Mutant, ...]:
    """Read the list."""
    return tuple(map(_mutant, YAML(typ="safe").load(path.read_text())))


def _mutant(raw: Mapping[str, Any]) -> Mutant:
    return Mutant(
        name=raw["name"],
        kind=raw["class"],
        edits=tuple(Edit(**edit) for edit in raw["edits"]),
        why=raw["why"],
        tests=tuple(MODEL if test == "model" else test for test in raw["tests"]),
    )


def mutated(mutant: Mutant, root: Path) -> dict[str, str]:
    """Return the text of each file that the planted bug is in.

    Raises:
        UnfitMutantError: a text is not there, or more than once.
    """
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        text = texts.get(edit.file, (root / edit.file).read_text("utf-8"))
        times = text.count(edit.old)
        if times != 1:
            raise UnfitMutantError(f"{mutant.name}: {times} times in {edit.file}: {edit.old!r}")
        texts[edit.file] = text.replace(edit.old, edit.new)
    return texts
