"""One batch, as the ledger remembers it, and the columns that it is kept in."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ingestion.books import COUNTS, imbalances
from ingestion.commits import Commit
from ingestion.notes import UNKNOWN, CountedRange, Identity, Kind, Note

SCHEMA = pa.schema(
    [
        pa.field("table_id", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("delta_version", pa.int64(), nullable=False),
        pa.field(
            "ranges",
            pa.list_(
                pa.struct(
                    [
                        pa.field("topic", pa.string()),
                        pa.field("partition", pa.int32()),
                        pa.field("start", pa.int64()),
                        pa.field("end", pa.int64()),
                        pa.field("records", pa.int64()),
                        pa.field("gaps", pa.int64()),
                    ]
                )
            ),
        ),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("balanced", pa.bool_()),
        pa.field("accepted", pa.string()),
        pa.field("identity", pa.string()),
    ]
)


_COMPOSED = frozenset({"ranges", "counts", "identity"})


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerRow:
    """One batch, as the ledger remembers it; the fields are the table's columns.

    Beside them, ``problems`` says what does not balance; only the run that found it knows.
    """

    table_id: str
    seq: int
    kind: Kind
    epoch: int
    committed_at: dt.datetime
    run_id: str
    delta_version: int
    ranges: tuple[CountedRange, ...]
    counts: Mapping[str, int]
    balanced: bool
    accepted: str | None = None
    identity: Identity = UNKNOWN
    columns: str = ""
    problems: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        note: Note,
        commit: Commit,
        table_id: str,
        *,
        counts: Mapping[str, int],
        problems: Sequence[str] = (),
    ) -> LedgerRow:
        """Project a commit of ours; it balances when nothing was found wrong with it.

        Every count of the books is there by its name, those of 0 too. Winners are no disposition,
        so they stay in the commit.
        """
        told = {name: count for name, count in counts.items() if name != "winners"}
        return cls(
            table_id=table_id,
            seq=note.seq,
            kind=note.kind,
            epoch=note.epoch,
            committed_at=commit.committed_at,
            run_id=note.run_id,
            delta_version=commit.version,
            ranges=note.ranges,
            counts={**dict.fromkeys(COUNTS, 0), **told},
            balanced=not problems,
            accepted=note.reason,
            identity=note.identity,
            columns=note.columns,
            problems=tuple(problems),
        )

    @property
    def is_red(self) -> bool:
        """Tell whether the books of this batch do not balance and nobody has accepted that."""
        return not self.balanced and self.accepted is None

    def says(self) -> str:
        """Say what does not balance, from the counts."""
        lines = imbalances(self.counts, rows_of_seq=0, rows_expected=0, kind=self.kind)
        return "; ".join(self.problems or lines) or "the rows in the table were not those it wrote"

    def as_record(self) -> dict[str, Any]:
        """Return the columns of the table."""
        return {
            **{name: getattr(self, name) for name in SCHEMA.names if name not in _COMPOSED},
            "identity": self._identity(),
            "ranges": [counted.as_row() for counted in self.ranges],
            "counts": list(self.counts.items()),
        }

    def _identity(self) -> str | None:
        """Write what the batch's offsets and columns meant."""
        if self.identity == UNKNOWN:
            return None
        return json.dumps({**self.identity.as_row(), "columns": self.columns})

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> LedgerRow:
        """Read what ``as_record`` wrote; ``identity`` is not in ledgers of an earlier version."""
        told = record.get("identity")
        return cls(
            **{
                **record,
                "identity": Identity.of_row(json.loads(told)) if told else UNKNOWN,
                "columns": json.loads(told).get("columns", "") if told else "",
                "ranges": tuple(map(CountedRange.of_row, record["ranges"])),
            }
        )
