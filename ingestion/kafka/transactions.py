"""Open transactions that hold back the last stable offset, and for how long.

Records after an open transaction cannot be read, so a run finds nothing new and everything looks
normal. Kafka ends a transaction after its producer's time-out, which a broker limits to 15 minutes
(``transaction.max.timeout.ms``). One that stays open longer is either configured so, or hangs: its
coordinator no longer knows it, and only a person can end it (KIP-664).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ingestion.errors import IngestionError
from ingestion.kafka.admin import Kafka
from ingestion.kafka.java_admin import JavaAdmin, java_admin
from ingestion.kafka.offsets import TopicPartition
from ingestion.settings import Settings

STALLED_AFTER: Final = dt.timedelta(minutes=15)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A partition that an open transaction has kept from being read to its end for long.

    Attributes:
        offset: Its last stable offset, where the transaction began.
        since: When the transaction began or, if it hangs, when it was last written to, by the
            producer's clock. ``None`` if unknown.
        holder: The producer's id, and its transactional id if Kafka knows it.
    """

    at: TopicPartition
    offset: int
    since: dt.datetime | None
    holder: str
    remedy: str

    def __str__(self) -> str:
        since = f" since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        return (
            f"{self.at} cannot be read beyond offset {self.offset}{since}: {self.holder} holds a "
            f"transaction open there. Next: {self.remedy}"
        )


def find_stalls(
    partitions: Iterable[TopicPartition], kafka: Kafka, settings: Settings
) -> tuple[Stall, ...]:
    """Find the partitions that an open transaction has held back for ``STALLED_AFTER``.

    The records' timestamps, which producers set, only give candidates. The Java client then
    requests the transaction of each (confluent-kafka cannot); one that began later, by its
    coordinator's clock, is left out.

    Raises:
        DependencyError: Kafka does not answer.
    """
    began_before = dt.datetime.now(dt.UTC) - STALLED_AFTER
    suspected = kafka.withheld(partitions, since=began_before)
    if not suspected:
        return ()
    try:
        with java_admin(settings) as admin:
            found = [_of_java(admin, kafka, at, offset) for at, offset in suspected.items()]
    except IngestionError as error:
        unknown = f"an unknown producer ({error})"
        return tuple(_to_abort(kafka, at, offset, unknown) for at, offset in suspected.items())
    return tuple(stall for stall in found if not stall.since or stall.since <= began_before)


def _of_java(admin: JavaAdmin, kafka: Kafka, at: TopicPartition, offset: int) -> Stall:
    """Request the producer from the partition's leader, and its transaction from coordinators."""
    producer = admin.producer_at(at, offset)
    if producer is None:
        return _to_abort(kafka, at, offset, "an unknown producer")
    transaction = admin.transaction_of(producer.id)
    if transaction is None:
        holder = (
            f"producer id {producer.id} (epoch {producer.epoch}; no coordinator knows the "
            "transaction, so it hangs)"
        )
        return _to_abort(kafka, at, offset, holder, since=producer.last_written)
    return Stall(
        at=at,
        offset=offset,
        since=transaction.began,
        holder=f"producer id {producer.id} (transactional.id {transaction.id}, its coordinator "
        f"says {transaction.state}, time-out {transaction.timeout_seconds:g} s)",
        remedy=f"let that producer end its transaction, or start one with transactional.id "
        f"{transaction.id}, which aborts it",
    )


def _to_abort(
    kafka: Kafka, at: TopicPartition, offset: int, holder: str, *, since: dt.datetime | None = None
) -> Stall:
    remedy = (
        f"when its producer is gone, kafka-transactions.sh --bootstrap-server {kafka.address} "
        f"abort --topic {at.topic} --partition {at.partition} --start-offset {offset}"
    )
    return Stall(at=at, offset=offset, since=since, holder=holder, remedy=remedy)
