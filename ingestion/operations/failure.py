"""An error as people and programs are told of it: one line, never a traceback."""

from __future__ import annotations

import re
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oncelake.ingestion.errors import WRONG, IngestionError

# Of kinds whose name says too little; the others' names are words already.
_WORDS: Final = {
    "InvalidSpecError": "declaration is wrong",
    "BadFieldError": "declaration is wrong",
    "DependencyError": "Kafka does not answer",
    "KafkaSettingsError": "Kafka settings are wrong",
    "SinkUnavailableError": "sink does not answer",
    "StorageError": "volume fails",
    "OffsetsUnknownError": "offsets lost",
    "IdentityChangedError": "keys or order changed",
    "UnfitStorageError": "file system unfit",
    "SideTableIncompleteError": "side table incomplete",
    "UnbalancedBatchError": "books do not balance",
    "StreamLockedError": "running",
}
_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An error, put into words.

    Attributes:
        remedy: The command or the edit that resolves it, where a person has to decide.
        traceback: The traceback of an unexpected error, where it was asked for.
    """

    stream: str | None
    type: str
    message: str
    remedy: str | None
    exit_code: int
    traceback: str = ""

    @property
    def words(self) -> str:
        """The problem, in two or three words."""
        known = _WORDS.get(self.type)
        return known or _CAPITAL.sub(" ", self.type.removesuffix("Error")).lower()

    @classmethod
    def of(cls, error: Exception, *, stream: str | None = None, debug: bool = False) -> Failure:
        """Describe an error of a stream, by default of the one that it names.

        One that nobody raised on purpose keeps its traceback: here to debug, else in a file.
        """
        error = _translated(error, stream)
        message, exit_code, trace = str(error), WRONG, ""
        if isinstance(error, IngestionError):
            exit_code = error.exit_code
        else:
            trace = "".join(traceback.format_exception(error))
            first_line = (message.strip().splitlines() or [""])[0]
            message = f"unexpected {type(error).__name__}" + (first_line and f": {first_line}")
            if not debug:
                path, trace = _write_to_file(trace), ""
                message += f" (traceback: {path}; or run with `oncelake --debug …`)"
        return cls(
            stream=stream or getattr(error, "stream", None),
            type=type(error).__name__,
            message=message,
            remedy=getattr(error, "remedy", None),
            exit_code=exit_code,
            traceback=trace,
        )

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        names = ("type", "message", "remedy", "exit_code")
        return {"stream": self.stream, "error": {name: getattr(self, name) for name in names}}


def _translated(error: Exception, stream: str | None) -> Exception:
    """Translate what a store, or a file, refuses: a command that only looks meets it anywhere."""
    if isinstance(error, IngestionError):
        return error
    from oncelake.ingestion.storage.volumes import failure_of_access

    return failure_of_access(error, stream) or error


def _write_to_file(trace: str) -> Path:
    with tempfile.NamedTemporaryFile(
        "w", prefix="oncelake-", suffix=".traceback", delete=False, encoding="utf-8"
    ) as file:
        file.write(trace)
    return Path(file.name)
