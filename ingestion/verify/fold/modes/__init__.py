"""What records do to rows, in plain Python: one file a write mode, one row here.

A mode without a row here cannot be proven; ``verify`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, cast

from ingestion.declaration.spec import StreamSpec
from ingestion.verify.coverage import Coverage
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.fold.classify import Classifier
from ingestion.verify.fold.recount import Recount
from ingestion.verify.read.record import Place, Row, RowChange, text_of
from ingestion.verify.read.spill import SpillStore, SpillTable

_MODES: Final[Mapping[str, str]] = {
    "upsert": "ingestion.verify.fold.modes.upsert",
    "soft_upsert": "ingestion.verify.fold.modes.soft_upsert",
    "partial_upsert": "ingestion.verify.fold.modes.partial_upsert",
    "append": "ingestion.verify.fold.modes.append",
    "insert_only": "ingestion.verify.fold.modes.insert_only",
    "scd2": "ingestion.verify.fold.modes.scd2",
    "aggregate": "ingestion.verify.fold.modes.aggregate",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldContext:
    """What a rule works with: the declaration, and where its state is kept."""

    spec: StreamSpec
    classifier: Classifier
    store: SpillStore
    coverage: Coverage


class Rule:
    """From the good records of one batch after the other to the rows that must be there.

    Attributes:
        columns: The columns to compare, but for the system's.
    """

    columns: tuple[str, ...]

    def __init__(self, context: FoldContext) -> None:
        """Begin with an empty table."""
        self.columns = tuple(column.name for column in context.spec.columns)
        self._classifier, self._coverage = context.classifier, context.coverage

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Take some of a batch's good records."""
        raise NotImplementedError

    def settle(self, recount: Recount) -> None:
        """End the batch: give each record that has none yet a disposition."""

    def rows(self) -> SpillTable[RowChange]:
        """Return what must be in the table, by ``key_of`` of the rows; gone rows are known too.

        Raises:
            UnprovableError: it cannot be told.
        """
        raise NotImplementedError

    def key_of(self, row: Row) -> str:
        """Return what tells a row of the table apart: its place, unless a mode has keys."""
        return text_of(self.place_of(row))

    def place_of(self, row: Row) -> Place:
        """Return the place of the record that a row tells of."""
        return self._classifier.place_of(row)

    def outranks(self, one: Place, other: Place) -> bool:
        """Tell whether a record at ``one``, if there is any, would have won over ``other``."""
        return False

    def limits(self) -> Sequence[str]:
        """Say what is not proven of a row that is equal."""
        return ()

    @property
    def _is_partial(self) -> bool:
        return self._coverage.is_partial or self._coverage.epoch > 1


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
    return cast("Rule", import_module(_MODES[mode]).RULE(context))
