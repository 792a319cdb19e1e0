"""What records do to rows, in plain Python: one rule a write mode, one row here.

A mode without a row here cannot be proven; ``verify`` says so.
"""

from __future__ import annotations

from typing import Final

from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.fold.modes.aggregate import AggregateRule
from ingestion.verify.fold.modes.rule import AppendRule, FoldContext, Rule
from ingestion.verify.fold.modes.scd2 import HistoryRule
from ingestion.verify.fold.modes.upsert import (
    InsertOnlyRule,
    PartialUpsertRule,
    SoftUpsertRule,
    UpsertRule,
)

_MODES: Final[dict[str, type[Rule]]] = {
    "upsert": UpsertRule,
    "soft_upsert": SoftUpsertRule,
    "partial_upsert": PartialUpsertRule,
    "append": AppendRule,
    "insert_only": InsertOnlyRule,
    "scd2": HistoryRule,
    "aggregate": AggregateRule,
}


def rule_of(context: FoldContext) -> Rule:
    """Return the rule of a stream's mode.

    Raises:
        UnprovableError: this proof knows nothing of the mode.
    """
    spec, mode = context.spec, context.spec.mode
    if mode not in _MODES:
        raise UnprovableError(f"{mode} is not provable")
    if mode == "upsert" and (spec.deletes == "soft" or spec.ignore_null_updates):
        mode = "soft_upsert" if spec.deletes == "soft" else "partial_upsert"
    return _MODES[mode](context)
