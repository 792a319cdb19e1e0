"""Upsert: the newest record of each key is the row; deletes are remembered.

One MERGE with a monotone guard: a winner changes the table only when it is newer than the row that
is there, or than the delete that the tombstones remember. So any record may be delivered again, in
any order, and the table ends the same.

Rows to records: a row written is one record; inserted + updated rows carry the batch's seq.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from ingestion.errors import counted
from ingestion.modes import sql
from ingestion.modes.engines.engine import Clause, IncomparableError, Merge
from ingestion.modes.mode import Good, Target, WriteMode, WriteResult, merge_counts
from ingestion.modes.ordering import KeyFacts, examine_keys, incomparable_pair, two_partitions
from ingestion.modes.tombstones import define_newest_deletes, remember_deletes
from ingestion.sinks.commit_log import Commit
from ingestion.sinks.commit_metadata import CommitMetadata


class UpsertMode(WriteMode):
    """One batch on its way into an upsert table."""

    # What a winner was that MERGE left alone.
    _left_alone: tuple[str, ...] = ("stale", "unchanged", "deleted_absent")

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        super().__init__(target, good)
        self._line = target.spec.order_columns
        self._has_order = bool(target.spec.sequence_by)
        self._facts = KeyFacts(distinct=0)
        self._has_deaths = False

    def prepare(self) -> Mapping[str, int]:
        """Choose the winners, and remember the deletes among them.

        Raises:
            KeyInTwoPartitionsError: two records of one key cannot be ordered.
        """
        if self._good.count:
            self._facts = examine_keys(self._target, has_order=self._has_order)
            self._has_deaths = define_newest_deletes(self._target)
            with self._compared_with("dead"):
                self._define_winners()
        if self._good.deletes:
            remember_deletes(self._target, "SELECT * FROM winners WHERE _delete")
        return self._prepared()

    def _prepared(self) -> Mapping[str, int]:
        superseded = self._good.count - self._facts.distinct
        return {"superseded": superseded, "winners": self._facts.distinct}

    def commit(self, metadata: CommitMetadata) -> None:
        """MERGE the winners, or commit the metadata alone when there are none.

        Raises:
            KeyInTwoPartitionsError: a winner and the table cannot be ordered.
        """
        if not self._facts.distinct:
            self._table.commit_nothing(metadata)
            return
        self._table.open_before(self._winners_keys)
        with self._compared_with('"before"'):
            self._table.merge(self._merge(), metadata)

    def account(self, commit: Commit) -> WriteResult:
        """Take what MERGE counted, look up the winners it left alone, and audit the deletes."""
        written = self._written(commit)
        if self._facts.distinct == sum(merge_counts(commit).values()):
            left_alone = {}
        else:
            self._table.open_parent(commit)
            found = self._classify()
            left_alone = {name: found.get(name, 0) for name in self._left_alone}
        problems = tuple(self._audited(commit)) if self._good.deletes else ()
        return replace(written, counts={**written.counts, **left_alone}, problems=problems)

    @classmethod
    def recount(cls, commit: Commit) -> WriteResult:
        """Say what the commit alone tells; winners it did not apply were stale, by inference."""
        written = cls._written(commit)
        winners = commit.metadata.counts["winners"] if commit.metadata else 0
        stale = winners - sum(merge_counts(commit).values())
        left_alone = {"stale": stale, "derived": stale} if stale else {}
        return replace(written, counts={**written.counts, **left_alone})

    @classmethod
    def _written(cls, commit: Commit) -> WriteResult:
        """Take what MERGE counted."""
        counts = merge_counts(commit)
        return WriteResult(counts=counts, rows_expected=counts["inserted"] + counts["updated"])

    def _winner_per_key(self) -> str:
        """Select one record of each key: here the newest."""
        return winner_per_key(self._target, "DESC")

    def _wins_over(self, other: str) -> str:
        return sql.is_newer(self._line, "s", other, has_order=self._has_order)

    def _define_winners(self) -> None:
        is_chosen = self._facts.distinct < self._good.count
        chosen = self._winner_per_key() if is_chosen else "SELECT * FROM good"
        alive, deaths = "NOT s._delete", ""
        if self._has_deaths:
            # A second delete of a key from another partition is refused by any engine.
            alive = f"CASE WHEN {self._wins_over('d')} THEN NOT s._delete ELSE FALSE END"
            deaths = f" LEFT JOIN dead d ON {sql.equal(self._keys, 's', 'd')}"
        self._engine.define(
            "winners",
            f"SELECT s.*, {alive} AS _alive FROM ({self._with_ours(chosen)}) s{deaths}",
            keep=is_chosen or self._has_deaths,
        )

    def _with_ours(self, chosen: str) -> str:
        """Add the columns that every winner has."""
        ours = sql.stamp(self._target.epoch, self._target.seq)
        return f"SELECT *, _disposition = 'delete' AS _delete, {ours} FROM ({chosen}) w"

    def _merge(self) -> Merge:
        matched, insert = self._clauses()
        return Merge(
            source="SELECT * FROM winners",
            on=sql.equal(self._keys, "t", "s"),
            matched=matched,
            insert=insert,
            size_bytes=self._good.size_bytes,
            key_ranges=self._facts.ranges,
        )

    def _clauses(self) -> tuple[tuple[Clause, ...], Clause]:
        """Say what becomes of the row of a winner's key, and of a winner without one."""
        assign, newer = self._columns(), self._wins_over("t")
        update = Clause(when=f"NOT s._delete AND {newer}", assign=self._updated(assign))
        delete = Clause(when=f"s._delete AND {newer}", assign=None)
        matched = (delete, update) if self._good.deletes else (update,)
        return matched, Clause(when="s._alive", assign=assign)

    def _updated(self, columns: Mapping[str, str]) -> Mapping[str, str]:
        """Say what each column of a row becomes that is there already."""
        return columns

    @property
    def _winners_keys(self) -> str:
        return f"SELECT {sql.names(self._keys)} FROM winners"

    def _classify(self) -> Mapping[str, int]:
        """Count what each winner was, measured against ``before``."""
        is_same = sql.equal(("_epoch", *self._line), "s", "t")
        rows = self._engine.rows(
            'SELECT what, count(*) AS "rows" FROM (SELECT CASE '
            "WHEN t._offset IS NULL AND s._delete THEN 'deleted_absent' "
            "WHEN t._offset IS NULL AND s._alive THEN 'inserted' "
            "WHEN t._offset IS NULL THEN 'stale' "
            f"WHEN {is_same} THEN 'unchanged' "
            f"WHEN NOT {self._wins_over('t')} THEN 'stale' "
            "WHEN s._delete THEN 'deleted' ELSE 'updated' END AS what "
            f'FROM winners s LEFT JOIN "before" t ON {sql.equal(self._keys, "t", "s")}) c '
            "GROUP BY what"
        )
        return {row["what"]: row["rows"] for row in rows}

    def _audited(self, commit: Commit) -> Iterator[str]:
        """Say that a delete of this batch has not removed its row."""
        self._table.open_after(commit, f"{self._winners_keys} WHERE _delete")
        (row,) = self._engine.rows(
            'SELECT count(*) AS "rows" FROM "after" t JOIN winners s '
            f"ON {sql.equal(self._keys, 't', 's')} "
            f"WHERE s._delete AND {self._wins_over('t')}"
        )
        if row["rows"]:
            still = counted(row["rows"], "deleted key is", "deleted keys are")
            yield f"{still} still in the table"

    @contextmanager
    def _compared_with(self, rows: str) -> Iterator[None]:
        """Name two records that cannot be ordered: one of the batch, and one of these rows."""
        try:
            yield
        except IncomparableError as error:
            one_epoch = f"t._epoch = {self._target.epoch}"
            pair = incomparable_pair(self._target, "good", rows, condition=one_epoch)
            if pair is None:
                raise error.__cause__ or error from None
            raise two_partitions(self._target.spec, pair) from None


def winner_per_key(target: Target, direction: str) -> str:
    """Select the first of each key's good records along the stream's order, ``DESC`` or ``ASC``.

    The order ends with the place in Kafka, so it is total, and the winner the same on every run.
    """
    keys, line = target.spec.keys, target.spec.order_columns
    best_first = sql.ranked(line, direction)
    return sql.first_of("good", target.engine.columns("good"), by=keys, order=best_first)


MODE = UpsertMode
