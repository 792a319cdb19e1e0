"""Where the very first run begins, resolved to one offset a partition.

``ingestion.opening`` does it once and commits the answer before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import InvalidSpecError
from ingestion.kafka.admin import Kafka
from ingestion.kafka.offsets import Offsets, TopicPartition


def starting_offsets(
    spec: StreamSpec, kafka: Kafka, partitions: Iterable[TopicPartition]
) -> Offsets:
    """Return the offset to begin at, of every partition.

    Raises:
        InvalidSpecError: the declared offsets do not fit the topics as they are now.
        DependencyError: Kafka does not answer.
    """
    wanted, begin = tuple(partitions), spec.starting
    if begin.offsets is not None:
        return _declared(spec, kafka, wanted, begin.offsets)
    if begin.timestamp is not None:
        return kafka.first_since(wanted, begin.timestamp)
    return kafka.earliest(wanted) if begin.at == "earliest" else kafka.stable_end(wanted)


def _declared(
    spec: StreamSpec,
    kafka: Kafka,
    partitions: tuple[TopicPartition, ...],
    offsets: Mapping[str, Mapping[int, int]],
) -> Offsets:
    """Take the offsets that are written down, if they name every partition and lie within it."""
    told = {
        TopicPartition(topic, partition): offset
        for topic, of_topic in offsets.items()
        for partition, offset in of_topic.items()
    }
    earliest, ends = kafka.earliest(partitions), kafka.stable_end(partitions)
    problems = [
        *(f"names no offset for {at}" for at in partitions if at not in told),
        *(f"{at} does not exist" for at in sorted(told.keys() - set(partitions))),
        *(
            f"{at}: {told[at]} lies outside of what Kafka holds, {earliest[at]} to {ends[at]}"
            for at in partitions
            if at in told and not earliest[at] <= told[at] <= ends[at]
        ),
    ]
    if problems:
        raise InvalidSpecError(
            f"{spec.name}.yaml: starting.offsets: {'; '.join(problems)}. Next: write one offset "
            "for every partition, or `starting: earliest`"
        )
    return Offsets(told)
