"""One thing that is wrong, what shows it, and the command to run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that a person should know.

    Attributes:
        about: The stream it befell, or the part of the installation.
        what: What is wrong, in one sentence.
        evidence: What shows it: ids, processes, times.
        command: What to run next.
        exit_code: Code it ends the command with; 0 for a note, which is nobody's fault.
    """

    about: str
    what: str
    evidence: str
    command: str
    exit_code: int = 1

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)
