"""The door of the operations that commit without Spark: the lock first, then everything else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingestion.declaration.spec import StreamSpec
from ingestion.lake.lock import Holder, held_by_python
from ingestion.lake.storage import translate_disk_errors
from ingestion.lake.stream import Stream
from ingestion.recovery.topics import resolve_topics
from ingestion.settings import Settings


@contextmanager
def locked(spec: StreamSpec, settings: Settings, run_id: str) -> Iterator[Stream]:
    """Hold the stream's lock in this process, with its topics resolved under it.

    Raises:
        StreamLockedError: a run holds it; names the run.
        StorageError: a volume is full, read-only or failing.
    """
    stream = Stream(spec=spec, settings=settings)
    stream.kafka  # noqa: B018 (that no Kafka is configured is found before the lock is taken)
    with (
        translate_disk_errors(spec.name, *stream.paths.written),
        held_by_python(stream.paths, Holder.me(run_id)),
    ):
        yield resolve_topics(stream)
