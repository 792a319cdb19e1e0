"""``oncelake accept``: a person takes a loss, or a red batch, upon themselves, in writing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import InvalidSpecError
from ingestion.kafka.admin import Kafka
from ingestion.kafka.offsets import Range
from ingestion.lake.archive import archive_table
from ingestion.lake.commit_metadata import UNKNOWN, CountedRange
from ingestion.lake.empty_commit import write_empty_commit
from ingestion.lake.failpoints import Failpoint, hit
from ingestion.lake.foreign_commits import foreign_commits_since
from ingestion.lake.ledger import Ledger, LedgerRow
from ingestion.lake.lock import Holder, held_by_python
from ingestion.lake.paths import StreamPaths
from ingestion.lake.storage import translate_disk_errors
from ingestion.recovery.heal import heal_ledger, remove_leftovers
from ingestion.recovery.ledger import load_or_archive_ledger
from ingestion.recovery.position import identity_of, refuse_another_topic
from ingestion.recovery.read_position import read_position
from ingestion.recovery.side_tables import abandoned_seqs, written_off_seqs
from ingestion.recovery.start import begin_offsets, lost_ranges
from ingestion.recovery.topics import resolve_topics
from ingestion.settings import Settings


def accept(spec: StreamSpec, settings: Settings, *, reason: str, run_id: str) -> LedgerRow:
    """Accept what the stream is refused for: lost ranges, red batches, what others have altered.

    The lost ranges are skipped, and stay in the ledger with the reason; a red batch stays red,
    with the reason beside it. A quarantine, or a memory of deletes, that is damaged or short of
    rows moves into the archive.

    Returns:
        The ledger row of this decision.

    Raises:
        InvalidSpecError: there is nothing to accept, or no reason is given.
        RefusedError: the stream is refused for something that cannot be accepted.
    """
    if not reason.strip():
        raise InvalidSpecError(f"{spec.name}: say why, in --reason; it is kept in the ledger")
    paths, kafka = StreamPaths.of(spec.name, settings), Kafka(settings)
    with (
        translate_disk_errors(spec.name, *paths.written),
        held_by_python(spec.name, paths, Holder.me(run_id)),
    ):
        spec = resolve_topics(spec, kafka, paths)
        memory = load_or_archive_ledger(paths)
        position = read_position(spec.name, paths, memory, even_if_altered=True)
        if position is None:
            raise InvalidSpecError(f"{spec.name}: there is no table yet, so nothing to accept")
        rows = heal_ledger(spec, paths, position, memory.rows_of(position.table_id)).rows
        red = [row for row in rows if row.is_red]
        gone = abandoned_seqs(paths, rows)
        topics = refuse_another_topic(spec, kafka, position.identity)
        if position.identity == UNKNOWN:
            position = replace(position, identity=identity_of(spec, topics))
        lost = lost_ranges(begin_offsets(position, topics), kafka.earliest(topics.partitions))
        # A topic that was made again meanwhile has first offsets that mean other records.
        refuse_another_topic(spec, kafka, position.identity)
        if not (red or lost or gone or foreign_commits_since(spec.name, paths)):
            raise InvalidSpecError(
                f"{spec.name}: nothing is lost, red, damaged or altered; nothing to accept"
            )
        counts = {**_lost(lost), **written_off_seqs(gone, rows)}
        metadata = replace(
            position.next_metadata(run_id, kind="accept", ranges=_skipped(lost), counts=counts),
            reason=reason,
            accepts=tuple(row.seq for row in red),
        )
        archive_table(paths, gone.values())
        # The decision takes the next seq: a dead attempt's rows of it must not pass for its own.
        remove_leftovers(paths, position)
        commit = write_empty_commit(spec.name, paths, metadata)
        hit(Failpoint.DECIDED)
        row = LedgerRow.of(
            metadata, commit, position.table_id, counts=counts, problems=_problems(lost, gone)
        )
        Ledger(paths.ledger).put(row, *(replace(each, accepted=reason) for each in red))
        return row


def _problems(lost: tuple[Range, ...], gone: Iterable[str]) -> list[str]:
    ranges = [f"{len(lost)} ranges were lost"] if lost else []
    return [*ranges, *(f"{name} was given up" for name in gone)]


def _skipped(lost: tuple[Range, ...]) -> tuple[CountedRange, ...]:
    return tuple(CountedRange(range=each, records=0, gaps=0) for each in lost)


def _lost(lost: tuple[Range, ...]) -> dict[str, int]:
    return {"offsets": sum(map(len, lost)), "lost": sum(map(len, lost))} if lost else {}
