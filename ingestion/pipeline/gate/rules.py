"""The rules of ``expect`` on the rows that a batch would write, whichever engine decided them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import duckdb
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import Engine, OverflowedError
from oncelake.ingestion.pipeline.schema.types import frame_of, judged_columns
from oncelake.ingestion.pipeline.statements.translate import translate_conditions

if TYPE_CHECKING:
    from oncelake.ingestion.modes.engines.local import LocalEngine
    from oncelake.ingestion.modes.engines.spark import SparkEngine

_EXAMPLES: Final = 5


class Missed(NamedTuple):
    """The rows that do not meet a rule: how many, and a few of them."""

    rows: int
    examples: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRules:
    """The rules that are judged on decided rows, all but those that quarantine.

    Attributes:
        spark: Evaluates what DuckDB cannot.
        rules: The conditions, in Spark SQL, by the names of the rules.
        in_duckdb: The same for DuckDB, over ``value``; ``None`` where Spark alone understands one.
        is_local: Whether the engine is of this process.
    """

    spark: SparkSession
    rules: Mapping[str, str]
    in_duckdb: Mapping[str, str] | None
    is_local: bool

    @classmethod
    def of(cls, spec: StreamSpec, spark: SparkSession, *, is_local: bool) -> RowRules:
        """Translate the rules of a stream, once a run."""
        rules = {n: each.rule for n, each in spec.expect.items() if each.on_miss != "quarantine"}
        translated = None
        if rules and is_local:
            translated = translate_conditions(spark, judged_columns(spec), rules.values())
        in_duckdb = None
        if translated is not None:
            in_duckdb = dict(zip(rules, (each.sql for each in translated), strict=True))
        return cls(spark=spark, rules=rules, in_duckdb=in_duckdb, is_local=is_local)

    def judge(self, engine: Engine, written: Sequence[str]) -> dict[str, Missed]:
        """Return the misses of each rule that has any.

        Args:
            engine: Holds the table ``decided``.
            written: The dispositions of the rows that are written.
        """
        if not self.rules:
            return {}
        if self.is_local and self.in_duckdb is not None:
            try:
                return self._judge_here(engine, self.in_duckdb, written)
            except (duckdb.Error, OverflowedError):
                pass  # Spark says what it is.
        return self._judge_in_spark(
            rows_in_spark(engine, self.spark, written, is_local=self.is_local)
        )

    def _judge_here(
        self, engine: Engine, rules: Mapping[str, str], written: Sequence[str]
    ) -> dict[str, Missed]:
        rows = f"FROM decided value WHERE {_is_written(written)}"
        misses = {name: f"NOT coalesce({each}, FALSE)" for name, each in rules.items()}
        counted = (f"count(*) FILTER ({miss}) AS n{n}" for n, miss in enumerate(misses.values()))
        counts = ", ".join(counted)
        (found,) = engine.rows(f"SELECT {counts} {rows}")
        return {
            name: Missed(
                count, engine.rows(f"SELECT * {rows} AND {misses[name]} LIMIT {_EXAMPLES}")
            )
            for name, count in zip(misses, found.values(), strict=True)
            if count
        }

    def _judge_in_spark(self, rows: DataFrame) -> dict[str, Missed]:
        misses = {name: _misses(each) for name, each in self.rules.items()}
        counts = [F.count_if(miss).alias(f"n{nth}") for nth, miss in enumerate(misses.values())]
        (found,) = rows.agg(*counts).collect()
        return {
            name: Missed(
                count, [each.asDict() for each in rows.where(misses[name]).head(_EXAMPLES)]
            )
            for name, count in zip(misses, found, strict=True)
            if count
        }


def rows_in_spark(
    engine: Engine, spark: SparkSession, written: Sequence[str], *, is_local: bool
) -> DataFrame:
    """Return the rows that a batch would write as a frame, with their dispositions."""
    if not is_local:
        of_spark = cast("SparkEngine", engine)
        return of_spark.frame("decided").where(F.col("_what").isin(*written))
    local = cast("LocalEngine", engine)
    return frame_of(spark, local.arrow(f"SELECT * FROM decided WHERE {_is_written(written)}"))


def _is_written(written: Sequence[str]) -> str:
    return f"_what IN ({', '.join(map(sql.text, written))})"


def _misses(rule: str) -> Column:
    return ~F.coalesce(F.expr(rule), F.lit(False))
