"""SCD2: every record is a version of its key, valid until the next one.

With ``track`` only those records are versions of which a tracked column differs from the record
before. The others are remembered with the deletes: a late record may make versions of them, and of
a version none.

The order of a key's events is ``sequence_by``, epoch, topic, partition, offset. For the keys of a
batch, the versions in the table, the deletes remembered and the batch's records are put in that
order, and each version is valid until the event behind it. The commit inserts the new versions and
corrects those whose end has changed: so late events take their place in the middle, and the table
does not depend on how the batches were cut.

Rows to records: a version is one record, and carries its batch's seq for good; ``inserted`` are the
new ones. A delete writes no row: ``deleted`` ended a version, ``deleted_absent`` found none before
it. ``closed`` counts the older rows whose end was corrected, and is no disposition; nor is
``withdrawn``, older rows that are no version any more, or ``restored``, older records that are one
again. ``untracked`` are those of ``unchanged`` that were not read before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from oncelake.ingestion.declaration.modes import CURRENT, VALID_FROM, VALID_TO
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.mode import LEFT_ABSENT, Good, Target, WriteMode
from oncelake.ingestion.modes.tombstones import (
    ROW_SEQ,
    define_deletes,
    define_kept,
    remember_deletes,
)
from oncelake.ingestion.tables.commit_metadata import Kind

_IS_ROW: Final = f"{sql.name(CURRENT)} IS NOT NULL"


class HistoryMode(WriteMode):
    """Writes one batch to a table of versions."""

    inserts, updates, deletes = ("inserted", "restored"), ("closed",), ("withdrawn",)

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch; nothing is read or written yet."""
        super().__init__(target, good)
        self._sequence = sql.name(target.spec.sequence_by[0])

    def decide(self, kind: Kind) -> Mapping[str, int]:
        """Put the events of the batch's keys in order, and remember the deletes among them."""
        del kind
        if self._good.count:
            self._table.open_before(
                f"SELECT {sql.names(self._keys)} FROM good", size_bytes=self._good.size_bytes
            )
            self._decide(self._decided())
        kept = ("deleted", "deleted_absent", LEFT_ABSENT, "untracked", "withdrawn")
        has_kept = self._decision.count(kept) > 0
        if has_kept or self._target.contests:
            listed = ", ".join(map(sql.text, kept))
            deletes = f"SELECT * FROM decided WHERE _what IN ({listed})" if has_kept else ""
            remember_deletes(self._target, deletes)
        counts = self._counts("inserted", "deleted", "deleted_absent", "unchanged", "closed")
        if self._target.spec.track:
            counts |= self._counts("untracked", "withdrawn", "restored")
            counts["unchanged"] += counts["untracked"]
        return {**counts, "versions": counts["inserted"]}

    @property
    def judged(self) -> tuple[str, ...]:
        """A version that was closed, or restored, is that of an earlier batch."""
        return ("inserted",)

    @classmethod
    def rows_of_seq(cls, counts: Mapping[str, int]) -> int:
        """A version that was closed, or restored, keeps its own."""
        return counts.get("inserted", 0)

    def _decided(self) -> str:
        """Select the events that change something, as versions that are valid until the next.

        What an event comes to is a disposition, ``closed``, or null where nothing changes. Of two
        that are the same record, the one that was known comes first, and counts.
        """
        keys, line = sql.names(self._keys), self._line("_again")
        has_changed = " OR ".join(
            f"lag({sql.name(name)}) {line} IS DISTINCT FROM {sql.name(name)}"
            for name in self._target.spec.track
        )
        is_first = f"_delete OR lag(NOT _delete) {line} IS NOT TRUE"
        is_shown = f"{is_first} OR {has_changed}" if has_changed else "TRUE"
        # A window over what another has found is a sort more.
        shown = self._line("_again", "_is_shown") if has_changed else line
        following = f", lead({self._sequence}) {shown} AS _next"
        in_line, behind = ("", following) if has_changed else (following, "")
        return f"""
            WITH of_batch AS (SELECT DISTINCT {keys} FROM good),
            events AS ({" UNION ALL ".join(self._events())}),
            ordered AS (SELECT *, {self._is_again()} AS _again FROM events),
            lines AS (
                SELECT *, lag(NOT _delete) {line} AS _ends_one, {is_shown} AS _is_shown{in_line}
                FROM ordered
            ),
            ended AS (SELECT *{behind} FROM lines),
            changes AS (
                SELECT *, CASE
                    WHEN _again THEN CASE WHEN _is_new THEN 'unchanged' END
                    WHEN _is_new AND _delete AND _ends_one THEN 'deleted'
                    WHEN _is_new AND _delete THEN {self._absent("l")}
                    WHEN _is_new THEN CASE WHEN _is_shown THEN 'inserted' ELSE 'untracked' END
                    WHEN NOT _is_shown THEN CASE WHEN {_IS_ROW} THEN 'withdrawn' END
                    WHEN NOT _delete AND NOT {_IS_ROW} THEN 'restored'
                    WHEN NOT _delete AND (
                        _next IS DISTINCT FROM {sql.name(VALID_TO)}
                        OR {sql.name(CURRENT)} <> (_next IS NULL)
                    ) THEN 'closed'
                END AS _what
                FROM ended l
            )
            SELECT {self._version()}, _what FROM changes WHERE _what IS NOT NULL
        """

    def _events(self) -> Iterator[str]:
        """Select the batch's records, the table's rows, deletes and kept records of its keys."""
        target, columns = self._target, self._engine.columns("before")
        of_record = {name: sql.name(name, "r") for name in columns}
        of_record |= dict.fromkeys((VALID_FROM, VALID_TO, CURRENT), "NULL")
        of_record["_epoch"] = f"CAST({target.epoch} AS INTEGER)"
        of_record["_seq"] = f"CAST({target.seq} AS BIGINT)"
        yield f"""
            SELECT {sql.selected(of_record)}, r._disposition = 'delete' AS _delete,
                TRUE AS _is_new, _left_to
            FROM good r
        """
        yield self._known({name: sql.name(name, "d") for name in columns}, '"before"')
        if define_deletes(target):
            kept = {*self._keys, *target.spec.order_columns, "_timestamp", "_epoch", "_seq"}
            of_delete = {name: sql.name(name, "d") if name in kept else "NULL" for name in columns}
            yield self._known(of_delete, "deletes", is_delete=True)
        if target.spec.track and define_kept(target):
            there = {*self._engine.columns("kept")}
            of_kept = {name: sql.name(name, "d") if name in there else "NULL" for name in columns}
            yield self._known(of_kept | {"_seq": sql.name(ROW_SEQ, "d")}, "kept")

    def _known(self, columns: Mapping[str, str], table: str, *, is_delete: bool = False) -> str:
        """Select what was known before of the batch's keys."""
        return f"""
            SELECT {sql.selected(columns)}, {is_delete} AS _delete, FALSE AS _is_new,
                NULL AS _left_to
            FROM {table} d JOIN of_batch k ON {sql.equal(self._keys, "d", "k")}
        """

    def _line(self, *parts: str, then: str = "") -> str:
        """Write the window of a key's events in their order, or of a part of them."""
        order = f"{self._sequence}, {sql.names(self._identity)}{then}"
        return f"OVER (PARTITION BY {', '.join((sql.names(self._keys), *parts))} ORDER BY {order})"

    def _is_again(self) -> str:
        """Tell an event that is the record before it."""
        of_key = self._line(then=f", _is_new, {sql.name(CURRENT)} IS NULL")
        return " AND ".join(
            f"lag({sql.name(name)}) {of_key} IS NOT DISTINCT FROM {sql.name(name)}"
            for name in self._identity
        )

    def _version(self) -> str:
        """Select the table's columns of a version."""
        version = {name: sql.name(name) for name in self._table.columns}
        valid_from = f"CASE WHEN {_IS_ROW} THEN {sql.name(VALID_FROM)} ELSE {self._sequence} END"
        return sql.selected(
            version | {VALID_FROM: valid_from, VALID_TO: "_next", CURRENT: "_next IS NULL"}
        )


MODE = HistoryMode
