"""The judgement of a batch between its decision and its commit.

    decided → misses of rules → guard → books → expectations → published, or held back

What is held back changes nothing: no row is written, no offset moves, and what the batch would have
been lies beside the tables until a person decides; see ``ingestion.lake.held``.
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
from oncelake.ingestion.errors import NOTHING_WRITTEN, BatchHeldError, counted
from oncelake.ingestion.lake.books import imbalances
from oncelake.ingestion.lake.held import (
    ROWS,
    HeldBatch,
    Miss,
    forget_held,
    read_held,
    write_held,
)
from oncelake.ingestion.lake.ledger import Ledger
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.modes.mode import WriteMode
from oncelake.ingestion.pipeline.gate.rules import Missed, RowRules, rows_in_spark
from oncelake.ingestion.pipeline.spark.errors import translate_expression_errors
from oncelake.ingestion.recovery.position import Position
from oncelake.ingestion.tables.commit_metadata import CommitMetadata

# What stands before a rule's name among the counts of a commit.
MISSED: Final = "expect."
# So many batches give the median that a batch's growth is measured by, at least and most.
_FEWEST_BATCHES, _MOST_BATCHES = 3, 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """A batch that a person lets through the gate, and why."""

    held: HeldBatch
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
    ) -> None:
        """Take what judges; ``accepted`` is the one batch that passes whatever is found."""
        self._stream, self._spec, self._spark = stream, stream.spec, spark
        self._rules = RowRules.of(stream.spec, spark, is_local=is_local)
        self._accepted = accepted

    def judge(
        self, engine: Engine, mode: WriteMode, metadata: CommitMetadata, position: Position
    ) -> CommitMetadata:
        """Return the note of a batch that may be published, with the misses of its rules.

        Raises:
            BatchHeldError: it may not; nothing was written. A batch from Kafka waits then, until
                a person decides.
        """
        with translate_expression_errors(self._spec, [each.range for each in metadata.ranges], {}):
            missed = self._rules.judge(engine, mode.written) if mode.decided else {}
        counts = {f"{MISSED}{name}": each.rows for name, each in missed.items()}
        metadata = replace(metadata, counts={**metadata.counts, **counts})
        if self._spec.publish != "checked":
            return metadata
        misses = [*self._misses(engine, mode, metadata, position, missed)]
        if not misses:
            return metadata
        held = self._held(metadata, position, misses)
        if self._accepted and self._accepted.held.is_same(held):
            return replace(metadata, reason=self._accepted.reason)
        if metadata.kind == "ingest":
            self._hold(engine, mode, held)
        raise held_error(self._spec, held, kind=metadata.kind, is_other=bool(self._accepted))

    def published(self) -> None:
        """Forget what waited, since a later batch is in the table."""
        if self._spec.publish == "checked":
            forget_held(self._stream.paths)

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
                what = f"{counted(found.rows, 'row')} {_DO_NOT_MEET[found.rows == 1]} {rule.rule}"
                examples = [_as_json(row) for row in found.examples]
                yield Miss(name=f"expect.{name}", what=what, rows=found.rows, examples=examples)
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

        rows = rows_in_spark(engine, self._spark, mode.written).drop("_what")
        outcomes = evaluate(
            self._spec.expectations, rows, declared_in=self._spec.file, table=self._spec.name
        )
        for outcome in outcomes:
            if not outcome.success and outcome.severity == "critical":
                yield Miss(name="expectations", what=str(outcome), rows=outcome.unexpected)

    def _held(
        self, metadata: CommitMetadata, position: Position, misses: Sequence[Miss]
    ) -> HeldBatch:
        return HeldBatch(
            table_id=position.table_id,
            seq=metadata.seq,
            epoch=metadata.epoch,
            judged_by=_fingerprint(self._spec),
            run_id=metadata.run_id,
            since=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            ranges=tuple(each.range for each in metadata.ranges),
            counts=metadata.counts,
            misses=tuple(misses),
        )

    def _hold(self, engine: Engine, mode: WriteMode, held: HeldBatch) -> None:
        """Write down what waits: the rows first, so that evidence without rows is none."""
        paths = self._stream.paths
        forget_held(paths)
        if mode.decided:
            changes = ", ".join(f"'{each}'" for each in mode.changing)
            engine.write_parquet(
                f"SELECT * FROM decided WHERE _what IN ({changes})", paths.gate / ROWS
            )
        write_held(paths, held)


_DO_NOT_MEET: Final = ("do not meet", "does not meet")


def waiting(spec: StreamSpec, paths: StreamPaths, position: Position | None) -> HeldBatch | None:
    """Return the batch that waits at a stream's gate, if the table stands where it was judged."""
    if position is None or spec.publish != "checked":
        return None
    held = read_held(paths)
    place = (position.table_id, position.seq + 1, position.epoch)
    return held if held and (held.table_id, held.seq, held.epoch) == place else None


def refuse_waiting(stream: Stream, position: Position) -> None:
    """Refuse to read what was judged already, by the same declaration.

    Raises:
        BatchHeldError: a batch waits, and nothing has changed that could let it pass.
    """
    held = waiting(stream.spec, stream.paths, position)
    if held and held.judged_by == _fingerprint(stream.spec):
        raise held_error(stream.spec, held)


def held_error(
    spec: StreamSpec, held: HeldBatch, *, kind: str = "ingest", is_other: bool = False
) -> BatchHeldError:
    """Return the error of a batch that is held back.

    Args:
        kind: Of the commit that it would have been: only a batch from Kafka can be accepted.
        is_other: Whether a person has accepted another.
    """
    name, what = spec.name, "; ".join(map(str, held.misses))
    ranges = ", ".join(str(each) for each in held.ranges if len(each)) or "no offsets"
    problem = f"a batch of {ranges} is not published (since {held.since}): {what}."
    correct = f"correct {spec.file} or the producer, and run again"
    if kind != "ingest":
        return BatchHeldError(
            name, f"a {kind} is not published: {what}. {NOTHING_WRITTEN}", remedy=correct
        )
    if is_other:
        problem = f"the batch is another than the one that was accepted: {problem}"
    return BatchHeldError(
        name,
        f"{problem} {NOTHING_WRITTEN}",
        remedy=f"oncelake batch {name} shows it; then {correct}, or let `where` or `on_miss: "
        f"quarantine` take the records out, or oncelake accept {name} --reason … publishes it as "
        "it is",
    )


def _fingerprint(spec: StreamSpec) -> str:
    text = spec.model_dump_json(by_alias=True, exclude_defaults=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if _is_plain(value) else str(value) for name, value in row.items()}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
