"""One redrive: the quarantined records of one epoch, validated as declared today, into one commit.

A record keeps its place in Kafka, its time and its epoch, so that the sink's own guard puts it
where it belongs: it never overwrites what came after it. No offset moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from oncelake.ingestion.declaration.modes import COORDINATES
from oncelake.ingestion.errors import SideTableIncompleteError, TableBusyError
from oncelake.ingestion.formats.route import ELSEWHERE, UNKNOWN_SCHEMA
from oncelake.ingestion.kafka.offsets import Range
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.lake.quarantine import WAITS, remove_payloads
from oncelake.ingestion.modes import sql
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.modes.engines.rows import Records
from oncelake.ingestion.modes.mode import Target
from oncelake.ingestion.pipeline.batch import BatchWriter, CountedBatch
from oncelake.ingestion.pipeline.counts import BatchCounts, count_records, is_first_row
from oncelake.ingestion.pipeline.erased import at_places
from oncelake.ingestion.pipeline.gaps import Gaps
from oncelake.ingestion.tables.commit_metadata import CommitMetadata


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """The batches of one life of the stream's identity.

    Attributes:
        first: Its first batch, as far as the ledger remembers.
        end: The first batch of the next; ``None`` of the last epoch.
    """

    number: int
    first: int
    end: int | None

    def holds(self, seq: str) -> str:
        """Tell, in SQL, whether a batch is of this epoch."""
        begun = f"{seq} >= {self.first}"
        return begun if self.end is None else f"({begun} AND {seq} < {self.end})"

    def has(self, seq: int) -> bool:
        """Tell whether a batch is of this epoch."""
        return self.first <= seq and (self.end is None or seq < self.end)


def epochs_of(rows: Sequence[LedgerRow]) -> tuple[Epoch, ...]:
    """Return a table's epochs, oldest first, from its ledger.

    What lies before the oldest row that is remembered counts as of the first epoch, which loses
    against every other.
    """
    first: dict[int, int] = {1: 0}
    for row in rows:
        first.setdefault(row.epoch, row.seq)
    begun = sorted(first.items())
    ends = [*(seq for _, seq in begun[1:]), None]
    return tuple(
        Epoch(number=number, first=seq, end=end)
        for (number, seq), end in zip(begun, ends, strict=True)
    )


class RedriveWriter(BatchWriter):
    """Writes the quarantined records of one epoch as one batch, in the way of every batch.

    Attributes:
        still_bad: Records that stay in quarantine, by the reason that they have today.
    """

    def __init__(
        self, *given: Any, epoch: Epoch, releases_others: bool = False, **named: Any
    ) -> None:
        """Take what a ``BatchWriter`` takes, and whether records of other streams may go."""
        super().__init__(*given, **named)
        self._of = epoch
        self._releases_others = releases_others
        self._erased = ""
        self.still_bad: Mapping[str, int] = {}

    @property
    def epoch_of_records(self) -> int:
        """The epoch in which the records were read for the first time."""
        return self._of.number

    def redrive(self, records: Records) -> LedgerRow | None:
        """Judge records of this epoch again, and commit those that are good now.

        Args:
            records: As ``ingestion.lake.quarantine.waiting_records`` returns them.

        Returns:
            The ledger row of the commit; ``None`` when no record is good now.

        Raises:
            RefusedError: the records cannot be ordered, or are not in the quarantine once each;
                nothing was committed.
        """
        if isinstance(records, pa.Table):
            is_held = map(self._of.has, records["_seq"].to_pylist())
            of_epoch = records.filter(pa.array(is_held, pa.bool_()))
        else:
            of_epoch = records.where(self._of.holds("_seq"))
        rows = tuple(self.apply(of_epoch, planned=()))
        return rows[0] if rows else None

    def leave_out(self, engine: Engine, planned: Sequence[Range]) -> list[dict[str, Any]]:
        """Remember the erased records: they could not be read when their key was erased."""
        erased = super().leave_out(engine, planned)
        self._erased = at_places(erased)
        return erased

    def refuse_bad(self, engine: Engine, counts: BatchCounts) -> None:
        """Refuse nothing: what is bad stays in quarantine."""

    def count(self, engine: Engine, planned: Sequence[Range]) -> BatchCounts:
        """Leave out what is still bad: it stays where it is."""
        counts = count_records(engine)
        if counts.dispositions.get(ELSEWHERE) and not self._releases_others:
            self._keep_others(engine)
            counts = count_records(engine)
        sent = dict(counts.dispositions)
        self.still_bad = _reasons(engine) if sent.pop("quarantined", 0) else {}
        return replace(counts, dispositions=sent)

    def _keep_others(self, engine: Engine) -> None:
        """Call what is another stream's today bad: whether that has read it is not known here.

        A record whose schema was unknown waits with each of them.
        """
        engine.open_table("quarantine", self._paths.quarantine)
        judged = {name: sql.name(name, "b") for name in engine.columns("batch")}
        judged["_reason"] = "coalesce(k.reason, b._reason)"
        judged["_disposition"] = (
            "CASE WHEN k.reason IS NULL THEN b._disposition ELSE 'quarantined' END"
        )
        waiting = (
            f"SELECT {sql.names(COORDINATES)}, reason FROM quarantine WHERE {WAITS} "
            f"AND {self._of.holds('_seq')} AND reason <> '{UNKNOWN_SCHEMA}'"
        )
        kept = (
            f"SELECT w.* FROM batch o JOIN ({waiting}) w ON {sql.equal(COORDINATES, 'o', 'w')} "
            f"WHERE o._disposition = '{ELSEWHERE}'"
        )
        # A record waits as a whole.
        engine.define(
            "batch",
            f"SELECT {sql.selected(judged)} FROM batch b "
            f"LEFT JOIN ({kept}) k ON {sql.equal(COORDINATES, 'b', 'k')} "
            f"WHERE k.reason IS NULL OR b._disposition = '{ELSEWHERE}'",
            keep=True,
        )

    def prove_gaps(self, engine: Engine, planned: Sequence[Range], counts: BatchCounts) -> Gaps:
        """Nothing was planned, so nothing can be missing."""
        return Gaps(holes=(), proven=True)

    def describe(self, engine: Engine, batch: CountedBatch) -> CommitMetadata:
        """No offset moves: the counts are of the records alone."""
        counted = batch.counts
        left_out = {
            disposition: n
            for disposition, n in counted.dispositions.items()
            if disposition not in {"row", "delete"}
        }
        counts = {"offsets": 0, "read": counted.read, "gaps": 0, **left_out}
        counts |= self.count_extras(engine, counted)
        return self.position.next_metadata(self._run_id, kind="redrive", counts=counts)

    def write_side_rows(self, target: Target, metadata: CommitMetadata, batch: CountedBatch) -> int:
        """Write down which records of the quarantine are sent in; none is added to it."""
        quarantine, engine = self._paths.quarantine, target.engine
        engine.open_table("quarantine", quarantine)
        names = sql.names([*COORDINATES, "_seq"])
        sent = target.write_side(
            "redriven",
            quarantine,
            f"""
            WITH waiting AS (
                SELECT {names} FROM quarantine WHERE {WAITS} AND {self._of.holds("_seq")}
            )
            SELECT w.* FROM waiting w JOIN batch b ON {sql.equal(COORDINATES, "w", "b")}
            WHERE b._disposition <> 'quarantined' AND {is_first_row("b")}
            """,
        )
        if sent != (read := batch.counts.read):
            if self._log.find(self._spec.name, metadata.seq):
                raise TableBusyError(
                    f"{quarantine}: another run has committed batch {metadata.seq} meanwhile. "
                    f"Nothing was sent in. Next: oncelake redrive {self._spec.name}"
                )
            raise SideTableIncompleteError(
                self._spec.name,
                f"of the records that would be sent in again, {read:,}, {quarantine} holds "
                f"{sent:,}: some are gone, or there more than once.",
                remedy=f"oncelake verify {self._spec.name} names them",
            )
        if self._erased:
            those = f"{self._of.holds('_seq')} AND ({self._erased})"
            remove_payloads(quarantine, those, "erased", redriven=True)
        return 0

    def target(self, engine: Engine, version: int) -> Target:
        """Stamp the rows with the epoch of their records."""
        return replace(super().target(engine, version), epoch=self._of.number)


def _reasons(engine: Engine) -> dict[str, int]:
    rows = engine.rows(
        'SELECT _reason, count(*) AS "records" FROM batch '
        "WHERE _disposition = 'quarantined' GROUP BY _reason ORDER BY _reason"
    )
    return {row["_reason"]: row["records"] for row in rows}
