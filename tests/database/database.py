"""One table of a database in memory: transactions change its rows, and its log has each change.

Constraints are deferred: keys may cross inside a transaction, and one that ends with two rows of a
key is rolled back. Rows are what any stream that reads the log must end with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

# What is longer is stored apart, and sent only with the change that writes it.
_LONGEST_INLINE: Final = 4


class Row(NamedTuple):
    """A row by its columns; ``key`` stands for the columns of the primary key.

    Attributes:
        identity: Which row it is, whatever its key.
        shard: Never changes; a connector may take it for the Kafka key.
        addr: A city, and the zip that an ALTER adds.
        extra: A column that an ALTER adds.
    """

    key: int
    identity: int
    shard: int
    tenant: str | None = None
    state: str | None = None
    v: str | None = None
    wide: str | None = None
    n: int | None = None
    addr: tuple[str | None, str | None] | None = None
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """INSERT … ON CONFLICT DO UPDATE: the row has these values, whatever it had."""

    key: int
    values: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        """Write it as SQL."""
        return f"put {self.key}: {_written(self.values)}"


@dataclass(frozen=True, slots=True)
class Update:
    """Changes columns of a row that is there."""

    key: int
    values: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        """Write it as SQL."""
        return f"update {self.key} set {_written(self.values)}"


@dataclass(frozen=True, slots=True)
class Move:
    """Gives a row another primary key."""

    key: int
    to: int

    def __str__(self) -> str:
        """Write it as SQL."""
        return f"update {self.key} set key = {self.to}"


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a row."""

    key: int

    def __str__(self) -> str:
        """Write it as SQL."""
        return f"delete {self.key}"


Statement = Put | Update | Move | Delete
# A column is added, INT becomes BIGINT, and a field is added within a column.
Alteration = Literal["add", "widen", "nest"]
_LARGEST_INT: Final = 2**31 - 1


def _written(values: Sequence[tuple[str, Any]]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in values) or "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One entry of the log.

    Attributes:
        number: Its place in the log, from 1.
        op: As Debezium calls it: ``c``, ``u``, ``d``, ``r`` of a snapshot, ``t`` of a truncate.
        unsent: Columns whose large values the change has not touched.
        is_vacated: Whether no other row had the old key when this one left it.
        alive: The rows that a truncate has emptied.
        holder: The row that had the new key when this one got it.
        outlived: The row that still has the old key, which it had before this one got it.
        altered: What had been altered by then.
    """

    number: int
    op: Literal["c", "u", "d", "r", "t"]
    before: Row | None = None
    after: Row | None = None
    unsent: frozenset[str] = frozenset()
    is_vacated: bool = True
    alive: tuple[Row, ...] = ()
    holder: Row | None = None
    outlived: Row | None = None
    altered: frozenset[str] = frozenset()

    @property
    def is_move(self) -> bool:
        """Tell whether the row has another key afterwards."""
        return bool(self.before and self.after and self.before.key != self.after.key)

    @property
    def leaves(self) -> int | None:
        """The key that has no row of its own afterwards."""
        is_gone = self.before is not None and (self.op == "d" or self.is_move)
        return self.before.key if self.before is not None and is_gone else None

    @property
    def keys(self) -> frozenset[int]:
        """The keys that it is about."""
        rows = (self.before, self.after, *self.alive)
        return frozenset(row.key for row in rows if row is not None)


@dataclass
class Database:
    """A table's rows, by a number of their own, its log, and how it was altered."""

    rows: dict[int, Row] = field(default_factory=dict)
    log: list[Change] = field(default_factory=list)
    altered: frozenset[str] = frozenset()
    _made: int = 0

    def commit(self, statements: Sequence[Statement]) -> list[Change]:
        """Execute a transaction; return its changes, none of one that is rolled back.

        A statement names a row by the key that it had when the transaction began.
        """
        rows, log, made = dict(self.rows), list(self.log), self._made
        named = {row.key: number for number, row in self.rows.items()}
        for statement in statements:
            self._execute(statement, named)
        keys = [row.key for row in self.rows.values()]
        if len(keys) != len({*keys}):
            self.rows, self.log, self._made = rows, log, made
        return self.log[len(log) :]

    @property
    def by_key(self) -> dict[int, Row]:
        """The rows by their keys."""
        return {row.key: row for row in self.rows.values()}

    def copy(self) -> Database:
        """Return a database of the same rows, and the same log."""
        return Database(dict(self.rows), [*self.log], self.altered, self._made)

    def alter(self, what: Alteration) -> None:
        """Alter the table, whose rows have null in what is new."""
        self.altered |= {what}

    def truncate(self) -> list[Change]:
        """Delete all rows by one entry of the log."""
        alive = tuple(self.rows.values())
        self.rows = {}
        return [self._note("t", alive=alive)]

    def snapshot(self) -> list[Change]:
        """Read all rows, as a connector does that begins anew."""
        return [self._note("r", after=row) for row in self.rows.values()]

    def _execute(self, statement: Statement, named: dict[int, int]) -> None:
        at = named.get(statement.key)
        if isinstance(statement, Put) and at not in self.rows:
            self._insert(statement, named)
        elif at in self.rows:
            assert at is not None, "which numbers a row"
            self._change(at, statement)

    def _insert(self, statement: Put, named: dict[int, int]) -> None:
        key, self._made = statement.key, self._made + 1
        row = Row(key, self._made, key % 2)._replace(**self._stored(statement))
        holder = self._holder(key)
        named[key], self.rows[self._made] = self._made, row
        self._note("c", after=row, holder=holder)

    def _change(self, at: int, statement: Statement) -> None:
        before = self.rows.pop(at)
        if isinstance(statement, Delete):
            is_vacated = self._holder(before.key) is None
            self._note("d", before=before, is_vacated=is_vacated, outlived=self._outlived(before))
            return
        is_move = isinstance(statement, Move)
        values = {"key": statement.to} if is_move else self._stored(statement)
        after = before._replace(**values)
        holder = self._holder(after.key)
        is_vacated, outlived = self._holder(before.key) is None, self._outlived(before)
        self.rows[at] = after
        if before != after:
            is_unsent = after.wide == before.wide and len(after.wide or "") > _LONGEST_INLINE
            self._note(
                "u",
                before=before,
                after=after,
                unsent=frozenset({"wide"} if is_unsent else ()),
                is_vacated=is_vacated,
                holder=holder,
                outlived=outlived,
            )

    def _stored(self, statement: Any) -> dict[str, Any]:
        """Return the values of a statement as the table's columns can have them."""
        values = dict(statement.values)
        if "add" not in self.altered:
            values.pop("extra", None)
        if "nest" not in self.altered and values.get("addr"):
            values["addr"] = (values["addr"][0], None)
        if "widen" not in self.altered and "n" in values:
            values["n"] = values["n"] and min(values["n"], _LARGEST_INT)
        return values

    def _holder(self, key: int) -> Row | None:
        return next((row for row in self.rows.values() if row.key == key), None)

    def _outlived(self, row: Row) -> Row | None:
        """Return the row that has the key of a row, too, if this one got it last."""
        rows = (c.after for c in reversed(self.log) if c.after and (c.op == "c" or c.is_move))
        newest = next((each for each in rows if each.key == row.key), None)
        is_last = newest is not None and newest.identity == row.identity
        return self._holder(row.key) if is_last else None

    def _note(self, op: Any, **parts: Any) -> Change:
        change = Change(number=len(self.log) + 1, op=op, altered=self.altered, **parts)
        self.log.append(change)
        return change


def net(before: Mapping[int, Row], after: Mapping[int, Row], *, number: int) -> Iterator[Change]:
    """Yield what a transaction comes to: the rows that are gone from their keys, then the new ones.

    This is what a producer of plain rows sends, who knows of keys and states alone.

    Args:
        before: The rows by their keys.
        after: Likewise.
        number: What the changes are called in the log.
    """
    for key, row in before.items():
        if key not in after or after[key].identity != row.identity:
            yield Change(number=number, op="d", before=row)
    for key, row in after.items():
        if before.get(key) != row:
            yield Change(number=number, op="u", before=before.get(key), after=row)
