"""The upsert in memory: one winner a key, a monotone guard, and a commit by its engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ingestion.lake.attempts import MARKS, ROWS, Attempt, Attempts, Columns
from ingestion.lake.quarantine import Waiting
from ingestion.modes.mode import Good, Target, WriteResult
from ingestion.modes.upsert import UpsertMode
from ingestion.sinks.commit_log import DELETED, INSERTED, UPDATED, Commit
from ingestion.sinks.commit_metadata import CommitMetadata
from tests.model.engine import ModelEngine, ModelMerge
from tests.model.lake import Row, Rows, Side, Table
from tests.model.process import step


class ModelUpsert:
    """What ``ingestion.modes.upsert`` does in SQL, on rows in memory."""

    recount = staticmethod(UpsertMode.recount)

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch."""
        engine: Any = target.engine
        self._target = target
        self._engine: ModelEngine = engine
        self._copy = self._engine.good
        self._paths: Any = target.paths
        self._winners: dict[int, tuple[Row, bool]] = {}
        self._deaths: Mapping[int, Row] = {}
        self._dropped: int | None = None

    @property
    def _world(self) -> Any:
        return self._copy.world

    def prepare(self) -> Mapping[str, int]:
        """Choose the winners, and remember the deletes among them."""
        self._deaths = self._dead()
        for each in self._copy:
            row = Row(
                self._target.epoch, each.record.at, each.partition, each.offset, self._target.seq
            )
            other = self._winners.get(each.record.key)
            if other is None or row.place > other[0].place:
                self._winners[each.record.key] = (row, each.disposition == "delete")
        dead = tuple((key, row) for key, (row, is_delete) in self._winners.items() if is_delete)
        if any(each.disposition == "delete" for each in self._copy):
            self._paths.tombstones.replace(self._target.attempt, dead)
        superseded = len(self._copy) - len(self._winners)
        return {"superseded": superseded, "winners": len(self._winners)}

    def commit(self, metadata: CommitMetadata) -> None:
        """MERGE the winners."""
        merge = ModelMerge(self._merged, self._note)
        self._engine.merge(merge, self._target.spec.name, self._paths.data, metadata)

    def account(self, commit: Commit) -> WriteResult:
        """Say what became of the winners."""
        table: Table = self._paths.data.table
        counts = _counts(commit)
        rows_expected = counts["inserted"] + counts["updated"]
        if len(self._winners) != sum(counts.values()):
            left = self._left_alone(table.states[self._target.table.version])
            counts |= left
        return WriteResult(counts=counts, rows_expected=rows_expected)

    def _note(self, metadata: CommitMetadata) -> None:
        """Note which faults are in the table now."""
        if self._copy.is_doubled or self._dropped is not None:
            self._world.spoiled[metadata.seq] = self._dropped
        if self._copy.skipped is not None:
            self._world.skipped.add((metadata.seq, *self._copy.skipped[:2]))
        self._world.read_in[metadata.seq] = self._copy.lives
        self._world.applied[metadata.seq] = (
            self._target.epoch,
            frozenset((each.partition, each.offset) for each in self._copy),
        )

    def _merged(self, before: Rows) -> tuple[Rows, Mapping[str, int]]:
        after, dead = dict(before), self._deaths
        metrics = dict.fromkeys(_METRICS.values(), 0)
        self._dropped = self._one_to_drop(before, dead)
        for key, (row, is_delete) in self._winners.items():
            if key == self._dropped:
                continue
            what = _what(row, is_delete, before.get(key), dead.get(key))
            if what == "deleted":
                del after[key]
            elif what in ("inserted", "updated"):
                after[key] = row
            if what in _METRICS:
                metrics[_METRICS[what]] += 1
        return after, metrics

    def _one_to_drop(self, before: Rows, dead: Mapping[int, Row]) -> int | None:
        """Choose a row that would be written, if that fault is armed; deletes are remembered."""
        for key, (row, is_delete) in self._winners.items():
            does = _what(row, is_delete, before.get(key), dead.get(key))
            if does in ("inserted", "updated") and self._world.takes("winner dropped"):
                return key
        return None

    def _dead(self) -> dict[int, Row]:
        newest: dict[int, Row] = {}
        for attempt, deletes in self._paths.tombstones.rows.items():
            for key, row in deletes if self._target.committed.has_committed(attempt) else ():
                if key not in newest or row.place > newest[key].place:
                    newest[key] = row
        return newest

    def _left_alone(self, before: Rows) -> dict[str, int]:
        dead = self._deaths
        found: dict[str, int] = {}
        for key, (row, is_delete) in self._winners.items():
            what = _what(row, is_delete, before.get(key), dead.get(key))
            found[what] = found.get(what, 0) + 1
        return {name: found.get(name, 0) for name in ("stale", "unchanged", "deleted_absent")}


_METRICS = {
    "inserted": INSERTED,
    "updated": UPDATED,
    "deleted": DELETED,
}


def _counts(commit: Commit) -> dict[str, int]:
    return {name: commit.metrics.get(metric, 0) for name, metric in _METRICS.items()}


def _what(row: Row, is_delete: bool, there: Row | None, dead: Row | None) -> str:
    """Say what a winner does to the row that is there, and to the memory of its delete."""
    if there is not None:
        if row.place == there.place:
            return "unchanged"
        if row.place < there.place:
            return "stale"
        return "deleted" if is_delete else "updated"
    if is_delete:
        return "deleted_absent"
    return "inserted" if dead is None or row.place > dead.place else "stale"


def count_of(side: Side, attempt: Attempt, columns: Columns = ROWS) -> int:
    """Count rows or marks, as ``ingestion.lake.side_tables`` does."""
    step("look beside the table")
    if columns == MARKS:
        return sum(mark == attempt for mark in side.marks.values())
    return len(side.rows.get(attempt, ()))


def waiting(side: Side, committed: Attempts) -> Counter[int]:
    """Count what waits, by the batch that it came from."""
    leftovers: Any = Waiting.of(side, committed, side)  # type: ignore[arg-type]
    return Counter(attempt.seq for attempt, _ in side.waiting(leftovers))
