"""How far a proof can see: what Kafka no longer holds, and what a person has accepted.

What cannot be seen is never taken for right or wrong. It is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ingestion.kafka.offsets import Range, TopicPartition
from ingestion.proof.batch import Batch, Stretch
from ingestion.proof.record import Change, Place, at_of, offset_of

_SIDE_TABLES = ("quarantine", "tombstones")


@dataclass(kw_only=True, slots=True)
class Horizon:
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

    def seen_of(self, batch: Batch) -> list[Stretch]:
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

    def doubts(self, state: Change | None) -> bool:
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
