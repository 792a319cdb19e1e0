"""A batch's rows within a transaction of PostgreSQL: looked up, written, or refused by record.

What must stay true: a batch is written if, and only if, its result meets every constraint. So what
can be checked at the end is, and a batch whose rows exchange values that are unique is written
again, its rows deleted and inserted anew. What is refused all the same is traced to the first
record that the server does not take, behind those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, LiteralString

import psycopg
import pyarrow as pa
from psycopg.sql import SQL, Composable, Identifier

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.errors import RefusedError, counted
from oncelake.ingestion.sinks.postgres.copy import (
    Connection,
    as_stored,
    column_list,
    is_readable,
    read_rows,
    send_rows,
)
from oncelake.ingestion.sinks.postgres.server import PostgresPlace, value_of
from oncelake.ingestion.tables.table import Change

_PLACE: Final = ("_topic", "_partition", "_offset")
_ORDER: Final = ("_epoch", *_PLACE)
# A value that is there already, and one that overlaps with another.
_CLASHES: Final = (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation)
_LOOK_UP: Final = "FROM {table} t WHERE ({of_table}) IN (SELECT {keys} FROM {sent}) FOR UPDATE OF t"
_UPDATE: Final = "UPDATE {table} t SET {new} FROM {sent} n WHERE ({of_table}) = ({of_sent})"
_DELETE: Final = "DELETE FROM {table} t USING {sent} n WHERE ({of_table}) = ({of_sent})"
_FIND: Final = "SELECT {place} FROM {table} t JOIN {sent} n ON ({of_table}) = ({of_sent})"
# One statement: a foreign key to these rows is checked at its end, when they are there again. The
# order lets all of them go before the first comes back.
_REPLACE: Final = """
    WITH gone AS (
        DELETE FROM {table} t USING {sent} n WHERE ({of_table}) = ({of_sent}) RETURNING {whole}
    )
    INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT * FROM gone ORDER BY 1
"""
# Columns of which a batch says nothing, but for those that the server computes.
_OTHERS: Final = """
    SELECT attname FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
      AND attname <> ALL (%s)
"""
# Whether to delete a row would do more than that to those of other tables.
_IS_FOLLOWED: Final = """
    SELECT EXISTS (
        SELECT FROM pg_constraint
        WHERE confrelid = to_regclass(%s) AND contype = 'f' AND confdeltype IN ('c', 'n', 'd')
    )
"""
# Whether a foreign key is to rows of the same table, of which a later one may be the cause.
_IS_OF_OWN_ROWS: Final = """
    SELECT EXISTS (
        SELECT FROM pg_constraint
        WHERE conrelid = to_regclass(%s) AND conname = %s AND confrelid = conrelid
    )
"""
# The columns that an index keeps unique, unless it is over a part of the rows or over expressions.
_UNIQUE: Final = """
    SELECT attname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    CROSS JOIN unnest((indkey::int2[])[0:indnkeyatts - 1]) WITH ORDINALITY AS part (number, nth)
    JOIN pg_attribute ON attrelid = indrelid AND attnum = part.number
    WHERE indrelid = to_regclass(%s) AND relname = %s AND indpred IS NULL AND indexprs IS NULL
    ORDER BY nth
"""

Write = Callable[[pa.Table], int]


class _KeptError(Exception):
    """The server has changed fewer rows than it was told to, and raised nothing."""


_REFUSED: Final = (psycopg.Error, _KeptError)


class BatchRows:
    """The rows of a table, in the transaction of one connection."""

    def __init__(
        self, place: PostgresPlace, connection: Connection, columns: Sequence[DeclaredColumn]
    ) -> None:
        """Take the table's columns, as they are."""
        self._place, self._connection, self._columns = place, connection, columns
        self._name = place.table.as_string()

    def look_up(self, keys: pa.Table) -> pa.Table:
        """Find the rows of keys by a temporary table of them, and lock the rows.

        What others have put to the table, of a type that no stream has, is left out.
        """
        readable = [column for column in self._columns if is_readable(column)]
        with self._sent(self._as_stored(keys)) as sent:
            own, of_table = (column_list(keys.column_names, of=table) for table in ("", "t"))
            source = self._place.sql(_LOOK_UP, sent=sent, keys=own, of_table=of_table)
            return pa.Table.from_batches(read_rows(self._connection, readable, source))

    def delete(self, keys: pa.Table) -> int:
        """Delete all rows that have some values; count them.

        Raises:
            RefusedError: something of the table's keeps some.
        """
        deleted = self._delete(self._as_stored(keys))
        if left := self.look_up(keys).num_rows:
            where = self._place.where
            raise RefusedError(
                self._place.stream,
                f"a trigger or a rule of {where} keeps {counted(left, 'row')} of the key. Nothing "
                "was changed.",
                remedy="drop or disable it; then run the same command again",
            )
        return deleted

    def change(self, change: Change) -> Mapping[str, int]:
        """Delete, update and insert rows; return how many.

        Raises:
            TableBusyError: others have changed the same rows.
            RefusedError: the server does not take them; names the record that is to blame.
        """
        # Refused before anything is sent.
        stored = Change(
            inserted=self._as_stored(change.inserted),
            updated=self._as_stored(change.updated),
            deleted=self._as_stored(change.deleted),
        )
        self._connection.execute("SET CONSTRAINTS ALL DEFERRED")
        try:
            self._execute(self._steps(stored))
        except _REFUSED as error:
            self._refuse_others(error, stored)
            if not (isinstance(error, _CLASHES) and self._is_changed_anew(stored)):
                raise self._refusal(error, stored) from error
        return change.counts

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        return as_stored(self._place.stream, rows, self._columns)

    def _is_changed_anew(self, change: Change) -> bool:
        """Delete what is updated, and insert it with all of its columns; tell whether that goes.

        Not where rows of other tables would be deleted, or changed, with them.
        """
        if value_of(self._connection, _IS_FOLLOWED, (self._name,)):
            return False
        steps = self._steps(change)
        steps[1] = (partial(self._replace, keys=change.deleted.column_names), change.updated)
        with suppress(*_REFUSED):
            self._execute(steps)
            return True
        return False

    def _refuse_others(self, error: Exception, change: Change) -> None:
        """Make sure that the cause of a refusal is not another transaction."""
        keys = change.deleted.column_names
        if isinstance(error, psycopg.Error):
            if not isinstance(self._place.translation(error), RefusedError):
                raise error
            is_of_others = set(self._unique_columns(error)) == set(keys)
        else:
            parts = (change.deleted, change.updated)
            is_of_others = any(
                self._match(_FIND, rows, keys, place=SQL("1")) < rows.num_rows for rows in parts
            )
        if is_of_others:
            raise self._place.busy("others have changed the same rows. Nothing was changed")

    def _refusal(self, error: Exception, change: Change) -> RefusedError:
        """Say what the server has not taken, and of which record."""
        where, reason = self._place.where, "a trigger or a rule stands in the way"
        if isinstance(error, psycopg.Error):
            reason = self._place.reason(error)
        refused = self._first_refused(error, change)
        if refused is None:
            return self._refused(
                f"{where} does not take the batch: {reason}", self._way_of_all(error)
            )
        if _PLACE[0] not in refused.column_names:
            row = self._place_in_table(refused, refused.column_names)
            return self._refused(
                f"{where} keeps the row of {row}, which is to be deleted: {reason}",
                "delete or change first what needs that row; then run the same command again",
            )
        [at] = refused.select(_PLACE).to_pylist()
        if same := self._unique_columns(error):
            other = self._place_in_table(refused, same)
            reason += f" ({', '.join(same)}), as the row of {other} has it"
        condition = (
            "NOT (_topic = '{_topic}' AND _partition = {_partition} AND _offset = {_offset})"
        )
        return self._refused(
            f"{where} does not take the row of {_written(at)}: {reason}",
            f"write `where: {condition.format(**at)}` (AND what is there), which leaves that "
            "record out; or change what the table asks, or the rows that it is held against; then "
            "run the same command again",
        )

    def _refused(self, problem: str, remedy: str) -> RefusedError:
        return RefusedError(self._place.stream, f"{problem}. Nothing was changed.", remedy=remedy)

    def _way_of_all(self, error: Exception) -> str:
        """Name the remedy where no record is the cause."""
        again = "then run the same command again"
        if isinstance(error, _CLASHES):
            name = Identifier(error.diag.constraint_name or "").as_string()
            return (
                f"rows of other tables follow these rows (ON DELETE …), so that {name} can only be "
                f"checked at the end: ALTER TABLE {self._name} DROP CONSTRAINT {name}, and add it "
                f"again as DEFERRABLE; {again}"
            )
        return f"let the table take this, or change the declaration; {again}"

    def _unique_columns(self, error: Exception) -> tuple[str, ...]:
        """Return the columns that were to be unique, where they are known by their names."""
        if not isinstance(error, psycopg.errors.UniqueViolation):
            return ()
        given = (self._name, error.diag.constraint_name)
        return tuple(name for (name,) in self._connection.execute(_UNIQUE, given))

    def _first_refused(self, error: Exception, change: Change) -> pa.Table | None:
        """Return the first row that the server does not take behind those before it."""
        steps = self._steps(change)
        if isinstance(error, _CLASHES):
            # Rows that exchange values are in each other's way, unless all of them are gone first.
            changed = change.updated.select(change.deleted.column_names)
            if not self._takes(self._delete, pa.concat_tables([change.deleted, changed])):
                return None
            steps = [(self._insert, pa.concat_tables([change.updated, change.inserted]))]
        if isinstance(error, psycopg.errors.ForeignKeyViolation):
            given = (self._name, error.diag.constraint_name)
            if value_of(self._connection, _IS_OF_OWN_ROWS, given):
                return None
        for write, rows in steps:
            if not self._takes(write, rows):
                return self._first_of(write, rows)
        return None

    def _first_of(self, write: Write, rows: pa.Table) -> pa.Table | None:
        if _PLACE[0] in rows.column_names:
            rows = rows.sort_by([(name, "ascending") for name in _ORDER])
        start, end = 0, rows.num_rows
        while end - start > 1:
            middle = (start + end) // 2
            if self._takes(write, rows.slice(start, middle - start)):
                start = middle
            else:
                end = middle
        first = rows.slice(start, 1)
        return None if self._takes(write, first) else first

    def _takes(self, write: Write, rows: pa.Table) -> bool:
        try:
            self._execute([(write, rows)])
        except _REFUSED as error:
            if isinstance(error, psycopg.Error) and error.sqlstate is None:
                raise
            return False
        return True

    def _execute(self, steps: Sequence[tuple[Write, pa.Table]]) -> None:
        """Write all of it, with what is checked at the end, or nothing."""
        with self._connection.transaction():
            for write, rows in steps:
                if write(rows) != rows.num_rows:
                    raise _KeptError
            self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _steps(self, change: Change) -> list[tuple[Write, pa.Table]]:
        update = partial(self._update, keys=change.deleted.column_names)
        return [
            (self._delete, change.deleted),
            (update, change.updated),
            (self._insert, change.inserted),
        ]

    def _delete(self, keys: pa.Table) -> int:
        return self._match(_DELETE, keys, keys.column_names)

    def _update(self, rows: pa.Table, *, keys: Sequence[str]) -> int:
        others = (Identifier(name) for name in rows.column_names if name not in keys)
        new = SQL(", ").join(SQL("{0} = n.{0}").format(name) for name in others)
        return self._match(_UPDATE, rows, keys, new=new)

    def _insert(self, rows: pa.Table) -> int:
        return send_rows(self._connection, self._place.table, rows)

    def _replace(self, rows: pa.Table, *, keys: Sequence[str]) -> int:
        """Delete rows and insert them with the columns that a batch does not have, as one act."""
        if not rows.num_rows:
            return 0
        names = rows.column_names
        others = [name for (name,) in self._connection.execute(_OTHERS, (self._name, names))]
        of_batch = column_list(names, of="n")
        whole = SQL(", ").join([of_batch, column_list(others, of="t")]) if others else of_batch
        columns = column_list([*names, *others])
        return self._match(_REPLACE, rows, keys, whole=whole, columns=columns)

    def _place_in_table(self, row: pa.Table, columns: Sequence[str]) -> str:
        """Name the record that a row of the table with the same values comes from."""
        with self._sent(row) as sent:
            parts = _equal(columns)
            query = self._place.sql(_FIND, sent=sent, place=column_list(_PLACE, of="t"), **parts)
            found = self._connection.execute(query).fetchone()
        at = dict(zip(_PLACE, found or (None,) * 3, strict=True))
        return "somebody else" if at["_offset"] is None else _written(at)

    def _match(
        self, statement: LiteralString, rows: pa.Table, keys: Sequence[str], **parts: Composable
    ) -> int:
        """Execute a statement on the table's rows that have the keys of others; count them."""
        if not rows.num_rows:
            return 0
        with self._sent(rows) as sent:
            query = self._place.sql(statement, sent=sent, **_equal(keys), **parts)
            return self._connection.execute(query).rowcount

    @contextmanager
    def _sent(self, rows: pa.Table) -> Iterator[Identifier]:
        """Send rows into a temporary table, with the table's types, so that its indexes serve."""
        sent = Identifier("pg_temp", "oncelake_sent")
        make = "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {table} LIMIT 0"
        self._connection.execute(self._place.sql(make, sent, column_list(rows.column_names)))
        send_rows(self._connection, sent, rows)
        # Otherwise the planner guesses how many there are.
        self._connection.execute(SQL("ANALYZE {}").format(sent))
        yield sent
        self._connection.execute(SQL("DROP TABLE {}").format(sent))


def _equal(columns: Sequence[str]) -> dict[str, Composable]:
    return {"of_table": column_list(columns, of="t"), "of_sent": column_list(columns, of="n")}


def _written(at: Mapping[str, object]) -> str:
    return "{_topic}-{_partition} offset {_offset}".format(**at)
