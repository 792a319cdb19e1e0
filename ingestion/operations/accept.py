"""``oncelake accept``: a person takes a loss, or a red batch, upon themselves, in writing."""

from __future__ import annotations

from dataclasses import replace

from ingestion.commits import TableLog
from ingestion.errors import InvalidSpecError
from ingestion.kafka import Kafka
from ingestion.killpoints import At, reached
from ingestion.lake import StreamPaths
from ingestion.ledger import Ledger, LedgerRow
from ingestion.lock import Holder, held_by_python
from ingestion.note_commit import commit_note
from ingestion.notes import CountedRange
from ingestion.offsets import Range
from ingestion.position import refuse_another_topic
from ingestion.recovery import read_position
from ingestion.settings import Settings
from ingestion.spec import StreamSpec
from ingestion.start import begin_offsets, lost_ranges


def accept(spec: StreamSpec, settings: Settings, *, reason: str, run_id: str) -> LedgerRow:
    """Accept what the stream is refused for: lost ranges, red batches, a foreign RESTORE.

    The lost ranges are skipped, and stay in the ledger with the reason; a red batch stays red,
    with the reason beside it.

    Returns:
        The ledger row of this decision.

    Raises:
        InvalidSpecError: there is nothing to accept, or no reason is given.
        RefusedError: the stream is refused for something that cannot be accepted.
    """
    if not reason.strip():
        raise InvalidSpecError(f"{spec.name}: say why, in --reason; it is kept in the ledger")
    paths, kafka = StreamPaths.of(spec.name, settings), Kafka(settings)
    with held_by_python(spec.name, paths, Holder.me(run_id)):
        position = read_position(spec.name, paths, even_if_restored=True)
        if position is None:
            raise InvalidSpecError(f"{spec.name}: there is no table yet, so nothing to accept")
        ledger = Ledger(paths.ledger)
        red = [row for row in ledger.rows_of(position.table_id) if row.is_red]
        topics = refuse_another_topic(spec, kafka, position.identity)
        lost = lost_ranges(begin_offsets(position, topics), kafka.earliest(topics.partitions))
        if not (red or lost or _restored(spec.name, paths)):
            raise InvalidSpecError(
                f"{spec.name}: nothing is lost, red or restored; nothing to accept"
            )
        note = replace(
            position.next_note(run_id, kind="accept", ranges=_skipped(lost), counts=_lost(lost)),
            reason=reason,
            accepts=tuple(row.seq for row in red),
        )
        commit = commit_note(spec.name, paths, note)
        reached(At.DECIDED)
        row = LedgerRow.of(
            note,
            commit,
            position.table_id,
            counts=note.counts,
            problems=[f"{len(lost)} ranges were lost"] if lost else [],
        )
        ledger.put(row, *(replace(each, accepted=reason) for each in red))
        return row


def _skipped(lost: tuple[Range, ...]) -> tuple[CountedRange, ...]:
    return tuple(CountedRange(range=each, records=0, gaps=0) for each in lost)


def _lost(lost: tuple[Range, ...]) -> dict[str, int]:
    return {"offsets": sum(map(len, lost)), "lost": sum(map(len, lost))} if lost else {}


def _restored(stream: str, paths: StreamPaths) -> bool:
    _, others = TableLog(paths.data).since_our_newest(stream)
    return any(each.operation == "RESTORE" for each in others)
