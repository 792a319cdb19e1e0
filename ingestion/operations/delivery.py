"""The delivery level that a stream declares: what may be decided without a person.

Rows and offsets are one commit, so a crash neither loses nor doubles a record at any level, and
none is cheaper than another. They differ where Kafka itself takes records away:

    exactly_once   (default) the run is refused until a person decides
    at_most_once   what retention deleted before it was read is skipped, and counted as lost
    at_least_once  a topic that was made again, or cut, is read again from its start, in a new epoch
"""

from __future__ import annotations

from ingestion.errors import (
    OffsetsExpiredError,
    RefusedError,
    TopicRecreatedError,
    TopicTruncatedError,
)
from ingestion.lake.stream import Stream
from ingestion.operations.accept import accept
from ingestion.operations.adopt_topic import adopt_topic


def apply_delivery_policy(stream: Stream, refusal: RefusedError, *, run_id: str) -> str | None:
    """Decide what a run was refused for, where the declared level says how.

    Needs the stream to be free: the decision takes its lock.

    Returns:
        What was decided, in a sentence, or ``None`` when a person must.
    """
    spec, settings = stream.spec, stream.settings
    if spec.delivery == "at_most_once" and isinstance(refusal, OffsetsExpiredError):
        row = accept(spec, settings, reason=f"delivery: {spec.delivery}", run_id=run_id)
        lost = ", ".join(str(counted.range) for counted in row.ranges if len(counted.range))
        return f"delivery: at_most_once: {lost} was gone before it was read, and is skipped"
    was_replaced = isinstance(refusal, TopicRecreatedError | TopicTruncatedError)
    if spec.delivery == "at_least_once" and was_replaced:
        row = adopt_topic(spec, settings, run_id=run_id)
        return f"delivery: at_least_once: epoch {row.epoch} began, {row.accepted}"
    return None
