"""Declared expectations, evaluated by Great Expectations on rows: of a batch, or of a run.

Its defaults are cured here: it would cache frames for good, collect every failing key, call a
missing column a failure like any other, and send analytics. Importing it takes seconds, so that
happens only when there is something to evaluate.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from oncelake.ingestion.declaration.names import nearest
from oncelake.ingestion.declaration.parts import Expectation
from oncelake.ingestion.declaration.sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXAMPLES: Final = 3
_LONGEST: Final = 60
_RESULT_FORMAT: Final = {
    "result_format": "SUMMARY",
    "partial_unexpected_count": _EXAMPLES,
    "return_unexpected_index_query": True,
}
# What answers the query of an expectation, by the sink that keeps the rows.
ANSWERED_BY: Final = {
    "delta": "Spark",
    "iceberg": "Spark, where the table's catalog is set up",
    "postgres": "PostgreSQL",
}
# How Great Expectations writes the condition of rows that are not as expected, in Spark SQL.
_FILTER: Final = re.compile(r"df\.filter\(F\.expr\((.*)\)\)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectationOutcome:
    """The outcome of one expectation; the fields are the columns that the UI shows.

    Attributes:
        expectation: Its name in Great Expectations.
        on: Its arguments, as declared.
        severity: As declared.
        success: Whether the rows meet it; never true when ``error`` is set.
        unexpected: How many rows do not meet it.
        percent: The same, in percent of the rows that have a value.
        examples: A few values that do not meet it, shortened.
        query: The SQL that finds the rows which do not meet it, where single rows do not.
        error: Why it could not be evaluated.
    """

    expectation: str
    on: str
    severity: str
    success: bool
    unexpected: int = 0
    percent: float = 0.0
    examples: str = ""
    query: str = ""
    error: str = ""

    def __str__(self) -> str:
        """Say what is wrong, in one line."""
        if self.error:
            return f"{self.expectation}: {self.error}"
        some = f": {self.unexpected:,} unexpected ({self.percent:.2f} %)" if self.unexpected else ""
        return f"{self.expectation}({self.on}) is not met{some}"


def evaluate(
    declared: Sequence[Expectation], rows: DataFrame, *, declared_in: str, table: str
) -> tuple[ExpectationOutcome, ...]:
    """Evaluate expectations on rows, each into an outcome of its own.

    Args:
        declared: The expectations of a stream.
        rows: The rows to judge; read several times, so they are cached meanwhile.
        declared_in: The stream's file, for the message about one that does not exist.
        table: The table that has the rows, as Spark SQL names it.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    cached = rows.persist()
    try:
        return _evaluated(declared, cached, declared_in, table)
    except Exception as error:  # noqa: BLE001 (each caller tells of it as an outcome)
        failed = f"{declared_in}: nothing could be evaluated: {_first_line(error)}"
        return tuple(not_evaluated(each, failed) for each in declared)
    finally:
        cached.unpersist()


def outcome_of(
    declared: Expectation, *, success: bool, result: Mapping[str, Any], raised: str, table: str
) -> ExpectationOutcome:
    """Read one result of Great Expectations; where it raised, nothing is known of the rows."""
    if raised:
        return not_evaluated(declared, raised)
    examples = [_shortened(value) for value in result.get("partial_unexpected_list") or ()]
    return ExpectationOutcome(
        expectation=declared.type,
        on=_arguments(declared),
        severity=declared.severity,
        success=success,
        unexpected=int(result.get("unexpected_count") or 0),
        percent=float(result.get("unexpected_percent") or 0.0),
        examples=", ".join(dict.fromkeys(examples[:_EXAMPLES])),
        query="" if success else _query(declared, result, table),
    )


def query_for(sink: str, query: str) -> str:
    """Write a query of Spark SQL for what answers it; none where nothing does."""
    if sink != "postgres":
        return query if sink in ANSWERED_BY else ""
    from sqlglot import transpile

    return "; ".join(transpile(query, read="spark", write="postgres"))


def not_evaluated(declared: Expectation, error: str) -> ExpectationOutcome:
    """Return the outcome of an expectation of which nothing is known."""
    return ExpectationOutcome(
        expectation=declared.type,
        on=_arguments(declared),
        severity=declared.severity,
        success=False,
        error=error,
    )


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


def _evaluated(
    declared: Sequence[Expectation], rows: DataFrame, declared_in: str, table: str
) -> tuple[ExpectationOutcome, ...]:
    """Validate one suite of all that can be built: each by itself would take twice the time."""
    gx = great_expectations()
    batch = _batch(gx, rows)
    outcomes, built = {}, []
    for index, expectation in enumerate(declared):
        try:
            built.append(_build(expectation, index))
        except ValueError as error:
            why = f"{declared_in}: expectations[{index}]: {error}"
            outcomes[index] = not_evaluated(expectation, why)
    suite = gx.ExpectationSuite(name=declared_in, expectations=built)
    for result in batch.validate(suite, result_format=_RESULT_FORMAT).results if built else ():
        index = result.expectation_config.meta["index"]
        outcomes[index] = outcome_of(
            declared[index],
            success=bool(result.success),
            result=result.result or {},
            raised=_raised(result.exception_info),
            table=table,
        )
    return tuple(outcomes[index] for index in sorted(outcomes))


def _batch(gx: Any, rows: DataFrame) -> Any:
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_spark("rows", persist=False)
    whole = source.add_dataframe_asset("written").add_batch_definition_whole_dataframe("by a run")
    return whole.get_batch(batch_parameters={"dataframe": rows})


def _build(declared: Expectation, index: int) -> Any:
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
        return build(**declared.arguments, meta={"index": index})
    except ValueError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
        raise ValueError(f"{declared.type}: {' '.join(lines)}") from error


def _query(declared: Expectation, result: Mapping[str, Any], table: str) -> str:
    found = _FILTER.fullmatch(result.get("unexpected_index_query") or "")
    if found is None:
        return ""
    if declared.type.endswith("_to_be_unique"):
        named = declared.arguments
        columns = ", ".join(map(quoted, named.get("column_list") or [named["column"]]))
        return f"SELECT {columns}, count(*) FROM {table} GROUP BY {columns} HAVING count(*) > 1"
    return f"SELECT * FROM {table} WHERE {ast.literal_eval(found[1])}"


def _raised(exception_info: Mapping[str, Any] | None) -> str:
    """Return what was raised while evaluating; it comes bare, or by the metric that raised it."""
    info = exception_info or {}
    infos = [info] if "raised_exception" in info else info.values()
    messages = (str(it["exception_message"]) for it in infos if it.get("raised_exception"))
    return "; ".join(dict.fromkeys(text.splitlines()[0] for text in messages if text))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"


def _arguments(declared: Expectation) -> str:
    return ", ".join(f"{name}={_shortened(value)}" for name, value in declared.arguments.items())


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
