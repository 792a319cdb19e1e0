"""The two engines in memory: one copy of a batch, and the two ways in which a merge is fenced.

Spark's skips a statement whose ``txn`` is there, in silence. Without Spark the product looks, and
commits on exactly the version that it looked at, or on one whose rows are the same: that is its own
code here, over a table in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import CommitFailedError

from ingestion.kafka.offsets import Range
from ingestion.lake.attempts import Attempt
from ingestion.modes.engines.choose import EngineName
from ingestion.pipeline.counts import IS_GOOD
from ingestion.sinks.commit_log import DELETED, INSERTED, UPDATED
from ingestion.sinks.commit_metadata import CommitMetadata
from ingestion.sinks.delta.commits import fenced_commit, overtaken
from ingestion.sinks.delta.transaction import ATTEMPTS, refuse_other_rows
from ingestion.sinks.table import seq_conflict
from tests.model.frames import Copy, Frame, Waiting, fetched, holds, python_of
from tests.model.lake import Place, Row, Rows, Side, Table, names_in
from tests.model.process import step

if TYPE_CHECKING:
    from tests.model.world import World


@dataclass(frozen=True, slots=True)
class ModelDecision:
    """What a mode hands over.

    Attributes:
        rows: What becomes of each key, and its row.
        drop: Returns a key that a fault leaves out, if any.
        landed: Called with the metadata, and that key, as soon as the commit is there.
    """

    rows: Mapping[int, tuple[str, Row]]
    drop: Callable[[], int | None]
    landed: Callable[[CommitMetadata, int | None], None]

    def apply(self, before: Rows, dropped: int | None) -> tuple[Rows, Mapping[str, int]]:
        """Return the rows as they are afterwards, and what the commit counts."""
        after, metrics = dict(before), dict.fromkeys(_METRICS.values(), 0)
        for key, (what, row) in self.rows.items():
            # A key that was decided to be there, or not, and is otherwise, is no partner.
            if key == dropped or what not in _METRICS or (what == "inserted") == (key in before):
                continue
            if what == "deleted":
                del after[key]
            else:
                after[key] = row
            metrics[_METRICS[what]] += 1
        return after, metrics


_METRICS = {"inserted": INSERTED, "updated": UPDATED, "deleted": DELETED}


class ModelEngine:
    """Holds one batch, and executes what is asked of ``ingestion.modes.engines.engine.Engine``."""

    batch: Copy
    good: Copy

    def __init__(self, world: World) -> None:
        """Hold nothing yet."""
        self.world = world

    def materialize(self, validated: Frame | Waiting) -> None:
        """Read Kafka, or the quarantine, once."""
        step("fetch")
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

    def replace_attempt(self, sql: str, side: Side, attempt: Attempt, *, stats_on: object) -> None:
        """Set the bad records aside; the product asks for nothing else by text."""
        assert sql.rstrip().endswith("FROM batch WHERE _disposition = 'quarantined'"), sql
        side.replace(attempt, tuple(self.batch.of("quarantined")))

    def mark_redriven(self, sql: str, side: Side, attempt: Attempt, *, within: str) -> None:
        """Mark the rows of the records that are sent in."""
        assert "WHERE _disposition <> 'quarantined'" in sql, sql
        sent = {(each.partition, each.offset) for each in self.batch}
        sent -= {(each.partition, each.offset) for each in self.batch.of("quarantined")}
        step("mark beside the table")
        of_seq, _, left_over = within.partition(" AND NOT ")
        for of in (each for each in side.rows if holds(python_of(of_seq), each.seq)):
            for at in ((of, *row[:2]) for row in side.rows[of] if row[:2] in sent):
                if of.name not in names_in(left_over) and at not in side.marks:
                    side.marks[at] = attempt

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
        rows, metrics = decision.apply(table.states[read_at], dropped)
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
        raise overtaken(stream)

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
