"""``oncelake accept``: a person accepts a loss, or a red batch, in writing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ingestion.declaration.spec import StreamSpec
from ingestion.errors import InvalidSpecError
from ingestion.kafka.offsets import Range
from ingestion.lake.archive import archive_table
from ingestion.lake.commit_metadata import UNKNOWN, CountedRange
from ingestion.lake.foreign_commits import foreign_commits
from ingestion.lake.ledger import LedgerRow, load_or_archive_ledger
from ingestion.lake.stream import Stream
from ingestion.operations.decision import commit_decision, locked
from ingestion.recovery.heal import heal_ledger, remove_leftovers
from ingestion.recovery.position import Position, position_of
from ingestion.recovery.side_tables import read_side_tables, written_off_counts
from ingestion.recovery.snapshot import TableSnapshot, read_snapshot
from ingestion.recovery.start import begin_offsets, lost_ranges
from ingestion.recovery.topics import identity_of, refuse_another_topic
from ingestion.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """What a stream is refused for, and a person may accept.

    Attributes:
        rows: The ledger's rows, by seq, for the counts of what is written off.
        lost: What retention has deleted before it was read.
        forgotten: Side tables that are damaged or short of rows, by name.
        is_altered: Whether somebody else has changed the rows.
    """

    rows: tuple[LedgerRow, ...]
    lost: tuple[Range, ...]
    forgotten: dict[str, Path]
    is_altered: bool

    @property
    def red(self) -> tuple[LedgerRow, ...]:
        """The batches whose books do not balance."""
        return tuple(row for row in self.rows if row.is_red)

    @property
    def counts(self) -> dict[str, int]:
        """What the acceptance leaves behind, as the ledger counts it."""
        offsets = sum(map(len, self.lost))
        lost = {"offsets": offsets, "lost": offsets} if self.lost else {}
        return {**lost, **written_off_counts(self.forgotten, self.rows)}

    @property
    def problems(self) -> list[str]:
        """Why the books of the acceptance itself do not balance."""
        ranges = [f"{len(self.lost)} ranges were lost"] if self.lost else []
        return [*ranges, *(f"{name} was given up" for name in self.forgotten)]


def accept(spec: StreamSpec, settings: Settings, *, reason: str, run_id: str) -> LedgerRow:
    """Accept what the stream is refused for: lost ranges, red batches, what others have altered.

    The lost ranges are skipped, and stay in the ledger with the reason; a red batch stays red,
    with the reason beside it. A quarantine, or a table of tombstones, that is damaged or short of
    rows moves into the archive.

    Returns:
        The ledger row of this decision.

    Raises:
        InvalidSpecError: there is nothing to accept, or no reason is given.
        RefusedError: the stream is refused for something that cannot be accepted.
    """
    if not reason.strip():
        raise InvalidSpecError(f"{spec.name}: say why, in --reason; it is kept in the ledger")
    with locked(spec, settings, run_id) as stream:
        snapshot = read_snapshot(stream.paths, load_or_archive_ledger(stream.paths))
        position = position_of(snapshot, even_if_altered=True)
        if position is None:
            raise InvalidSpecError(f"{spec.name}: there is no table yet, so nothing to accept")
        position, refused = _find_refused(stream, snapshot, position)
        if not (refused.red or refused.lost or refused.forgotten or refused.is_altered):
            raise InvalidSpecError(
                f"{spec.name}: nothing is lost, red, damaged or altered; nothing to accept"
            )
        return _commit(stream, position, refused, reason=reason, run_id=run_id)


def _find_refused(
    stream: Stream, snapshot: TableSnapshot, position: Position
) -> tuple[Position, Refused]:
    """Find all that can be accepted, and complete an identity that nothing remembers."""
    spec, kafka = stream.spec, stream.kafka
    rows = heal_ledger(spec, stream.paths, position, snapshot.rows).rows
    sides = read_side_tables(stream.paths, rows)
    topics = refuse_another_topic(spec, kafka, position.identity)
    if position.identity == UNKNOWN:
        position = replace(position, identity=identity_of(spec, topics))
    lost = lost_ranges(begin_offsets(position, topics), kafka.earliest(topics.partitions))
    # A topic that was made again meanwhile has first offsets that mean other records.
    refuse_another_topic(spec, kafka, position.identity)
    return position, Refused(
        rows=rows,
        lost=lost,
        forgotten={name: side.path for name, side in sides.items() if side.is_unfit},
        is_altered=bool(snapshot.table and foreign_commits(snapshot.table.others)),
    )


def _commit(
    stream: Stream, position: Position, refused: Refused, *, reason: str, run_id: str
) -> LedgerRow:
    archive_table(stream.paths, refused.forgotten.values())
    # The decision takes the next seq: a dead attempt's rows of it must not pass for its own.
    remove_leftovers(stream.paths, position)
    skipped = tuple(CountedRange(range=lost, records=0, gaps=0) for lost in refused.lost)
    made = position.next_metadata(run_id, kind="accept", ranges=skipped, counts=refused.counts)
    return commit_decision(
        stream,
        replace(made, reason=reason, accepts=tuple(row.seq for row in refused.red)),
        position.table_id,
        counts=refused.counts,
        problems=refused.problems,
        accepted=[replace(row, accepted=reason) for row in refused.red],
    )
