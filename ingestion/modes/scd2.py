"""SCD2: every record is a version of its key, valid until the next one.

The order of a key's events is ``sequence_by``, epoch, topic, partition, offset. For the keys of a
batch, the versions in the table, the deletes remembered and the batch's records are put in that
order, and each version is valid until the event behind it. One MERGE inserts the new versions and
corrects those whose end has changed: so late events take their place in the middle, and the table
does not depend on how the batches were cut.

Rows to records: a version is one record, and carries its batch's seq for good; ``inserted`` are the
new ones. A delete writes no row: ``deleted`` ended a version, ``deleted_absent`` found none before
it. ``closed`` counts the older rows whose end was corrected, and is no disposition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ingestion.declaration.modes import CURRENT, VALID_FROM, VALID_TO
from ingestion.modes import sql
from ingestion.modes.engines.engine import Clause, Merge
from ingestion.modes.mode import Good, Target, WriteMode, WriteResult, merge_counts, unlike
from ingestion.modes.tombstones import define_deletes, remember_deletes
from ingestion.sinks.commit_log import Commit
from ingestion.sinks.commit_metadata import CommitMetadata

# What an event comes to: a disposition, ``closed``, or null where nothing changes.
_WHAT: Final = (
    "CASE WHEN _again THEN CASE WHEN _is_new THEN 'unchanged' END "
    "WHEN _is_new AND _delete THEN "
    "CASE WHEN _ends_one THEN 'deleted' ELSE 'deleted_absent' END "
    "WHEN _is_new THEN 'inserted' "
    f"WHEN NOT _delete AND (_next IS DISTINCT FROM {sql.name(VALID_TO)} "
    f"OR {sql.name(CURRENT)} <> (_next IS NULL)) THEN 'closed' END"
)


class HistoryMode(WriteMode):
    """One batch on its way into a table of versions."""

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        super().__init__(target, good)
        self._sequence = sql.name(target.spec.sequence_by[0])
        self._written: Mapping[str, int] = {"versions": 0, "closed": 0}

    def prepare(self) -> Mapping[str, int]:
        """Put the events of the batch's keys in order, and remember the deletes among them."""
        if not self._good.count:
            return {}
        self._table.open_before(f"SELECT {sql.names(self._keys)} FROM good")
        # What is written and what is counted come from one copy.
        self._engine.define("changes", self._changes(), keep=True)
        rows = self._engine.rows('SELECT _what, count(*) AS "rows" FROM changes GROUP BY _what')
        found = {row["_what"]: row["rows"] for row in rows}
        if self._good.deletes:
            is_new = "_what IN ('deleted', 'deleted_absent')"
            remember_deletes(self._target, f"SELECT * FROM changes WHERE {is_new}")
        counts = {name: found.get(name, 0) for name in ("deleted", "deleted_absent", "unchanged")}
        self._written = {"versions": found.get("inserted", 0), "closed": found.get("closed", 0)}
        return {**counts, **self._written}

    def commit(self, metadata: CommitMetadata) -> None:
        """MERGE the new versions and the corrected ends, or commit the metadata alone."""
        if sum(self._written.values()):
            self._table.merge(self._merge(), metadata)
        else:
            self._table.commit_nothing(metadata)

    def account(self, commit: Commit) -> WriteResult:
        """Hold what MERGE counted against what was decided before it."""
        merged = merge_counts(commit)
        written = {"versions": merged["inserted"], "closed": merged["updated"]}
        return replace(self.recount(commit), problems=unlike(written, self._written))

    @classmethod
    def recount(cls, commit: Commit) -> WriteResult:
        """Say what the commit alone tells: the metadata counts the deletes, MERGE the versions."""
        inserted = merge_counts(commit)["inserted"]
        return WriteResult(counts={"inserted": inserted}, rows_expected=inserted)

    def _changes(self) -> str:
        """Select the events of the batch's keys that change something, with the next one's time."""
        keys = sql.names(self._keys)
        order = f"{self._sequence}, {sql.names(self._identity)}"
        # Of two that are the same record, the one that was known comes first, and counts.
        beside = f"OVER (PARTITION BY {keys} ORDER BY {order}, _is_new)"
        again = " AND ".join(
            f"lag({sql.name(each)}) {beside} IS NOT DISTINCT FROM {sql.name(each)}"
            for each in self._identity
        )
        line = f"OVER (PARTITION BY {keys}, _again ORDER BY {order})"
        return (
            f"SELECT * FROM (SELECT *, {_WHAT} AS _what FROM ("
            f"SELECT *, lag(NOT _delete) {line} AS _ends_one, "
            f"lead({self._sequence}) {line} AS _next FROM ("
            f"SELECT *, {again} AS _again FROM ({self._events()}) e) o) l) c "
            "WHERE _what IS NOT NULL"
        )

    def _events(self) -> str:
        """Select every event of the batch's keys: its records, and what is known of them."""
        columns = self._engine.columns("before")
        of_record = {name: sql.name(name, "r") for name in columns}
        of_record |= dict.fromkeys((VALID_FROM, VALID_TO, CURRENT), "NULL")
        of_record["_epoch"] = f"CAST({self._target.epoch} AS INTEGER)"
        of_record["_seq"] = f"CAST({self._target.seq} AS BIGINT)"
        keys = f"(SELECT DISTINCT {sql.names(self._keys)} FROM good)"
        events = [
            f"SELECT {sql.selected(of_record)}, r._disposition = 'delete' AS _delete, "
            "TRUE AS _is_new FROM good r",
            f"SELECT {sql.names(columns, 't')}, FALSE AS _delete, FALSE AS _is_new "
            f'FROM "before" t JOIN {keys} k ON {sql.equal(self._keys, "t", "k")}',
        ]
        if define_deletes(self._target):
            remembered = {*self._keys, *self._target.spec.order_columns}
            remembered |= {"_timestamp", "_epoch", "_seq"}
            of_delete = {
                name: sql.name(name, "d") if name in remembered else "NULL" for name in columns
            }
            events.append(
                f"SELECT {sql.selected(of_delete)}, TRUE AS _delete, FALSE AS _is_new "
                f"FROM deletes d JOIN {keys} k ON {sql.equal(self._keys, 'd', 'k')}"
            )
        return " UNION ALL ".join(events)

    def _merge(self) -> Merge:
        ends = {VALID_TO: "s._next", CURRENT: "s._next IS NULL"}
        starts = {VALID_FROM: f"s.{self._sequence}"}
        return Merge(
            source="SELECT * FROM changes WHERE _what IN ('inserted', 'closed')",
            on=sql.equal((*self._keys, *self._identity), "t", "s"),
            matched=(Clause(when="TRUE", assign=ends),),
            insert=Clause(
                when="s._what = 'inserted'", assign={**self._columns(), **starts, **ends}
            ),
            size_bytes=self._good.size_bytes,
        )


MODE = HistoryMode
