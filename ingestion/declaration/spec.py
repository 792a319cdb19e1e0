"""What a person declares: one stream, a topic (or topics) into one table.

Everything that can be known to be wrong is refused here, when the file is loaded, and not in the
middle of a run. ``ingestion.declaration.loader`` reads the files; the JSON Schema comes from here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Final

from pydantic import model_validator

from ingestion.declaration.ddl import DeclaredColumn, parse_columns
from ingestion.declaration.fields import Declaration
from ingestion.declaration.modes import MODES, Mode
from ingestion.declaration.parts import TombstonePolicy
from ingestion.declaration.rules import RuleViolationsError, rule_violations

# A record's place in Kafka.
COORDINATES: Final = ("_topic", "_partition", "_offset")
EXTRA_COLUMN: Final = "_extra_fields"
DELETED_COLUMN: Final = "_deleted"
INDEX_COLUMN: Final = "_index"
_DEAD: Final = "Whether the newest record of the key is a delete"
_NTH: Final = "Which element of the record's array the row comes from, from 0"
_KEPT: Final = "Fields of the record that the schema does not name"


class StreamSpec(Declaration):
    """One declared stream: what was written, and what follows from it.

    Raises:
        pydantic.ValidationError: a field is missing, unknown or wrong, or two contradict.
    """

    @model_validator(mode="after")
    def _parts_agree(self) -> StreamSpec:
        if found := tuple(rule_violations(self)):
            raise RuleViolationsError(found)
        return self

    @cached_property
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """The declared columns, in order."""
        return parse_columns(self.ddl)

    @cached_property
    def value_columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns of a value as it is decoded, in order."""
        return parse_columns(self.value_ddl) if self.value_ddl else self.columns

    @cached_property
    def asked_columns(self) -> tuple[DeclaredColumn, ...]:
        """What ``where`` and ``select`` see: the value's columns, one an element where exploded."""
        return tuple(
            replace(column, type=column.type[len("ARRAY<") : -1], nullable=True)
            if column.name == self.explode
            else column
            for column in self.value_columns
        )

    @property
    def required_of_value(self) -> tuple[str, ...]:
        """Columns that `value_schema` says are never null, but for those of key and order."""
        if not self.value_ddl:
            return ()
        elsewhere = {*self.never_null, *self.sequence_by, self.explode}
        required = (column.name for column in self.value_columns if not column.nullable)
        return tuple(name for name in required if name not in elsewhere)

    @property
    def is_transformed(self) -> bool:
        """Tell whether anything stands between the value and the row."""
        return bool(self.where or self.select or self.transform or self.value_ddl)

    @property
    def table_ddl(self) -> str:
        """The table's columns but for the six of every table, as DDL."""
        ours = (f"{column.name} {column.type}" for column in self._our_columns)
        return ", ".join((self.write_mode.columns(self), *ours))

    @cached_property
    def table_columns(self) -> tuple[DeclaredColumn, ...]:
        """The table's columns but for the six of every table, in order."""
        return (*parse_columns(self.write_mode.columns(self)), *self._our_columns)

    @property
    def _our_columns(self) -> tuple[DeclaredColumn, ...]:
        kept = DeclaredColumn(name=EXTRA_COLUMN, type="VARIANT", nullable=True, comment=_KEPT)
        dead = DeclaredColumn(name=DELETED_COLUMN, type="BOOLEAN", nullable=True, comment=_DEAD)
        nth = DeclaredColumn(name=INDEX_COLUMN, type="INT", nullable=True, comment=_NTH)
        asked = (
            (dead, self.deletes == "soft"),
            (kept, self.extra_fields == "keep"),
            (nth, self.explode is not None),
        )
        return tuple(column for column, is_asked in asked if is_asked)

    @property
    def write_mode(self) -> Mode:
        """What the mode asks of a declaration."""
        return MODES[self.mode]

    @property
    def never_null(self) -> tuple[str, ...]:
        """Columns without which a record belongs to no row: the keys, and what windows go by."""
        by_time = (self.window.column,) if self.window else ()
        return (*self.keys, *(name for name in by_time if name != "_timestamp"))

    @property
    def origin(self) -> tuple[str, ...]:
        """Columns that say where in Kafka a row comes from, and no other row of its epoch."""
        return (*COORDINATES, INDEX_COLUMN) if self.explode else COORDINATES

    @property
    def line(self) -> tuple[str, ...]:
        """Columns along which a key's records are ordered, most significant first."""
        return (*self.sequence_by, *self.origin)

    @property
    def rule(self) -> str:
        """How records become rows, in one line: the mode, and what else decides it."""
        exploded = f"explode {self.explode}" if self.explode else ""
        return " ".join(filter(None, (self.mode, self.write_mode.rule(self), exploded)))

    @property
    def subscribed(self) -> tuple[str, ...]:
        """The topics to read, in order; of a pattern, none until ``with_topics`` names them."""
        return (self.topic,) if self.topic else self.topics

    @property
    def tombstone_policy(self) -> TombstonePolicy:
        """What a null value means: as declared, else a delete wherever its order is known.

        Where the order would have to come from the value that is not there, the default is the
        quarantine: a delete that cannot be placed must be seen, not dropped.
        """
        if self.tombstones:
            return self.tombstones
        if self.format.options.tombstones_repeat_deletes:
            return "ignore"
        if not self.write_mode.has_deletes:
            return "quarantine"
        return "delete" if self.tombstones_have_an_order else "quarantine"

    @property
    def tombstones_have_an_order(self) -> bool:
        """Tell whether a null value, which has only its key and time, can be placed."""
        return set(self.sequence_by) <= {*self.keys, "_timestamp"}
