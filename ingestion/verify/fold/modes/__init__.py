"""What records do to rows, in plain Python: one file a write mode, one row here.

A mode without a row here cannot be proven; ``verify`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

from ingestion.declaration.spec import StreamSpec
from ingestion.verify.coverage import Coverage
from ingestion.verify.decode.coerce import UnprovableError
from ingestion.verify.fold.classify import Classifier
from ingestion.verify.fold.recount import Recount
from ingestion.verify.read.record import Place, Row, RowChange
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
class Means:
    """What a rule works with.

    Attributes:
        spec: The declared stream.
        judge: Judged its records.
        memory: Where to remember.
        horizon: What can be seen.
    """

    spec: StreamSpec
    judge: Classifier
    memory: SpillStore
    horizon: Coverage


class Rule(Protocol):
    """From the good records of one batch after the other to the rows that must be there.

    Attributes:
        columns: The columns to compare, but for the system's.
    """

    columns: tuple[str, ...]

    def __init__(self, means: Means) -> None:
        """Begin with an empty table."""

    def take(self, changes: Sequence[RowChange], recount: Recount) -> None:
        """Take some of a batch's good records."""

    def settle(self, recount: Recount) -> None:
        """End the batch: give each of its records a disposition."""

    def rows(self) -> SpillTable[RowChange]:
        """Return what must be in the table, by ``key_of`` of the rows; gone rows are known too.

        Raises:
            UnprovableError: it cannot be told.
        """

    def key_of(self, row: Row) -> str:
        """Return what tells a row of the table apart."""

    def place_of(self, row: Row) -> Place:
        """Return the place of the record that a row tells of."""

    def outranks(self, one: Place, other: Place) -> bool:
        """Tell whether a record at ``one``, if there is any, would have won over ``other``."""

    def limits(self) -> Sequence[str]:
        """Say what is not proven of a row that is equal."""


def rule_of(means: Means) -> Rule:
    """Return the rule of a stream's mode.

    Raises:
        UnprovableError: this proof knows nothing of the mode.
    """
    mode = means.spec.mode
    if mode not in _MODES:
        raise UnprovableError(f"{mode} is not provable")
    if mode == "upsert" and (means.spec.deletes == "soft" or means.spec.ignore_null_updates):
        mode = "soft_upsert" if means.spec.deletes == "soft" else "partial_upsert"
    return cast("Rule", import_module(_MODES[mode]).RULE(means))
