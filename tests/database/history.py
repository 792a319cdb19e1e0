"""Histories: what is done to the database and its connector, as a person can read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.database.database import Alteration, Change, Database, Row, Statement
from tests.database.declared import CONDITIONS, UNCUT, Setup

# A session has its own keys, so that several play at once in one topic.
KEYS_OF_A_SESSION: Final = 10
# What a history may have that has a rule of its own in the docs.
FEATURES: Final = (
    "a change of route",
    "a row that leaves the condition",
    "a delete without its route",
    "a truncate of several tables",
    "a key that is taken over",
    "a key that is taken over by its like",
    "a key that is taken over by its like from the same key",
    "a key that is taken over by a new row",
    "a row of nulls that leaves a key to another",
    "a key that a row of another table passes",
    "a key that is taken over from a row of no table",
    "a field within a column of Iceberg",
    "a large value that moves to another partition",
)


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one session does at a time."""

    statements: tuple[Statement, ...]

    def __str__(self) -> str:
        """Write it as SQL."""
        return "; ".join(map(str, self.statements)) or "nothing"


@dataclass(frozen=True, slots=True)
class Truncate:
    """The table is emptied."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The connector sends all rows."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The connector sends its last changes again."""

    count: int


@dataclass(frozen=True, slots=True)
class ReadAll:
    """The streams read what is there."""


@dataclass(frozen=True, slots=True)
class Alter:
    """The table is altered."""

    what: Alteration


Step = Transaction | Alter | Truncate | Snapshot | Restart | ReadAll


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """What is declared, and all that happens."""

    setup: Setup
    steps: tuple[Step, ...]

    def without(self, features: Sequence[str]) -> History:
        """Leave out the steps that have any of some features."""
        database, kept = Database(), []
        for step in self.steps:
            before = database.copy()
            if {*self._of_step(step, database)} & {*features}:
                database = before
            else:
                kept.append(step)
        return replace(self, steps=tuple(kept))

    @property
    def is_legal(self) -> bool:
        """Tell whether the docs promise anything of it.

        Without an order of their own, records that come again take the table back.
        """
        source = self.setup.source
        if source.kafka_key == "shard" and source.identity == "nothing":
            return False
        if not source.is_said_by(self.setup.declared.schema):
            return False
        if self.steps != self.possible().steps:
            return False
        return not self.features().keys() & {*self.setup.not_promised}

    def possible(self) -> History:
        """Leave out restarts that nothing orders, and ALTERs that no schema tells of."""
        kept = self.steps
        if not self.setup.declared.is_ordered:
            kept = tuple(step for step in kept if not isinstance(step, Restart))
        if not self.setup.source.has_more:
            kept = tuple(step for step in kept if not isinstance(step, Alter))
        return replace(self, steps=kept)

    @property
    def sessions(self) -> frozenset[int]:
        """The numbers of the sessions that do anything."""
        firsts = (step.statements[0] for step in self.steps if isinstance(step, Transaction))
        return frozenset(statement.key // KEYS_OF_A_SESSION for statement in firsts)

    def features(self) -> Counter[str]:
        """Count what it has."""
        database = Database()
        return Counter(each for step in self.steps for each in self._of_step(step, database))

    def _of_step(self, step: Step, database: Database) -> Iterator[str]:
        if step == Alter("nest") and self.setup.declared.sink in ("iceberg", "partitions"):
            yield "a field within a column of Iceberg"
        for change in _changes(step, database):
            yield from self._features(change)
            if self._repeats(change, database.log):
                yield "a key that is taken over by its like from the same key"

    def _features(self, change: Change) -> Iterator[str]:
        declared, source = self.setup.declared, self.setup.source
        before, after = change.before, change.after
        is_envelope = source.writes == "debezium"
        if change.op == "t" and declared.is_routed and is_envelope:
            yield "a truncate of several tables"
        is_silent = is_envelope and source.identity != "full"
        if change.leaves is not None and declared.is_routed and is_silent:
            yield "a delete without its route"
        if change.leaves is not None and is_envelope:
            yield from self._of_leaving(change)
        if change.holder is not None:
            yield from self._of_taking(change, change.holder)
        is_spread = source.kafka_key == "primary" and source.partitions > 1
        if change.is_move and change.unsent and is_silent and is_spread:
            yield "a large value that moves to another partition"
        if before is None or after is None:
            return
        if declared.table_of(before) != declared.table_of(after):
            yield "a change of route"
        for table in declared.tables:
            if table.where and CONDITIONS[table.where](before) > CONDITIONS[table.where](after):
                yield "a row that leaves the condition"

    def _of_taking(self, change: Change, holder: Row) -> Iterator[str]:
        if change.op == "c" and self.setup.source.writes == "debezium":
            yield "a key that is taken over by a new row"
        if not (change.is_move and change.after):
            return
        yield "a key that is taken over"
        # Which of the two goes later, no image can tell.
        like = holder._replace(identity=change.after.identity, shard=change.after.shard)
        if change.after == like:
            yield "a key that is taken over by its like"
        if self._is_unknown(holder, change.after):
            yield "a key that is taken over from a row of no table"

    def _repeats(self, change: Change, log: Sequence[Change]) -> bool:
        """Tell a move that says the same as that of the row which has its new key."""
        after, holder = change.after, change.holder
        if not (change.is_move and after and holder and change.before):
            return False
        earlier = (c for c in reversed(log) if c.number < change.number and c.after)
        newest = next((c for c in earlier if c.after and c.after.key == after.key), None)
        is_alike = self.setup.expected(after) == self.setup.expected(holder)
        came_from = newest.before.key if newest and newest.is_move and newest.before else None
        return is_alike and came_from == change.before.key

    def _is_unknown(self, holder: Row, after: Row) -> bool:
        """Tell a row that a table does not have, and not for a route that its delete tells."""
        declared = self.setup.declared
        # One that ``where`` leaves out may come to meet it under its new key.
        tables = [each for each in declared.tables if each.where or declared.has(each, after)]
        owner = declared.table_of(holder)
        is_told = holder.state is not None and self.setup.source.identity == "full"
        # A batch knows all of its own rows, whoever has them.
        is_cut = declared.limit < UNCUT or any(isinstance(each, ReadAll) for each in self.steps)
        is_silent = not is_told and (owner is None or (declared.is_routed and is_cut))
        return any(not declared.has(t, holder) and (is_silent or owner == t.name) for t in tables)

    def _of_leaving(self, change: Change) -> Iterator[str]:
        row, other, source = change.before, change.outlived, self.setup.source
        assert row is not None, "it leaves a key"
        fixed = {*source.keys, "part", "shard", "tenant"}
        image = source.image(row, change.altered)
        if not change.is_vacated and not any(v for n, v in image.items() if n not in fixed):
            yield "a row of nulls that leaves a key to another"
        if other is not None and self._passes(row, other):
            yield "a key that a row of another table passes"

    def _passes(self, row: Row, other: Row) -> bool:
        """Tell a row that leaves the key of a row of another table, or of one that it is not in."""
        declared = self.setup.declared
        is_hidden = (declared.has(t, other) and not declared.has(t, row) for t in declared.tables)
        return declared.table_of(row) != declared.table_of(other) or any(is_hidden)


def _changes(step: Step, database: Database) -> list[Change]:
    if isinstance(step, Transaction):
        return database.commit(step.statements)
    if isinstance(step, Alter):
        database.alter(step.what)
    return database.truncate() if isinstance(step, Truncate) else []


def described(history: History) -> str:
    """Write a history for people."""
    lines = [f"file: {history.setup.file('t')}", f"source: {history.setup.source}"]
    return "\n".join([*lines, *(f"  {step}" for step in history.steps)])
