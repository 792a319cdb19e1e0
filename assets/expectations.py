"""Declared expectations, evaluated by Great Expectations on the rows that a run wrote.

Its defaults are cured here: it would cache frames for good, collect every failing key, call a
missing column a failure like any other, and send analytics. Importing it takes seconds, so that
happens only when there is something to evaluate.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ingestion.spec_parts import Expectation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXAMPLES: Final = 3
_LONGEST_EXAMPLE: Final = 40
_RESULT_FORMAT: Final = {"result_format": "SUMMARY", "partial_unexpected_count": _EXAMPLES}


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


def evaluate(
    declared: Sequence[Expectation], rows: DataFrame, *, declared_in: str
) -> tuple[Outcome, ...]:
    """Evaluate expectations on rows, each into an outcome of its own.

    Args:
        declared: The expectations of a stream.
        rows: The rows to judge; read several times, so they are held meanwhile.
        declared_in: The stream's file, for the message about one that does not exist.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    held = rows.persist()
    try:
        batch = _batch(held)
        return tuple(
            _outcome(batch, each, f"{declared_in}: expectations[{place}]")
            for place, each in enumerate(declared)
        )
    finally:
        held.unpersist()


def _batch(rows: DataFrame) -> Any:
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_spark("rows", persist=False)
    asset = source.add_dataframe_asset("written")
    whole = asset.add_batch_definition_whole_dataframe("by this run")
    return whole.get_batch(batch_parameters={"dataframe": rows})


def _outcome(batch: Any, declared: Expectation, place: str) -> Outcome:
    try:
        result = batch.validate(_built(declared), result_format=_RESULT_FORMAT)
    except Exception as error:  # noqa: BLE001 (the rows are committed: this must be told, not thrown)
        return _failed(declared, f"{place}: {_first_line(error)}")
    raised = _raised(result.exception_info)
    if raised:
        return _failed(declared, f"{place}: {raised}")
    return outcome_of(declared, bool(result.success), result.result or {})
