"""The judgement of a batch between its decision and its commit.

    decided → misses of rules → guard → books → expectations → published, or held back

What is held back changes nothing: no row is written, no offset moves, and what the batch would have
been lies beside the tables until a person decides; see ``ingestion.lake.withheld``.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from pyspark.sql import SparkSession

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import counted
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.lake.books import imbalances
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.lake.lock import refuse_lost_lease
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.lake.withheld import (
    ROWS,
    Miss,
    WithheldBatch,
    forget_withheld,
    read_withheld,
    write_withheld,
)
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.modes.mode import WriteMode
from oncelake.ingestion.modes.sql import text
from oncelake.ingestion.pipeline.gate.rules import Missed, RowRules, rows_in_spark
from oncelake.ingestion.pipeline.spark.errors import translate_expression_errors
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.recovery.withheld import unaccepted_error, withheld_error
from oncelake.ingestion.tables.commit_metadata import CommitMetadata

# What stands before a rule's name among the counts of a commit.
MISSED: Final = "expect."
# So many batches give the median that a batch's growth is measured by, at least and most.
_FEWEST_BATCHES, _MOST_BATCHES = 3, 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """A batch that a person lets through the gate, by its id, and why."""

    id: str
    reason: str


class Gate:
    """Judges the batches of a run."""

    def __init__(
        self,
        stream: Stream,
        spark: SparkSession,
        *,
        is_local: bool,
        accepted: Accepted | None = None,
        published: Offsets | None = None,
    ) -> None:
        """Take what judges.

        Args:
            stream: The stream, whose declaration says what is asked of a batch.
            spark: Evaluates what DuckDB cannot.
            is_local: Whether the engine is of this process.
            accepted: The one batch that passes whatever is found.
            published: Of a rebuild: what the table in use has passed already, up to these offsets.
        """
        self._stream, self._spec, self._spark = stream, stream.spec, spark
        self._is_local, self._published, self._accepted = is_local, published, accepted
        self._rules = RowRules.of(stream.spec, spark, is_local=is_local)

    def judge(
        self, engine: Engine, mode: WriteMode, metadata: CommitMetadata, position: Position
    ) -> CommitMetadata:
        """Return the note of a batch that may be published, with the misses of its rules.

        Raises:
            BatchWithheldError: it may not; nothing was written. A batch from Kafka waits then,
                until a person decides.
        """
        with translate_expression_errors(self._spec, [each.range for each in metadata.ranges], {}):
            missed = self._rules.judge(engine, mode.judged) if mode.decided else {}
        counts = {f"{MISSED}{name}": each.rows for name, each in missed.items()}
        metadata = replace(metadata, counts={**metadata.counts, **counts})
        if not self._spec.publish.is_checked or self._has_passed(metadata):
            return metadata
        misses = [*self._misses(engine, mode, metadata, position, missed)]
        if not misses:
            return metadata
        batch = self._withheld(engine, metadata, position, misses)
        if self._accepted and self._accepted.id == batch.id:
            return replace(metadata, reason=self._accepted.reason)
        if metadata.kind != "ingest" or self._published is not None:
            what = "redone" if self._published is None else "rebuilt"
            raise unaccepted_error(self._spec, batch, what=what)
        self._withhold(engine, mode, metadata, batch)
        raise withheld_error(self._spec, batch, is_other=bool(self._accepted))

    def published(self) -> None:
        """Forget what waited, since a later batch is in the table."""
        if self._spec.publish.is_checked:
            forget_withheld(self._stream.paths, self._spec.publish.branch)

    def _has_passed(self, metadata: CommitMetadata) -> bool:
        """Tell whether a rebuild reads what the table in use has, and nothing beyond."""
        passed = self._published
        return passed is not None and all(
            each.range.end <= passed.get(each.range.topic_partition, 0) for each in metadata.ranges
        )

    def _misses(
        self,
        engine: Engine,
        mode: WriteMode,
        metadata: CommitMetadata,
        position: Position,
        missed: Mapping[str, Missed],
    ) -> Iterator[Miss]:
        for name, found in missed.items():
            rule = self._spec.expect[name]
            if rule.on_miss == "refuse":
                number = counted(found.rows, "row does", "rows do")
                what = f"{number} not meet {rule.rule}"
                examples = [_as_json(row) for row in found.examples]
                yield Miss(name=f"expect.{name}", what=what, rows=found.rows, examples=examples)
        if metadata.kind == "ingest" and metadata.counts["read"]:
            yield from self._guard(mode, metadata.counts, position)
        rows = mode.rows_of_seq(metadata.counts)
        for problem in imbalances(
            metadata.counts, rows_of_seq=rows, rows_expected=rows, kind=metadata.kind
        ):
            yield Miss(name="books", what=problem)
        if self._spec.expectations and mode.decided:
            yield from self._expectations(engine, mode)

    def _guard(
        self, mode: WriteMode, counts: Mapping[str, int], position: Position
    ) -> Iterator[Miss]:
        guard, read = self._spec.guard, counts["read"]
        if not guard.is_declared or read < (guard.at_least or 0):
            return
        if guard.rows_between:
            least, most = guard.rows_between
            if not least <= (rows := sum(mode.changes(counts).values())) <= most:
                what = f"it changes {counted(rows, 'row')}, and {least:,} to {most:,} are meant"
                yield Miss(name="guard.rows_between", what=what)
        deleted = counts.get("deleted", 0)
        if guard.share_of_deletes is not None and deleted:
            there = self._stream.paths.table.log().row_count() or 0
            if deleted > guard.share_of_deletes * there:
                what = f"it deletes {deleted:,} of the table's {counted(there, 'row')}, which is "
                what += f"more than {guard.share_of_deletes:.0%}"
                yield Miss(name="guard.share_of_deletes", what=what)
        new, keys = counts.get("inserted", 0), mode.decided
        if guard.new_keys is not None and new > guard.new_keys * keys:
            what = f"{new / keys:.0%} of its keys are new to the table, which is more than "
            yield Miss(name="guard.new_keys", what=f"{what}{guard.new_keys:.0%}")
        if guard.growth is not None:
            yield from self._growth(guard.growth, read, position)

    def _growth(self, most: float, read: int, position: Position) -> Iterator[Miss]:
        rows = Ledger(self._stream.paths.ledger).rows_of(position.table_id)
        before = [row.counts["read"] for row in rows if row.kind == "ingest" and row.counts["read"]]
        newest = before[-_MOST_BATCHES:]
        usual = max(median(newest), self._spec.guard.at_least or 0) if newest else 0
        if len(newest) >= _FEWEST_BATCHES and read > most * usual:
            what = f"it has {counted(read, 'record')}, more than {most:g} times the median of the "
            what += f"last {counted(len(newest), 'batch')}, {usual:,.0f}"
            yield Miss(name="guard.growth", what=what)

    def _expectations(self, engine: Engine, mode: WriteMode) -> Iterator[Miss]:
        # It imports Great Expectations, which takes seconds.
        from oncelake.ingestion.pipeline.gate.expectations import evaluate

        rows = rows_in_spark(engine, self._spark, mode.judged, is_local=self._is_local).drop(
            "_what"
        )
        outcomes = evaluate(
            self._spec.expectations, rows, declared_in=self._spec.file, table=self._spec.name
        )
        for outcome in outcomes:
            if not outcome.success and outcome.severity == "critical":
                yield Miss(name="expectations", what=str(outcome), rows=outcome.unexpected)

    def _withheld(
        self,
        engine: Engine,
        metadata: CommitMetadata,
        position: Position,
        misses: Sequence[Miss],
    ) -> WithheldBatch:
        (found,) = engine.rows("SELECT sum(CAST(_digest AS DECIMAL(38, 0))) AS records FROM batch")
        batch = WithheldBatch(
            table_id=position.table_id,
            seq=metadata.seq,
            epoch=metadata.epoch,
            judged_by=_fingerprint(self._spec),
            run_id=metadata.run_id,
            since=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            records=int(found["records"] or 0),
            ranges=tuple(each.range for each in metadata.ranges),
            counts=metadata.counts,
            misses=tuple(misses),
        )
        before = read_withheld(self._stream.paths)
        if before and before.place == batch.place:
            return replace(batch, since=before.since)
        return batch

    def _withhold(
        self, engine: Engine, mode: WriteMode, metadata: CommitMetadata, batch: WithheldBatch
    ) -> None:
        """Write down what waits: the rows first, so that evidence without rows is none."""
        paths, branch = self._stream.paths, self._spec.publish.branch
        refuse_lost_lease(paths)
        forget_withheld(paths, branch)
        if mode.decided:
            changes = ", ".join(map(text, mode.changing))
            rows = f"SELECT * FROM decided WHERE _what IN ({changes})"
            engine.write_parquet(rows, paths.gate / ROWS)
            if branch is not None:
                mode.stage(metadata, branch)
        write_withheld(paths, batch)


def _fingerprint(spec: StreamSpec) -> str:
    declared = spec.model_dump_json(by_alias=True, exclude_defaults=True)
    return hashlib.sha256(declared.encode()).hexdigest()[:16]


def _as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if _is_plain(value) else str(value) for name, value in row.items()}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
