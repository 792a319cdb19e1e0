"""One bounded Spark query, waited for in a way that a person can interrupt.

An interrupt while the main thread waits inside py4j breaks its connection: stopping then takes
half a minute, in which the remaining batches run and commit. So a second thread waits, and the
main one only looks at an event.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from oncelake.ingestion.storage.failpoints import Failpoint, hit

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
    batches = _Remembering(each_batch)
    spark = records.sparkSession
    try:
        query = (
            records.writeStream.foreachBatch(batches.run)
            .queryName(name)
            # On this machine, whatever file system is a cluster's default.
            .option("checkpointLocation", f"file://{checkpoint}")
            .trigger(availableNow=True)
            .start()
        )
        hit(Failpoint.QUERY_STARTED)
        _wait(query, stop)
        hit(Failpoint.QUERY_ENDED)
    finally:
        # Also after an interrupt that fell into start() itself: nothing may go on to commit
        # once the caller lets go of the lock.
        for each in spark.streams.active:
            if each.name == name:
                each.stop()
        batches.release()
    failure = batches.raised or query.exception()
    # A batch that was cut off raises, too, and that is only what was asked for.
    if failure is not None and not stop.is_set():
        raise failure


class _Remembering:
    """Keeps what a batch raised, for the thread that can raise it to the caller."""

    def __init__(self, each_batch: Callable[[DataFrame, int], None]) -> None:
        self._each_batch = each_batch
        self._connection: Any = None
        self.raised: Exception | None = None

    def run(self, frame: DataFrame, batch_id: int) -> None:
        """Run one batch.

        Raises:
            _BatchFailedError: it failed. The error is short because Spark matches the whole
                traceback against a pattern that overflows the JVM's stack on a long one.
        """
        self._connection = getattr(_client(), "get_thread_connection", lambda: None)()
        try:
            self._each_batch(frame, batch_id)
        except Exception as error:  # noqa: BLE001 (it is raised again, whole, by the caller's thread)
            self.raised = error
            raise _BatchFailedError(type(error).__name__) from None

    def release(self) -> None:
        """Let go of what py4j would keep.

        That is the thread in which Spark called, for good, and the function with all that
        it refers to, until the JVM happens to collect its garbage.
        """
        self._each_batch = _refuse
        if self._connection is not None:
            with suppress(OSError):
                self._connection.socket.shutdown(socket.SHUT_RDWR)


def _refuse(frame: DataFrame, batch_id: int) -> None:
    raise AssertionError(f"batch {batch_id} came after its query had ended")


def _client() -> Any:
    return getattr(SparkContext._gateway, "_gateway_client", None)


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
