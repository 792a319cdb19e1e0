"""The two engines in memory: one copy of a batch, and the two ways in which a merge is fenced.

Spark's skips a statement whose ``txn`` is there, in silence. Without Spark the product looks, and
commits on exactly the version that it looked at, or on one whose rows are the same: that is its own
code here, over a table in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import CommitFailedError
from greenlet import getcurrent

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.delta.commits import fenced_commit
from oncelake.ingestion.errors import TableBusyError
from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.lake.quarantine import WAITS
from oncelake.ingestion.modes.engines.choose import EngineName
from oncelake.ingestion.pipeline.counts import IS_GOOD, is_first_row
from oncelake.ingestion.sinks.files import ATTEMPTS, refuse_other_rows
from oncelake.ingestion.tables.commit_log import DELETED, INSERTED, UPDATED
from oncelake.ingestion.tables.commit_metadata import CommitMetadata
from oncelake.ingestion.tables.table import seq_conflict
from tests.model.evolution import Shape
from tests.model.frames import Copy, Frame, Waiting, fetched
from tests.model.lake import File, Place, Row, Rows, Side, Table, holds
from tests.model.process import Process, step

if TYPE_CHECKING:
    from tests.model.world import World


@dataclass(frozen=True, slots=True)
class ModelDecision:
    """What a mode hands over.

    Attributes:
        rows: What becomes of each key, and its row.
        spec: By which they were decoded.
        drop: Returns a key that a fault leaves out, if any.
        landed: Called with the metadata, and that key, as soon as the commit is there.
    """

    rows: Mapping[int, tuple[str, Row]]
    spec: StreamSpec
    drop: Callable[[], int | None]
    landed: Callable[[CommitMetadata, int | None], None]

    def apply(
        self, before: Rows, columns: str, dropped: int | None
    ) -> tuple[Rows, Mapping[str, int]]:
        """Return the rows as they are afterwards, in some columns, and what the commit counts."""
        both = Shape.of(columns).within(Shape.of(self.spec.ddl))
        after, metrics = dict(before), dict.fromkeys(_METRICS.values(), 0)
        for key, (what, row) in self.rows.items():
            # A key that was decided to be there, or not, and is otherwise, is no partner.
            if key == dropped or what not in _METRICS or (what == "inserted") == (key in before):
                continue
            if what == "deleted":
                del after[key]
            else:
                after[key] = row._replace(shape=row.shape.within(both))
            metrics[_METRICS[what]] += 1
        return after, metrics


_METRICS = {"inserted": INSERTED, "updated": UPDATED, "deleted": DELETED}


# What the model of the upsert asks for, in the place of a query.
DELETES = "the deletes among the winners"


class ModelEngine:
    """Holds one batch, and executes what is asked of ``ingestion.modes.engines.engine.Engine``."""

    batch: Copy
    good: Copy
    deletes: Sequence[tuple[Any, ...]]

    def __init__(self, world: World) -> None:
        """Hold nothing yet."""
        self.world = world

    def materialize(self, validated: Frame | Waiting) -> None:
        """Take what was read to be decoded."""
        self.batch = fetched(validated)

    def parts(self, planned: Sequence[Range]) -> Iterator[Sequence[Range]]:
        """Leave every batch whole."""
        yield planned

    def columns(self, name: str) -> list[str]:
        """Return no columns: rows in memory are whole."""
        assert name == "batch", name
        return []

    def define(self, name: str, sql: str) -> None:
        """Select what can be applied; the product defines nothing else."""
        assert name == "good", name
        assert sql.endswith(f"FROM batch WHERE {IS_GOOD}"), sql
        self.good = self.batch.of("row", "delete")

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Count by reason; the product asks for nothing else by text."""
        assert sql.startswith("SELECT _reason, count(*)"), sql
        return [{"_reason": "bad", "records": len(self.batch.of("quarantined"))}]

    def open_table(self, name: str, side: Side) -> None:
        """Give the quarantine a name."""
        assert name == "quarantine", name
        self._quarantine = side

    def write_parquet(self, sql: str, file: File) -> None:
        """Write rows into a file that no log names; by text the product asks for three things."""
        if sql == DELETES:
            rows: Sequence[tuple[Any, ...]] = self.deletes
        elif sql.rstrip().endswith("FROM batch WHERE _disposition = 'quarantined'"):
            rows = self.batch.of("quarantined")
        else:
            rows = self._sent(sql)
        step("write beside the table")
        writer = getcurrent()
        assert isinstance(writer, Process), "only a process writes"
        file.folder.files[file.name] = (tuple(rows), writer.name)

    def _sent(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the places of the records in quarantine that a redrive sends in."""
        of_seq = re.search(rf"FROM quarantine WHERE {WAITS} AND (.*?)\s*\)\s*SELECT", sql)
        assert of_seq, sql
        assert f"WHERE b._disposition <> 'quarantined' AND {is_first_row('b')}" in sql, sql
        waiting = (row for row in self._quarantine.waiting() if holds(of_seq[1], row.seq))
        bad = {each[:2] for each in self.batch.of("quarantined")}
        sent = [each[:2] for each in self.batch if each[:2] not in bad]
        return [row.place for row in waiting for at in sent if at == row.content[:2]]

    def begin(self, stream: str, place: Place, target: Any) -> Rows:
        """Return the rows of the version before the batch."""
        del stream
        assert place.table is not None
        return place.table.states[target.table.version]

    def commit(
        self, decision: ModelDecision, stream: str, place: Place, metadata: CommitMetadata
    ) -> None:
        """Merge on the newest version, unless Delta knows the seq already."""
        table = place.table
        assert table is not None
        step("begin the commit")
        if table.skips(metadata):
            return
        self._land(decision, table, metadata, read_at=len(table.commits) - 1)
        step("hear of the commit")

    def close(self) -> None:
        """Let go of nothing."""

    def _land(
        self, decision: ModelDecision, table: Table, metadata: CommitMetadata, *, read_at: int
    ) -> None:
        dropped = decision.drop()
        rows, metrics = decision.apply(table.states[read_at], table.columns[read_at], dropped)
        step("land the commit")
        # Delta's own optimism is in ``land``, delta-rs' is stricter.
        self._refuse_to_rebase(table, read_at)
        table.land(rows, metadata, clock_ms=self.world.now_ms(), read_at=read_at, metrics=metrics)
        decision.landed(metadata, dropped)

    def _refuse_to_rebase(self, table: Table, read_at: int) -> None:
        """Let Delta rebase over what others did to the table's files."""


class ModelLocalEngine(ModelEngine):
    """Commits as ``ingestion.sinks.delta.transaction`` does, by its own words."""

    def begin(self, stream: str, place: Place, target: Any) -> Rows:
        """Return the rows of the newest version, which must stand at the seq before."""
        self._opened = ModelDeltaTable(place)
        recorded = self._opened.transaction_version(stream)
        if recorded not in (None, target.seq - 1):
            raise seq_conflict(stream, str(place), target.seq, last=recorded)
        return self._opened.table.states[self._opened.version()]

    def commit(
        self, decision: ModelDecision, stream: str, place: Place, metadata: CommitMetadata
    ) -> None:
        """Commit on exactly the version whose rows were looked up, or on one with the same rows."""
        for _ in range(ATTEMPTS):
            opened: Any = self._opened
            read_at, table = opened.read_at, opened.table
            fenced_commit(opened, stream, metadata)
            try:
                self._land(decision, table, metadata, read_at=read_at)
            except CommitFailedError:
                step("look again")
                refuse_other_rows(stream, str(place), metadata.seq, table.commits[read_at + 1 :])
                self._opened = ModelDeltaTable(place)
            else:
                step("hear of the commit")
                return
        raise TableBusyError.meanwhile(stream)

    def _refuse_to_rebase(self, table: Table, read_at: int) -> None:
        if table.fences and len(table.commits) - 1 != read_at:
            self.world.happens("commit overtaken")
            raise CommitFailedError("a commit of that version is there")


class ModelDeltaTable:
    """What ``ingestion.sinks.delta.transaction`` asks of delta-rs before it commits."""

    table_uri = "file:///of/the/model"

    def __init__(self, place: Place) -> None:
        """Open the newest version."""
        step("begin the commit")
        assert place.table is not None
        self.table = place.table
        self.read_at, self._txn = len(self.table.commits) - 1, self.table.txn

    def transaction_version(self, _app: str) -> int | None:
        """Return the recorded ``txn``, as of that version."""
        return self._txn if self.table.fences else None

    def version(self) -> int:
        """Return that version."""
        return self.read_at


def open_engine(name: EngineName, _session: object, stream: Any) -> ModelEngine:
    """Open an engine for one batch."""
    world = stream.settings
    world.happens(f"batch by {name}")
    return ModelEngine(world) if name == "spark" else ModelLocalEngine(world)
