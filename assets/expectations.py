"""Declared expectations, evaluated by Great Expectations on the rows that a run wrote.

Its defaults are cured here: it would cache frames for good, collect every failing key, call a
missing column a failure like any other, and send analytics. Importing it takes seconds, so that
happens only when there is something to evaluate.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from assets.refusals import EXAMPLES, ExpectationOutcome, not_evaluated, outcome_of
from ingestion.declaration.names import nearest
from ingestion.declaration.parts import Expectation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RESULT_FORMAT: Final = {"result_format": "SUMMARY", "partial_unexpected_count": EXAMPLES}


def evaluate(
    declared: Sequence[Expectation], rows: DataFrame, *, declared_in: str
) -> tuple[ExpectationOutcome, ...]:
    """Evaluate expectations on rows, each into an outcome of its own.

    Args:
        declared: The expectations of a stream.
        rows: The rows to judge; read several times, so they are held meanwhile.
        declared_in: The stream's file, for the message about one that does not exist.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    held = rows.persist()
    try:
        return _evaluated(declared, held, declared_in)
    except Exception as error:  # noqa: BLE001 (the rows are committed: it is told, and not thrown)
        failed = f"{declared_in}: nothing could be evaluated: {_first_line(error)}"
        return tuple(not_evaluated(each, failed) for each in declared)
    finally:
        held.unpersist()


def _evaluated(
    declared: Sequence[Expectation], rows: DataFrame, declared_in: str
) -> tuple[ExpectationOutcome, ...]:
    """Validate one suite of all that can be built: each by itself would take twice the time."""
    gx = great_expectations()
    batch = _batch(gx, rows)
    outcomes, built = {}, []
    for place, each in enumerate(declared):
        try:
            built.append(_built(each, place))
        except ValueError as error:
            said = f"{declared_in}: expectations[{place}]: {error}"
            outcomes[place] = not_evaluated(each, said)
    suite = gx.ExpectationSuite(name=declared_in, expectations=built)
    for result in batch.validate(suite, result_format=_RESULT_FORMAT).results if built else ():
        place = result.expectation_config.meta["place"]
        outcomes[place] = outcome_of(
            declared[place],
            success=bool(result.success),
            result=result.result or {},
            raised=_raised(result.exception_info),
        )
    return tuple(outcomes[place] for place in sorted(outcomes))


def great_expectations() -> ModuleType:
    """Import Great Expectations, which imports Spark Connect.

    That takes a main module without a file, as every run has that Dagster's daemon launches, for
    a doctest, and ends the process with exit code 0.
    """
    main = vars(sys.modules["__main__"])
    has_file = "__file__" in main
    main.setdefault("__file__", "")
    try:
        return import_module("great_expectations")
    finally:
        if not has_file:
            del main["__file__"]


def _batch(gx: Any, rows: DataFrame) -> Any:
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_spark("rows", persist=False)
    whole = source.add_dataframe_asset("written").add_batch_definition_whole_dataframe("by a run")
    return whole.get_batch(batch_parameters={"dataframe": rows})


def _built(declared: Expectation, place: int) -> Any:
    """Build the expectation.

    Raises:
        ValueError: there is none of that name, or it takes other arguments; names the nearest.
    """
    from great_expectations.expectations import registry

    known = registry.list_registered_expectation_implementations()
    if declared.type not in known:
        near = nearest(declared.type, known)
        hint = f"; did you mean `{near}`?" if near else ""
        raise ValueError(f"Great Expectations has no {declared.type!r}{hint}")
    build: Any = registry.get_expectation_impl(declared.type)
    try:
        return build(**declared.arguments, meta={"place": place})
    except ValueError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
        raise ValueError(f"{declared.type}: {' '.join(lines)}") from error


def _raised(exception_info: Mapping[str, Any] | None) -> str:
    """Return what was raised while evaluating; it comes bare, or by the metric that raised it."""
    found = exception_info or {}
    each = [found] if "raised_exception" in found else found.values()
    said = (str(one["exception_message"]) for one in each if one.get("raised_exception"))
    return "; ".join(dict.fromkeys(text.splitlines()[0] for text in said if text))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
