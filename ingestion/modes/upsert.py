"""Upsert: the newest record of each key is the row; deletes are remembered.

A winner changes the table only when it is newer than the row that is there, or than the delete that
the tombstones remember. So any record may be delivered again, in any order, and the table ends the
same.

Rows to records: a row written is one record; inserted + updated rows carry the batch's seq.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import IncomparableError
from oncelake.ingestion.modes.mode import Good, Target, WriteMode
from oncelake.ingestion.modes.ordering import examine_keys, incomparable_records
from oncelake.ingestion.modes.tombstones import define_newest_deletes, remember_deletes
from oncelake.ingestion.tables.commit_metadata import Kind

# The dispositions of a winner.
DISPOSITIONS: Final = ("inserted", "updated", "deleted", "deleted_absent", "stale", "unchanged")


class UpsertMode(WriteMode):
    """Writes one batch to a table of newest records."""

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        super().__init__(target, good)
        self._line = target.spec.order_columns
        self._has_order = bool(target.spec.sequence_by)

    def decide(self, kind: Kind) -> Mapping[str, int]:
        """Compare the winners with the table's rows, and remember the deletes among them.

        Raises:
            KeyInTwoPartitionsError: two records of one key cannot be ordered.
        """
        del kind
        winners = 0
        if self._good.count:
            winners, ranges = examine_keys(self._target, has_order=self._has_order)
            self._define_winners(is_chosen=winners < self._good.count)
            with self._compared_with('"before"'):
                self._decide(self._decided(), key_ranges=ranges)
        if self._good.deletes or self._target.contests:
            self._remember_deletes()
        return {"superseded": self._good.count - winners, **self._counts(*DISPOSITIONS)}

    def _define_winners(self, *, is_chosen: bool) -> None:
        """Call the winners ``winners``, and the rows of their keys ``before``."""
        has_deletes = define_newest_deletes(self._target)
        wins_over_delete = self._wins_over("d") if has_deletes else "TRUE"
        deletes = f"LEFT JOIN dead d ON {sql.equal(self._keys, 's', 'd')}" if has_deletes else ""
        with self._compared_with("dead"):
            self._engine.define(
                "winners",
                f"""
                WITH s AS ({self._stamped(is_chosen=is_chosen)})
                SELECT s.*, {wins_over_delete} AS _alive FROM s {deletes}
                """,
                keep=is_chosen or has_deletes,
            )
        self._table.open_before(
            f"SELECT {sql.names(self._keys)} FROM winners",
            columns=self._looked_up(),
            size_bytes=self._good.size_bytes,
        )

    def _looked_up(self) -> tuple[str, ...]:
        """Return the columns of ``before`` that are asked for."""
        return tuple(dict.fromkeys([*self._keys, "_epoch", *self._line, *self._values()]))

    def _stamped(self, *, is_chosen: bool) -> str:
        """Select one record of each key, with the columns that every winner has."""
        ours = sql.stamp(self._target.epoch, self._target.seq)
        winners = f"({self._winner_per_key()})" if is_chosen else "good"
        return f"SELECT *, _disposition = 'delete' AS _delete, {ours} FROM {winners} w"

    def _winner_per_key(self) -> str:
        """Select one record of each key: here the newest."""
        return winner_per_key(self._target, "DESC")

    def _wins_over(self, other: str) -> str:
        return sql.is_newer(self._line, "s", other, has_order=self._has_order)

    def _decided(self) -> str:
        """Select the whole row of each winner, and what it is, measured against ``before``."""
        row = {**{name: sql.name(name, "s") for name in self._table.columns}, **self._values()}
        is_same = sql.equal(("_epoch", *self._line), "s", "t")
        return f"""
            SELECT {sql.selected(row)}, CASE
                WHEN t._offset IS NULL AND s._delete THEN {self._absent("s")}
                WHEN t._offset IS NULL AND s._alive THEN 'inserted'
                WHEN t._offset IS NULL THEN 'stale'
                WHEN {is_same} THEN 'unchanged'
                WHEN NOT {self._wins_over("t")} THEN 'stale'
                WHEN s._delete THEN {self._deleted()}
                ELSE 'updated'
            END AS _what
            FROM winners s LEFT JOIN ({self._placed()}) t ON {sql.equal(self._keys, "t", "s")}
        """

    def _placed(self) -> str:
        """Select ``before``; a row of no record, which was adopted, gets a place before them all.

        Where all columns of a declared order have a value, these decide, as between two records.
        """
        order = [f"{sql.name(name)} IS NOT NULL" for name in self._target.spec.sequence_by]
        is_ordered = " AND ".join(order) or "FALSE"
        row = {name: sql.name(name) for name in self._looked_up()}
        row["_epoch"] = f"coalesce(_epoch, CASE WHEN {is_ordered} THEN 1 ELSE 0 END)"
        # Its loader may have had columns of these names.
        before = {"_topic": "''", "_partition": "-1", "_offset": "-1"}
        row |= {n: f"CASE WHEN _epoch IS NULL THEN {v} ELSE {n} END" for n, v in before.items()}
        return f'SELECT {sql.selected(row)} FROM "before"'

    def _deleted(self) -> str:
        """Return the disposition, in SQL, of a delete that finds a row."""
        return "'deleted'"

    def _values(self) -> Mapping[str, str]:
        """Return the columns of a row that are not the winner's own, in SQL."""
        return {}

    def _remember_deletes(self) -> None:
        deletes = "SELECT * FROM winners WHERE _delete" if self._good.deletes else ""
        remember_deletes(self._target, deletes)

    @contextmanager
    def _compared_with(self, rows: str) -> Iterator[None]:
        """Name two records that cannot be ordered: one of the batch, and one of these rows."""
        try:
            yield
        except IncomparableError as error:
            one_epoch = f"t._epoch = {self._target.epoch}"
            incomparable = incomparable_records(self._target, rows, condition=one_epoch)
            raise incomparable or error.__cause__ or error from None


def winner_per_key(target: Target, direction: str) -> str:
    """Select the first of each key's good records along the stream's order, ``DESC`` or ``ASC``.

    The order ends with the place in Kafka, so it is total, and the winner the same on every run.
    """
    best_first = sql.ranked(target.spec.order_columns, direction)
    return sql.first_of(
        "good", target.engine.columns("good"), by=target.spec.keys, order=best_first
    )


MODE = UpsertMode
