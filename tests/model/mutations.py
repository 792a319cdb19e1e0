"""Protocols that are wrong in one place: the model must find out about each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import ingestion.batch
import ingestion.healing
import ingestion.operations.accept
import ingestion.operations.adopt_topic
import ingestion.run
import ingestion.start
from ingestion.gaps import Gaps
from ingestion.ledger import LedgerRow
from ingestion.offsets import Fit, Offsets, Range
from tests.model import query, rules, sink
from tests.model.lake import ModelLedger, Table
from tests.model.sink import ModelUpsert
from tests.model.world import World

Mutation = Callable[[], AbstractContextManager[Any]]


def _nothing(*_: Any, **__: Any) -> Any:
    return None


@contextmanager
def _all(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def no_lock() -> AbstractContextManager[Any]:
    """Two runs at once, and both go on."""

    def free(*_: Any) -> AbstractContextManager[None]:
        return nullcontext()

    return _all(
        patch.object(ingestion.run, "held_by_python", free),
        patch.object(ingestion.run, "held_by_jvm", free),
    )


def a_lease_instead_of_a_kernel_lock() -> AbstractContextManager[Any]:
    """The lock can be lost while side rows are at stake, which no ``txn`` fences."""

    def lose_it(world: World, dice: Any) -> bool:
        before, world.has_lease = world.has_lease, True
        try:
            return rules.lose_the_lock(world, dice)
        finally:
            world.has_lease = before

    weighed = tuple(
        (lose_it if rule is rules.lose_the_lock else rule, n) for rule, n in rules.RULES
    )
    return patch("tests.model.explore.RULES", weighed)


def no_txn_fence() -> AbstractContextManager[Any]:
    """A zombie's commit lands beside the one that replaced it."""
    honest = Table.__init__

    def unfenced(table: Table, *given: Any, **named: Any) -> None:
        honest(table, *given, **named)
        table.fences = False

    return patch.object(Table, "__init__", unfenced)


def no_read_back() -> AbstractContextManager[Any]:
    """A statement that Delta skipped is taken for a commit."""

    def trusting(writer: Any, note: Any, *, after: int) -> Any:
        found = writer._log.find("s", note.seq)
        return replace(found, note=note)

    return patch.object(ingestion.batch.BatchWriter, "_find", trusting)


def ledger_before_commit() -> AbstractContextManager[Any]:
    """The ledger says what may never come."""
    honest = ModelUpsert.commit

    def commit(upsert: Any, note: Any) -> None:
        last = upsert._paths.data.table.commits[-1]
        row = LedgerRow.of(note, last, "table", counts=note.counts)
        ModelLedger(upsert._paths.ledger).put(row)
        honest(upsert, note)

    return patch.object(ModelUpsert, "commit", commit)


def position_from_the_checkpoint() -> AbstractContextManager[Any]:
    """Spark's checkpoint is believed before the table."""

    def reading(_spark: Any, _spec: Any, world: Any, *, starting: Offsets) -> query.Stream:
        return query.Stream(world, Offsets({**starting, **(world.checkpoint or {})}))

    return patch.object(ingestion.run, "read_stream", reading)


def quarantine_after_the_commit() -> AbstractContextManager[Any]:
    """A crash in between leaves bad records nowhere."""
    put_off: list[tuple[Any, Any, int]] = []
    honest = ModelUpsert.account

    def later(bad: Any, paths: Any, seq: int) -> int:
        put_off.append((bad, paths, seq))
        return len(bad)

    def account(upsert: Any, commit: Any) -> Any:
        while put_off:
            sink.quarantine(*put_off.pop())
        return honest(upsert, commit)

    return _all(
        patch.object(ingestion.batch, "quarantine", later),
        patch.object(ModelUpsert, "account", account),
    )


def tombstones_not_remembered() -> AbstractContextManager[Any]:
    """A late update raises the dead."""
    return patch.object(ModelUpsert, "_dead", lambda upsert: {})


def side_rows_not_cleaned() -> AbstractContextManager[Any]:
    """What a dead attempt wrote beside the table stays."""
    return patch.object(ingestion.healing, "remove_beyond", _nothing)


def unknown_partition_starts_at_its_end() -> AbstractContextManager[Any]:
    """What came into a new partition before we saw it is skipped."""
    honest = ingestion.start.offsets_to_read

    def late(spec: Any, position: Any, kafka: Any, topics: Any) -> Any:
        moved = replace(position, next=position.next.with_new(kafka.stable_end(topics.partitions)))
        return honest(spec, moved, kafka, topics)

    return patch.object(ingestion.start, "offsets_to_read", late)


def topic_id_ignored() -> AbstractContextManager[Any]:
    """A topic that was made again is read on from the old offsets."""
    ask = _ask_only
    return _all(
        patch.object(ingestion.start, "refuse_another_topic", ask),
        patch.object(ingestion.batch, "refuse_another_topic", ask),
    )


def topic_id_asked_only_at_the_start() -> AbstractContextManager[Any]:
    """A topic that is made again during a run goes unnoticed."""
    return patch.object(ingestion.batch, "refuse_another_topic", _ask_only)


def _ask_only(spec: Any, kafka: Any, identity: Any) -> Any:
    return kafka.topics(spec.name, spec.subscribed)


def heal_omitted() -> AbstractContextManager[Any]:
    """What a crash swallowed stays swallowed."""
    return patch.object(ingestion.start, "heal", lambda *_: ())


def decisions_do_not_heal() -> AbstractContextManager[Any]:
    """A person's word takes the seq whose rows a dead attempt left beside the table."""
    return _all(
        patch.object(ingestion.operations.accept, "heal", _nothing),
        patch.object(ingestion.operations.adopt_topic, "heal", _nothing),
    )


def end_offset_off_by_one() -> AbstractContextManager[Any]:
    """The position is one short of what was read."""

    def advanced(here: Offsets, ranges: Any) -> Offsets:
        return Offsets({**here, **{r.topic_partition: max(r.start, r.end - 1) for r in ranges}})

    return patch.object(Offsets, "advanced_by", advanced)


def repeated_batches_not_recognised() -> AbstractContextManager[Any]:
    """A batch that comes again is new to the table."""

    def everything_is_new(planned: Any, reached: Offsets) -> Fit:
        return Fit(fresh=tuple(planned), holes=(), overlap=())

    return patch.object(ingestion.batch, "fit", everything_is_new)


def red_forgotten() -> AbstractContextManager[Any]:
    """A batch that does not balance does not stop the next run."""
    return patch.object(ingestion.start, "refuse_red", _nothing)


def no_tolerance_left_out() -> AbstractContextManager[Any]:
    """Books that are off by one pass."""
    return patch.object(ingestion.batch, "imbalances", lambda *_, **__: ())


def gaps_not_proven() -> AbstractContextManager[Any]:
    """A record that Spark passed over counts as a gap."""

    def trusting(copy: Any, planned: Any, tally: Any, **_: Any) -> Gaps:
        held = {(each.partition, each.offset) for each in copy}
        missing = [
            Range(topic=part.topic, partition=part.partition, start=offset, end=offset + 1)
            for part in planned
            for offset in range(part.start, part.end)
            if (part.partition, offset) not in held
        ]
        return Gaps(holes=tuple(missing), proven=True)

    return patch.object(ingestion.batch, "find_gaps", trusting)


MUTATIONS: tuple[Mutation, ...] = (
    no_lock,
    a_lease_instead_of_a_kernel_lock,
    no_txn_fence,
    no_read_back,
    ledger_before_commit,
    position_from_the_checkpoint,
    quarantine_after_the_commit,
    tombstones_not_remembered,
    side_rows_not_cleaned,
    unknown_partition_starts_at_its_end,
    topic_id_ignored,
    topic_id_asked_only_at_the_start,
    heal_omitted,
    decisions_do_not_heal,
    end_offset_off_by_one,
    repeated_batches_not_recognised,
    red_forgotten,
    no_tolerance_left_out,
    gaps_not_proven,
)
