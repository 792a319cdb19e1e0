"""Reads a topic as any consumer of committed records does."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from oncelake.ingestion.kafka.client import client_options
from oncelake.ingestion.settings import Settings


def committed_records(settings: Settings, name: str, *, seconds: float = 0.0) -> list[Message]:
    """Read a topic as any reader of committed records does, up to where it is stable."""
    found: list[Message] = []
    options = {"group.id": name, "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({**client_options(settings), **options})
    partitions = consumer.list_topics(name).topics[name].partitions
    consumer.assign([ClientTopicPartition(name, partition, 0) for partition in partitions])
    ends, deadline = set[int](), time.monotonic() + seconds
    while len(ends) < len(partitions) or time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error():
            ends.add(int(message.partition() or 0))
        elif message is not None:
            found.append(message)
    consumer.close()
    return found
