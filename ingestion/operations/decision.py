"""What decisions share: the lock first, then everything else, and one commit without rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ingestion.declaration.spec import StreamSpec
from ingestion.lake.commit_metadata import CommitMetadata
from ingestion.lake.failpoints import Failpoint, hit
from ingestion.lake.ledger import Ledger, LedgerRow
from ingestion.lake.lock import Holder, held_by_python
from ingestion.lake.storage import translate_disk_errors
from ingestion.lake.stream import Stream
from ingestion.lake.table_log import write_empty_commit
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


def commit_decision(
    stream: Stream,
    metadata: CommitMetadata,
    table_id: str,
    *,
    counts: Mapping[str, int] | None = None,
    problems: Sequence[str] = (),
    accepted: Sequence[LedgerRow] = (),
) -> LedgerRow:
    """Write a decision down: in the table's log, then in the ledger; return its row there.

    Args:
        problems: Why its own books do not balance.
        accepted: Earlier batches, as the ledger shall show them from now on.
    """
    commit = write_empty_commit(stream.paths, metadata)
    hit(Failpoint.DECIDED)
    row = LedgerRow.of(metadata, commit, table_id, counts=counts or {}, problems=problems)
    Ledger(stream.paths.ledger).put(row, *accepted)
    return row
