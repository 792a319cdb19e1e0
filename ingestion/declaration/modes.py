"""How records become rows: one file a write mode, and one row here.

A mode is a module with a sink class (see ``ingestion.sinks.sink``); it is named here and
imported when a run needs it, so that loading a declaration imports no Spark. What a declaration
must and may say in a mode, and which columns its table has, stands in its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ingestion.declaration import aggregates, mode_rules
from ingestion.declaration.rules import RuleViolation

if TYPE_CHECKING:
    from ingestion.declaration.spec import StreamSpec


def _as_declared(spec: StreamSpec) -> str:
    return spec.ddl


def _as_upserted(spec: StreamSpec) -> str:
    """Of a deleted row that stays, only the keys are known for sure."""
    if spec.deletes == "hard":
        return spec.ddl
    told = (
        replace(column, nullable=column.nullable or column.name not in spec.keys)
        for column in spec.columns
    )
    return ", ".join(column.as_ddl() for column in told)


def _variant(spec: StreamSpec) -> str:
    soft = "with soft deletes" if spec.deletes == "soft" else ""
    return soft or ("of partial updates" if spec.ignore_null_updates else "")


def _of_partial_updates(spec: StreamSpec) -> Iterator[RuleViolation]:
    if spec.ignore_null_updates and spec.sequence_by:
        yield RuleViolation(
            ("ignore_null_updates",),
            "a record that comes late would need an order of its own for every column; remove "
            "`sequence_by`, so that offsets order the records of a key, or send whole rows",
        )
    if spec.ignore_null_updates and spec.deletes == "soft":
        yield RuleViolation(
            ("ignore_null_updates",),
            "a row that stays when it is deleted has nothing to keep; write `deletes: hard`",
        )


def _nothing(spec: StreamSpec) -> Iterator[RuleViolation]:
    yield from ()


def _no_more(spec: StreamSpec) -> str:
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """One write mode.

    Attributes:
        module: Where its sink is.
        soft_module: Where it is when deletes only mark their rows.
        partial_module: Where it is when nulls leave columns alone.
        has_keys: Whether ``keys`` identify its rows; else a record's place in Kafka does.
        has_order: Whether ``sequence_by`` means anything in it.
        has_deletes: Whether a record can say that a row should be gone.
        fields: Fields of a declaration that only some modes have.
        columns: Gives the table's columns but for the system's, as DDL, of a declaration.
        rule: Gives what else in a declaration decides what the rows are, as text; a table that
            was written under another rule is not written on.
        problems: Finds what in a declaration contradicts the mode, beside what its row says.
    """

    module: str
    soft_module: str = ""
    partial_module: str = ""
    has_keys: bool = True
    has_order: bool = True
    has_deletes: bool = True
    fields: tuple[str, ...] = ()
    columns: Callable[[StreamSpec], str] = _as_declared
    rule: Callable[[StreamSpec], str] = _no_more
    problems: Callable[[StreamSpec], Iterator[RuleViolation]] = _nothing


MODES: Final[dict[str, Mode]] = {
    "upsert": Mode(
        module="ingestion.sinks.upsert",
        soft_module="ingestion.sinks.soft_upsert",
        partial_module="ingestion.sinks.partial_upsert",
        fields=("deletes", "ignore_null_updates"),
        columns=_as_upserted,
        rule=_variant,
        problems=_of_partial_updates,
    ),
    "append": Mode(
        module="ingestion.sinks.append", has_keys=False, has_order=False, has_deletes=False
    ),
    "insert_only": Mode(module="ingestion.sinks.insert_only", has_deletes=False),
    "scd2": Mode(
        module="ingestion.sinks.scd2",
        columns=mode_rules.history_columns,
        problems=mode_rules.history_violations,
    ),
    "aggregate": Mode(
        module="ingestion.sinks.aggregate",
        has_deletes=False,
        fields=("aggregates", "window"),
        columns=aggregates.aggregate_columns,
        rule=aggregates.rule,
        problems=mode_rules.aggregate_violations,
    ),
}
