"""One bounded Spark query, waited for in a way that a person can interrupt.

An interrupt while the main thread waits inside py4j breaks its connection: stopping then takes
half a minute, in which the remaining batches run and commit. So a second thread waits, and the
main one only looks at an event.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

_LOOK_EVERY_SECONDS = 0.1


def drain(
    records: DataFrame,
    each_batch: Callable[[DataFrame, int], None],
    *,
    name: str,
    checkpoint: Path,
    stop: threading.Event,
) -> None:
    """Run a query over what the topic holds now, until its end or until ``stop`` is set.

    Args:
        records: The streaming frame.
        each_batch: Called with each batch's frame and Spark's batch id.
        name: Name of the query, unique in this JVM.
        checkpoint: Folder of the generation.
        stop: Set by another thread to end the run at once; an open batch is not committed.

    Raises:
        Exception: whatever ``each_batch`` raised, itself and not as Spark wraps it.
    """
    raised: list[Exception] = []

    def remembering(frame: DataFrame, batch_id: int) -> None:
        try:
            each_batch(frame, batch_id)
        except Exception as error:  # noqa: BLE001 (it is raised again, whole, by the caller's thread)
            raised.append(error)
            # Short, because Spark matches the whole traceback against a pattern that overflows
            # the JVM's stack on a long one.
            raise _BatchFailedError(type(error).__name__) from None

    spark = records.sparkSession
    try:
        query = (
            records.writeStream.foreachBatch(remembering)
            .queryName(name)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        _wait(query, stop)
    finally:
        # Also after an interrupt that fell into start() itself: nothing may go on to commit
        # once the caller lets go of the lock.
        for each in spark.streams.active:
            if each.name == name:
                each.stop()
    if stop.is_set():
        return  # The open batch was cut off, and whatever it raised is only that.
    if raised:
        raise raised[0]
    failure: StreamingQueryException | None = query.exception()
    if failure is not None:
        raise failure


class _BatchFailedError(Exception):
    """Tells Spark that a batch failed; the real error is kept in Python."""


def _wait(query: StreamingQuery, stop: threading.Event) -> None:
    ended = threading.Event()

    def wait() -> None:
        try:
            query.awaitTermination()
        except StreamingQueryException:
            pass  # Read from the query itself, by the thread that can raise it.
        finally:
            ended.set()

    threading.Thread(target=wait, name=f"await {query.name}", daemon=True).start()
    while not ended.wait(_LOOK_EVERY_SECONDS):
        if stop.is_set():
            return
