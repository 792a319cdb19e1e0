"""Transactions that somebody left open: what holds the last stable offset back, and for how long.

Behind an open transaction nothing can be read, a run finds nothing new, and all looks well. Kafka
ends a transaction by itself after its producer's time-out, which a broker bounds to 15 minutes
(``transaction.max.timeout.ms``). One that is open for longer is either allowed to be, or hangs:
its coordinator has forgotten it, and only a person can end it (KIP-664).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ingestion.errors import IngestionError
from ingestion.kafka.admin import Kafka
from ingestion.kafka.java_admin import JavaAdmin, java_admin
from ingestion.kafka.offsets import Offsets, TopicPartition
from ingestion.settings import Settings

STALLED_AFTER: Final = dt.timedelta(minutes=15)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A partition that cannot be read to its end, and has not been for long.

    Attributes:
        at: The partition.
        offset: Its last stable offset, where the transaction began.
        since: When the transaction was begun or, of one that hangs, last written to; by the
            producer's clock in that case. ``None`` when nobody could tell.
        holder: Who left it open: the producer's id, and its transactional id if Kafka knows it.
        remedy: What to do.
    """

    at: TopicPartition
    offset: int
    since: dt.datetime | None
    holder: str
    remedy: str

    def __str__(self) -> str:
        """Say it in a line."""
        since = f" since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        return (
            f"{self.at} cannot be read beyond offset {self.offset}{since}: {self.holder} holds a "
            f"transaction open there. Next: {self.remedy}"
        )


def find_stalls(
    partitions: Iterable[TopicPartition], kafka: Kafka, settings: Settings
) -> tuple[Stall, ...]:
    """Find the partitions that an open transaction has held back for ``STALLED_AFTER``.

    The dates of the records, which are the producers' word, only raise the suspicion: who is
    suspected is then asked for by the Java client (confluent-kafka cannot), and a transaction
    that its coordinator began less than that ago is none.

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
        return _of_nobody(suspected, kafka, error)
    return tuple(stall for stall in found if not stall.since or stall.since <= began_before)


def _of_java(admin: JavaAdmin, kafka: Kafka, at: TopicPartition, offset: int) -> Stall:
    """Ask the partition's leader who is writing, and the coordinators what they know of that."""
    producer = admin.producer_at(at, offset)
    if producer is None:
        return Stall(
            at=at,
            offset=offset,
            since=None,
            holder="some producer",
            remedy=_abort(kafka, at, offset),
        )
    transaction = admin.transaction_of(producer.id)
    if transaction is None:
        return Stall(
            at=at,
            offset=offset,
            since=producer.last_written,
            holder=f"producer id {producer.id} (epoch {producer.epoch}; no coordinator knows the "
            "transaction, so it hangs)",
            remedy=_abort(kafka, at, offset),
        )
    return Stall(
        at=at,
        offset=offset,
        since=transaction.began,
        holder=f"producer id {producer.id} (transactional.id {transaction.id}, its coordinator "
        f"says {transaction.state}, time-out {transaction.timeout_seconds:g} s)",
        remedy=f"let that producer end its transaction, or start one with transactional.id "
        f"{transaction.id}, which aborts it",
    )


def _of_nobody(suspected: Offsets, kafka: Kafka, error: IngestionError) -> tuple[Stall, ...]:
    return tuple(
        Stall(
            at=at,
            offset=offset,
            since=None,
            holder=f"a producer that could not be asked for ({error})",
            remedy=_abort(kafka, at, offset),
        )
        for at, offset in suspected.items()
    )


def _abort(kafka: Kafka, at: TopicPartition, offset: int) -> str:
    return (
        f"when its producer is gone, kafka-transactions.sh --bootstrap-server {kafka.address} "
        f"abort --topic {at.topic} --partition {at.partition} --start-offset {offset}"
    )
