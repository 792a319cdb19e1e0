"""What became of one expectation, in numbers and a few words: never a copy of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ingestion.declaration.parts import Expectation

EXAMPLES: Final = 3
_LONGEST: Final = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one expectation.

    Attributes:
        type: Its name in Great Expectations.
        severity: As declared.
        on: Its arguments, as declared.
        success: Whether the rows meet it; never true when ``error`` is set.
        unexpected: How many rows do not meet it.
        percent: The same, in percent of the rows that have a value.
        examples: A few values that do not meet it, shortened.
        error: Why it could not be evaluated.
    """

    type: str
    severity: str
    on: str
    success: bool
    unexpected: int = 0
    percent: float = 0.0
    examples: str = ""
    error: str = ""

    def __str__(self) -> str:
        """Say what is wrong, in one line."""
        if self.error:
            return f"{self.type}: {self.error}"
        some = f": {self.unexpected:,} unexpected ({self.percent:.2f} %)" if self.unexpected else ""
        return f"{self.type}({self.on}) is not met{some}"

    def as_row(self) -> dict[str, str | int | float | bool]:
        """Return the row that the UI shows."""
        return {
            "expectation": self.type,
            "on": self.on,
            "severity": self.severity,
            "success": self.success,
            "unexpected": self.unexpected,
            "percent": self.percent,
            "examples": self.examples,
            "error": self.error,
        }


def outcome_of(
    declared: Expectation, *, success: bool, result: Mapping[str, Any], raised: str
) -> Outcome:
    """Read one result of Great Expectations; where it raised, nothing is known of the rows."""
    if raised:
        return not_evaluated(declared, raised)
    examples = [_shortened(each) for each in result.get("partial_unexpected_list") or ()]
    return Outcome(
        type=declared.type,
        severity=declared.severity,
        on=_arguments(declared),
        success=success,
        unexpected=int(result.get("unexpected_count") or 0),
        percent=float(result.get("unexpected_percent") or 0.0),
        examples=", ".join(dict.fromkeys(examples[:EXAMPLES])),
    )


def not_evaluated(declared: Expectation, error: str) -> Outcome:
    """Return the outcome of an expectation of which nothing is known."""
    return Outcome(
        type=declared.type,
        severity=declared.severity,
        on=_arguments(declared),
        success=False,
        error=error,
    )


def _arguments(declared: Expectation) -> str:
    return ", ".join(f"{name}={_shortened(value)}" for name, value in declared.arguments.items())


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
