"""What a person, and a program, are told of an error: one line, never a traceback."""

from __future__ import annotations

import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestion.cli.exit_codes import WRONG
from ingestion.cli.output import note
from ingestion.errors import IngestionError


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An error, put into words.

    Attributes:
        stream: The stream it befell, where there is one.
        type: Name of its class.
        message: What went wrong, and what to do next.
        remedy: The command or the edit that resolves it, where a person has to decide.
        exit_code: What the command exits with.
    """

    stream: str | None
    type: str
    message: str
    remedy: str | None
    exit_code: int

    @classmethod
    def of(cls, error: Exception, *, stream: str | None = None, debug: bool = False) -> Failure:
        """Describe an error; keep the traceback of one that nobody raised on purpose."""
        if isinstance(error, IngestionError):
            message, exit_code = str(error), error.exit_code
        else:
            message, exit_code = _unexpected(error, debug=debug), WRONG
        return cls(
            stream=stream or getattr(error, "stream", None),
            type=type(error).__name__,
            message=message,
            remedy=getattr(error, "remedy", None),
            exit_code=exit_code,
        )

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "stream": self.stream,
            "error": {
                "type": self.type,
                "message": self.message,
                "remedy": self.remedy,
                "exit_code": self.exit_code,
            },
        }

    def print(self) -> None:
        """Print it in red, on stderr."""
        note(self.message, "bold red")


def _unexpected(error: Exception, *, debug: bool) -> str:
    lines = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    trace = "".join(traceback.format_exception(error))
    if debug:
        note(trace)
        return f"unexpected {said}"
    return f"unexpected {said} (traceback: {_keep(trace)}; or run with `oncelake --debug …`)"


def _keep(trace: str) -> Path:
    with tempfile.NamedTemporaryFile(
        "w", prefix="oncelake-", suffix=".traceback", delete=False, encoding="utf-8"
    ) as file:
        file.write(trace)
    return Path(file.name)
