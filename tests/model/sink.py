"""The upsert in memory: one winner a key, decided against the rows, and one commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from oncelake.ingestion.errors import TableBusyError
from oncelake.ingestion.lake.side_tables import application
from oncelake.ingestion.modes.mode import Good, Target
from oncelake.ingestion.modes.upsert import DISPOSITIONS, UpsertMode
from oncelake.ingestion.tables.commit_metadata import CommitMetadata, Kind, SideFile
from tests.model.engine import DELETES, ModelDecision, ModelEngine
from tests.model.lake import STREAM, File, OpenedSide, Row, Side, SideRow
from tests.model.process import step


class ModelUpsert:
    """What ``ingestion.modes.upsert`` does in SQL, on rows in memory."""

    changes = UpsertMode.changes
    rows_of_seq = UpsertMode.rows_of_seq
    # The schedules declare no rules, so nothing is judged by what was decided.
    decided = 0

    def __init__(self, target: Target, good: Good) -> None:
        """Take the good records of a batch."""
        engine: Any = target.engine
        self._target = target
        self._engine: ModelEngine = engine
        self._copy = self._engine.good
        self._paths: Any = target.paths
        self._winners: dict[int, tuple[Row, bool]] = {}
        self._decided: dict[int, tuple[str, Row]] = {}

    @property
    def _world(self) -> Any:
        return self._copy.world

    def decide(self, kind: Kind) -> Mapping[str, int]:
        """Choose the winners, compare them with the rows, and remember the deletes among them."""
        del kind
        deaths = self._dead()
        for each in self._copy:
            place = (self._target.epoch, each.record.at, each.partition, each.offset)
            row = Row(*place, self._target.seq, each.record.shape)
            other = self._winners.get(each.record.key)
            if other is None or row.place > other[0].place:
                self._winners[each.record.key] = (row, each.disposition == "delete")
        before = self._engine.begin(self._target.spec.name, self._paths.data, self._target)
        self._decided = {
            key: (_what(row, is_delete, before.get(key), deaths.get(key)), row)
            for key, (row, is_delete) in self._winners.items()
        }
        winners = self._winners.items()
        self._engine.deletes = [(key, row) for key, (row, is_delete) in winners if is_delete]
        if any(each.disposition == "delete" for each in self._copy):
            self._target.write_side("tombstones", self._paths.tombstones, DELETES)
        found = Counter(what for what, _ in self._decided.values())
        counts = {name: found[name] for name in DISPOSITIONS}
        return {"superseded": len(self._copy) - len(self._winners), **counts}

    def commit(self, metadata: CommitMetadata) -> None:
        """Commit what was decided."""
        decision = ModelDecision(self._decided, self._target.spec, self._one_to_drop, self._note)
        self._engine.commit(decision, self._target.spec.name, self._paths.data, metadata)

    def _one_to_drop(self) -> int | None:
        """Choose a row that would be written, if that fault is armed; deletes are remembered."""
        for key, (what, _) in self._decided.items():
            if what in ("inserted", "updated") and self._world.takes("winner dropped"):
                return key
        return None

    def _note(self, metadata: CommitMetadata, dropped: int | None) -> None:
        """Note which faults are in the table now."""
        if self._copy.is_doubled or dropped is not None:
            self._world.spoiled[metadata.seq] = dropped
        if self._copy.skipped is not None:
            self._world.skipped.add((metadata.seq, *self._copy.skipped[:2]))
        self._world.read_in[metadata.seq] = self._copy.lives
        self._world.applied[metadata.seq] = (
            self._target.epoch,
            frozenset((each.partition, each.offset) for each in self._copy),
        )

    def _dead(self) -> dict[int, Row]:
        newest: dict[int, Row] = {}
        for _, (key, row), _ in self._paths.tombstones.rows:
            if key not in newest or row.place > newest[key].place:
                newest[key] = row
        return newest


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


def count_rows(side: Side, seq: int, column: str = "_seq") -> int:
    """Count rows or marks, as ``ingestion.lake.side_tables`` does."""
    step("look beside the table")
    return sum((row.mark if column == "redriven_seq" else row.seq) == seq for row in side.rows)


def waiting(side: Side) -> Counter[int]:
    """Count what waits, by the batch that it came from."""
    step("look beside the table")
    return Counter(row.seq for row in side.waiting())


def read_back(file: File) -> SideFile:
    """Describe a file as it lies there."""
    step("look beside the table")
    if file.name not in file.folder.files:
        raise TableBusyError(f"{file.name} was removed")
    rows, _ = file.folder.files[file.name]
    return SideFile(path=file.name, rows=len(rows), size=len(rows), checksum=hash(rows))


def read_named(side: Side, file: SideFile | None) -> tuple[Any, ...] | None:
    """Return what a file holds that a commit names, if it is as it was written."""
    if file is None:
        return None
    step("look beside the table")
    rows, _ = side.files.get(file.path, ((), ""))
    return rows if hash(rows) == file.checksum else None


def add(
    projection: Any,
    side: Side,
    _: SideFile,
    content: tuple[Any, ...],
    opened: OpenedSide | None,
) -> None:
    """Put a file into a side table's log, which is made with it."""
    new = [SideRow(projection.note.seq, tuple(row)) for row in content]
    opened = opened or OpenedSide(side, 0, {})
    opened.land([*side.rows, *new], **_fence(projection))


def mark(
    projection: Any, side: Side, _: SideFile, content: tuple[Any, ...], opened: OpenedSide
) -> None:
    """Mark the records that a redrive has sent in."""
    is_sent = [row.mark is None and row.place in content for row in side.rows]
    rows = [
        row._replace(mark=projection.note.seq) if sent else row
        for row, sent in zip(side.rows, is_sent, strict=True)
    ]
    opened.land(rows, **_fence(projection))


def _fence(projection: Any) -> dict[str, int]:
    return {application(STREAM, projection.table_id): projection.note.seq}
