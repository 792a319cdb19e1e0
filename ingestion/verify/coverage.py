"""The coverage of a proof: not what Kafka no longer holds, nor what a person has accepted.

What is not covered counts neither as right nor as wrong; the verdict names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import counted
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.offsets import Range, TopicPartition
from oncelake.ingestion.recovery.continuity import refuse_shorter
from oncelake.ingestion.recovery.topics import changed_identity, refuse_another_topic
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables.commit_metadata import UNKNOWN
from oncelake.ingestion.verify.read.record import Place, RowChange, at_of, offset_of
from oncelake.ingestion.verify.read.snapshot import Batch, OffsetRange, Snapshot

_SIDE_TABLES = ("quarantine", "tombstones")
_ALTERED = "altered"
_CUT = "cut"
# What an acceptance counts that took table or side tables as they were.
_AS_IT_WAS = {_ALTERED, _CUT, *(f"{name}_written_off" for name in _SIDE_TABLES)}
# Batches that read what none had read before; the ranges of others have been read.
_READING = ("ingest", "accept", "adopt")
# The seq of the note by which a table was adopted; of its rows none has any.
ADOPTED: Final = 0


@dataclass(kw_only=True, slots=True)
class Coverage:
    """The coverage of a proof.

    Attributes:
        epoch: The epoch whose topics Kafka still has; earlier ones cannot be read again.
        earliest: First offset that Kafka still has, by partition.
        begin: Where the stream began in this epoch, by partition.
        is_ordered: Whether an earlier record can win over a later one.
        accepted: Batches whose outcome a person accepted as it is.
        accepted_through: A person accepted the table as it was after this batch; 0 if nobody did.
        unknown: Batches without any record left, so that what they read is unknown.
        thinned: Batches from which compaction has removed records since.
        is_remembered: Whether an earlier proof has covered what Kafka no longer holds.
        knows_adopted: Whether it is known which rows an adopted table had.
    """

    epoch: int
    earliest: Mapping[TopicPartition, int]
    begin: Mapping[TopicPartition, int]
    is_ordered: bool
    accepted: frozenset[int] = frozenset()
    accepted_through: int = 0
    unknown: frozenset[int] = frozenset()
    batches: Mapping[int, Batch] = field(default_factory=dict)
    thinned: set[int] = field(default_factory=set)
    is_remembered: bool = False
    knows_adopted: bool = False

    @property
    def adopted(self) -> Batch | None:
        """The note by which the table was adopted, if it was."""
        return self.batches.get(ADOPTED)

    def first_offset(self, at: TopicPartition) -> int:
        """Return the offset from which on a partition is proven."""
        if self.is_remembered:
            return self.begin.get(at, 0)
        return max(self.earliest.get(at, 0), self.begin.get(at, 0))

    @property
    def is_partial(self) -> bool:
        """Tell whether records of this epoch have been read that Kafka no longer holds."""
        gone = any(self.first_offset(at) > begin for at, begin in self.begin.items())
        return gone or bool(self.thinned) or bool(self.unknown)

    @property
    def lacks_records(self) -> bool:
        """Tell whether records have been read, of any epoch, that cannot be read again."""
        return self.epoch > 1 or self.is_partial

    @property
    def is_unseen(self) -> bool:
        """Tell whether a table was adopted of which nobody knows what rows it had."""
        return self.adopted is not None and not self.knows_adopted

    @property
    def may_lack_rows(self) -> bool:
        """Tell whether a delete that cannot be read again may explain why a row is missing."""
        is_adopted = self.knows_adopted and self.lacks_records
        return is_adopted or (self.is_ordered and self.is_partial)

    @property
    def proven_ranges(self) -> tuple[Range, ...]:
        """The proven ranges, one a partition."""
        batches = (batch for batch in self.batches.values() if batch.kind in _READING)
        covered = (part for batch in batches for part in self.covered_ranges(batch))
        return tuple(
            Range(topic=at.topic, partition=at.partition, start=self.first_offset(at), end=end)
            for at, end in sorted({part.at: part.end for part in covered}.items())
        )

    def covers(self, batch: Batch) -> bool:
        """Tell whether all of a batch can be read again."""
        return batch.epoch == self.epoch and all(
            part.start >= self.first_offset(part.at) for part in batch.ranges if part.span
        )

    def can_recount(self, batch: Batch) -> bool:
        """Tell whether a batch's counts can be compared with its records."""
        is_judged = not self.is_accepted(batch.seq) and batch.seq not in self.thinned
        return is_judged and self.covers(batch)

    def covered_ranges(self, batch: Batch) -> list[OffsetRange]:
        """Return the parts of a batch's ranges that can be read again."""
        ranges = batch.ranges if batch.epoch == self.epoch else ()
        cut = (r._replace(start=max(r.start, self.first_offset(r.at))) for r in ranges)
        return [part for part in cut if part.span]

    def covers_record(self, place: Place, seq: int) -> bool:
        """Tell whether the record at a place, if there is one, can be read again."""
        is_gone = place[0] < self.epoch or offset_of(place) < self.first_offset(at_of(place))
        return not is_gone and seq not in self.thinned and seq not in self.unknown

    def epoch_of(self, seq: int) -> int:
        """Return the epoch of a batch; for an unknown one the current."""
        return self.batches[seq].epoch if seq in self.batches else self.epoch

    @property
    def last_seq(self) -> int:
        """The newest batch that is proven."""
        return max(self.batches, default=0)

    def has_read(self, place: Place, seq: int) -> bool:
        """Tell whether a batch has read the record at a place by the ledger, or may have."""
        if seq in self.unknown:
            return True
        batch = self.batches.get(seq)
        readers = [batch] if batch else []
        if batch and batch.kind == "redrive":
            readers = [other for other in self.batches.values() if other.seq < seq]
        return any(
            (reader.epoch, part.at) == (place[0], at_of(place))
            and part.start <= offset_of(place) < part.end
            for reader in readers
            for part in reader.ranges
        )

    def has_replayed(self, place: Place, seq: int) -> bool:
        """Tell whether a batch is a replay that has read the record at a place."""
        batch = self.batches.get(seq)
        return batch is not None and batch.kind == "replay" and self.has_read(place, seq)

    def doubts(self, state: RowChange | None) -> bool:
        """Tell whether the table may have held another state of a key."""
        if state is None:
            return self.is_unseen or self.lacks_records or self.accepted_through > 0
        is_late = self.is_ordered and (self.is_unseen or self.is_partial)
        is_replaced = state.seq == ADOPTED and self.lacks_records
        return is_late or is_replaced or self.is_accepted(state.seq)

    def is_accepted(self, seq: int) -> bool:
        """Tell whether a person accepted what a batch, or an adoption, left behind."""
        return seq in self.accepted or (0 < self.accepted_through >= seq)

    def limits(self) -> Iterator[str]:
        """Say what could not be proven, a sentence each."""
        for at, begin in sorted(self.begin.items()):
            if (first := self.first_offset(at)) > begin:
                yield (
                    f"{at}: proven from offset {first} on; Kafka no longer holds [{begin}, {first})"
                )
        batches = self.batches.values()
        if earlier := [b.seq for b in batches if b.epoch < self.epoch and b.ranges]:
            yield (
                f"epoch {self.epoch} began after batch {earlier[-1]}, as a topic was made again: "
                f"batches {earlier[0]} to {earlier[-1]} were not recounted, and their rows were "
                "compared only with newer records of their keys"
            )
        for batch in batches:
            if batch.accepted is not None and batch.seq != ADOPTED:
                yield from self._accepted(batch)
        if self.thinned:
            named = ", ".join(map(str, sorted(self.thinned)[:20]))
            batches_since = counted(len(self.thinned), "batch")
            yield f"compaction has removed records of {batches_since} since: {named}"

    def _accepted(self, batch: Batch) -> Iterator[str]:
        if batch.counts.get("lost"):
            lost = ", ".join(str(part) for part in batch.ranges if part.span)
            yield f"batch {batch.seq}: {lost} was lost, and that was accepted: {batch.accepted}"
        elif batch.seq in self.accepted:
            yield (
                f"batch {batch.seq}: its books do not balance, and that was accepted: "
                f"{batch.accepted}; what it left behind was not judged"
            )
        if batch.seq == self.accepted_through:
            what = "the table was accepted as somebody had changed it"
            given_up = [n for n in _SIDE_TABLES if f"{n}_written_off" in batch.counts]
            if _CUT in batch.counts:
                what = "Kafka had lost records that had been read, and the table was accepted"
            elif given_up and _ALTERED not in batch.counts:
                what = f"what {' and '.join(given_up)} held was given up"
            yield (
                f"batch {batch.seq}: {what}: {batch.accepted}; what earlier batches left behind "
                "was not judged"
            )


def accepted_in(batches: Sequence[Batch]) -> tuple[frozenset[int], int]:
    """Return the red batches that were accepted, and the last acceptance of the table as it was.

    An ``accept`` counts what it took.
    """
    red = frozenset(b.seq for b in batches if b.kind != "accept" and not b.balanced and b.accepted)
    decisions = (batch for batch in batches if batch.kind == "accept")
    as_it_was = (each.seq for each in decisions if not _AS_IT_WAS.isdisjoint(each.counts))
    return red, max(as_it_was, default=0)


def determine_coverage(spec: StreamSpec, settings: Settings, snapshot: Snapshot) -> Coverage:
    """Compare what the batches have read with what Kafka still holds.

    Raises:
        RefusedError: topic, cluster or declaration is not the one the table was filled from.
        DependencyError: Kafka does not answer.
    """
    identity, batches = snapshot.identity, snapshot.batches
    if finding := changed_identity(spec, identity):
        raise finding
    epoch = batches[-1].epoch if batches else 1
    mine = (batch for batch in batches if batch.epoch == epoch and batch.kind in _READING)
    read = [part for batch in mine for part in batch.ranges]
    begin = {part.at: part.start for part in reversed(read)}
    kafka, ends = Kafka(settings), {part.at: part.end for part in read}
    partitions = set(refuse_another_topic(spec, kafka, identity).partitions)
    # A topic that is no longer declared was read all the same, and may be gone without harm.
    others = {at.topic for at in begin} - {*spec.subscribed}
    found = kafka.known_topics(others, refuse_hidden=True)
    known = found.ids if identity == UNKNOWN else identity.topic_ids
    same = {name for name, _ in found.ids.items() & known.items()}
    partitions.update(at for at in found.partitions if at.topic in same)
    stable = kafka.stable_end(partitions)
    gone = {at: end for at, end in ends.items() if at.topic in others and stable.get(at, -1) < end}
    kept = {at: end for at, end in ends.items() if at not in gone}
    refuse_shorter(spec.name, kept, {**dict.fromkeys(kept, 0), **stable})
    accepted, through = accepted_in(batches)
    return Coverage(
        epoch=epoch,
        earliest={**kafka.earliest(partitions), **gone},
        begin=begin,
        is_ordered=bool(spec.sequence_by) or spec.mode == "insert_only",
        accepted=accepted,
        accepted_through=through,
        unknown=frozenset(snapshot.unknown),
        batches={batch.seq: batch for batch in batches},
    )
