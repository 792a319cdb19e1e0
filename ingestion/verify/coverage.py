"""How far a proof can see: what Kafka no longer holds, and what a person has accepted.

What cannot be seen is never taken for right or wrong. It is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import TopicTruncatedError
from ingestion.kafka.admin import Kafka
from ingestion.kafka.offsets import Range, TopicPartition
from ingestion.lake.commit_metadata import UNKNOWN, Identity
from ingestion.recovery.topics import refuse_another_topic, refuse_changed_identity
from ingestion.settings import Settings
from ingestion.verify.read.delta_log import Batch, LoggedCommit, OffsetRange
from ingestion.verify.read.record import Place, RowChange, at_of, offset_of

_SIDE_TABLES = ("quarantine", "tombstones")


@dataclass(kw_only=True, slots=True)
class Coverage:
    """What a proof can see.

    Attributes:
        epoch: The epoch whose topics Kafka still has; earlier ones can be read no more.
        earliest: First offset that Kafka still has, a partition.
        begin: Where the stream began in this epoch, a partition.
        is_ordered: Whether a record can be beaten by one that came before it.
        doubted: Batches whose outcome a person accepted as it is.
        doubted_through: A person accepted the table as it was after this batch.
        batches: Every batch, by seq.
        thinned: Batches from which compaction has removed records since.
    """

    epoch: int
    earliest: Mapping[TopicPartition, int]
    begin: Mapping[TopicPartition, int]
    is_ordered: bool
    doubted: frozenset[int] = frozenset()
    doubted_through: int = 0
    batches: Mapping[int, Batch] = field(default_factory=dict)
    thinned: set[int] = field(default_factory=set)

    def first(self, at: TopicPartition) -> int:
        """Return the offset from which on a partition is proven."""
        return max(self.earliest.get(at, 0), self.begin.get(at, 0))

    @property
    def is_blind(self) -> bool:
        """Tell whether records of this epoch have been read that Kafka no longer holds."""
        gone = any(self.first(at) > begin for at, begin in self.begin.items())
        return gone or bool(self.thinned)

    @property
    def reached(self) -> tuple[Range, ...]:
        """What is proven, one range a partition."""
        ends = {part.at: part.end for each in self.batches.values() for part in self.seen_of(each)}
        return tuple(
            Range(topic=at.topic, partition=at.partition, start=self.first(at), end=end)
            for at, end in sorted(ends.items())
        )

    def sees(self, batch: Batch) -> bool:
        """Tell whether all of a batch can be read again."""
        return batch.epoch == self.epoch and all(
            part.start >= self.first(part.at) for part in batch.ranges if part.span
        )

    def can_recount(self, batch: Batch) -> bool:
        """Tell whether a batch's counts can be held against its records."""
        is_judged = not self.is_accepted(batch.seq) and batch.seq not in self.thinned
        return is_judged and self.sees(batch)

    def seen_of(self, batch: Batch) -> list[OffsetRange]:
        """Return what of a batch can be read again."""
        if batch.epoch != self.epoch:
            return []
        cut = (part._replace(start=max(part.start, self.first(part.at))) for part in batch.ranges)
        return [part for part in cut if part.span]

    def sees_record(self, place: Place, seq: int) -> bool:
        """Tell whether the record at a place would have been read again, if there is one."""
        is_gone = place[0] < self.epoch or offset_of(place) < self.first(at_of(place))
        return not is_gone and seq not in self.thinned

    def epoch_of(self, seq: int) -> int:
        """Return the epoch of a batch; of one that nobody knows, the current."""
        return self.batches[seq].epoch if seq in self.batches else self.epoch

    def remembers(self, place: Place, seq: int) -> bool:
        """Tell whether the ledger says that a batch has read the record at a place."""
        batch = self.batches.get(seq)
        if batch is not None and batch.kind == "redrive":
            earlier = [each for each in self.batches.values() if each.seq < seq]
        else:
            earlier = [batch] if batch else []
        return any(
            (each.epoch, part.at) == (place[0], at_of(place))
            and part.start <= offset_of(place) < part.end
            for each in earlier
            for part in each.ranges
        )

    def doubts(self, state: RowChange | None) -> bool:
        """Tell whether the table may have held something else than ``state`` of a key."""
        if state is None:
            return self.epoch > 1 or self.is_blind or self.doubted_through > 0
        return self.is_accepted(state.seq) or (self.is_blind and self.is_ordered)

    def is_accepted(self, seq: int) -> bool:
        """Tell whether a person accepted what a batch left behind."""
        return seq in self.doubted or 0 < seq <= self.doubted_through

    def limits(self) -> Iterator[str]:
        """Say what could not be proven, a sentence each."""
        for at, begin in sorted(self.begin.items()):
            if self.first(at) > begin:
                yield (
                    f"{at}: proven from offset {self.first(at)} on; Kafka no longer holds "
                    f"[{begin}, {self.first(at)})"
                )
        earlier = [
            batch.seq
            for batch in self.batches.values()
            if batch.epoch < self.epoch and batch.ranges
        ]
        if earlier:
            yield (
                f"epoch {self.epoch} began behind batch {earlier[-1]}: the topics of batches "
                f"{earlier[0]} to {earlier[-1]} are gone, so their counts were not recounted, and "
                "their rows were held only against newer records of their keys"
            )
        for batch in self.batches.values():
            yield from self._accepted(batch)
        if self.thinned:
            named = ", ".join(map(str, sorted(self.thinned)[:20]))
            yield f"compaction has removed records of {len(self.thinned)} batches since: {named}"

    def _accepted(self, batch: Batch) -> Iterator[str]:
        if batch.accepted is None:
            return
        if batch.counts.get("lost"):
            lost = ", ".join(str(part) for part in batch.ranges if part.span)
            yield f"batch {batch.seq}: {lost} was lost, and that was accepted: {batch.accepted}"
        elif batch.seq in self.doubted:
            yield (
                f"batch {batch.seq}: its books do not balance, and that was accepted: "
                f"{batch.accepted}; what it left behind was not judged"
            )
        elif batch.seq == self.doubted_through:
            given_up = [name for name in _SIDE_TABLES if f"{name}_written_off" in batch.counts]
            what = (
                f"what {' and '.join(given_up)} held was given up"
                if given_up
                else "the table was accepted as somebody had restored it"
            )
            yield (
                f"batch {batch.seq}: {what}: {batch.accepted}; what earlier batches left behind "
                "was not judged"
            )


def doubted_in(batches: Sequence[Batch]) -> tuple[frozenset[int], int]:
    """Return the red batches that were accepted, and the last acceptance of a restored table.

    An ``accept`` that lost nothing, began no epoch and names no red batch took the table as
    somebody's RESTORE had left it.
    """
    red = frozenset(b.seq for b in batches if b.kind != "accept" and not b.balanced and b.accepted)
    through, epoch, reasons = 0, 1, {b.accepted for b in batches if b.seq in red}
    for batch in batches:
        begins_epoch, epoch = batch.epoch > epoch, batch.epoch
        is_plain = batch.kind == "accept" and not begins_epoch and not batch.counts.get("lost")
        if is_plain and batch.accepted not in reasons:
            through = batch.seq
    return red, through


def determine_coverage(spec: StreamSpec, settings: Settings, identity: Identity,
                batches: Sequence[Batch]) -> Coverage:  # fmt: skip
    """See how far a proof can see.

    Raises:
        RefusedError: topic, cluster or declaration is not the one the table was filled from.
        DependencyError: Kafka does not answer.
    """
    refuse_changed_identity(spec, identity)
    epoch = batches[-1].epoch if batches else 1
    read = [part for batch in batches if batch.epoch == epoch for part in batch.ranges]
    begin = {part.at: part.start for part in reversed(read)}
    topics = dict.fromkeys([*spec.subscribed, *(at.topic for at in begin)])
    # A topic that is no longer declared was read all the same.
    every = spec.model_copy(update={"topic": None, "topics": tuple(topics)})
    kafka = Kafka(settings)
    there = refuse_another_topic(every, kafka, identity).partitions
    _refuse_truncated(spec.name, {p.at: p.end for p in read}, kafka.stable_end(there))
    doubted, through = doubted_in(batches)
    return Coverage(
        epoch=epoch,
        earliest=kafka.earliest(there),
        begin=begin,
        is_ordered=bool(spec.sequence_by),
        doubted=doubted,
        doubted_through=through,
        batches={batch.seq: batch for batch in batches},
    )


def identity_in(commits: Sequence[LoggedCommit]) -> Identity:
    """Return what the newest commit of ours says of topics, keys and order."""
    metadata = [
        commit.metadata for commit in commits if commit.metadata and "identity" in commit.metadata
    ]
    if not metadata:
        return UNKNOWN
    said = metadata[-1]["identity"]
    return Identity(
        cluster_id=said["cluster_id"],
        topic_ids=said["topic_ids"],
        keys=tuple(said["keys"]),
        order=tuple(said["order"]),
        rule=said.get("rule", "upsert"),
    )


def _refuse_truncated(
    stream: str, ends: Mapping[TopicPartition, int], there: Mapping[TopicPartition, int]
) -> None:
    for at, end in ends.items():
        if there.get(at, -1) < end:
            raise TopicTruncatedError(
                stream,
                f"{at} ends at offset {there.get(at, 'nowhere')}, and the table has read up to "
                f"{end}: the topic has lost records that the table holds.",
                remedy=f"oncelake adopt-topic {stream}, to read on from the topic as it is now",
            )
