"""Records that could not be applied: raw, with the reason, under the seq of their batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ingestion.declaration.modes import COORDINATES
from ingestion.declaration.spec import StreamSpec, engine_version, fingerprint
from ingestion.declaration.sql import literal
from ingestion.lake.attempts import MARKS, ROWS, Attempts, Leftovers, find_leftovers
from ingestion.sinks.commit_metadata import CommitMetadata
from ingestion.sinks.delta.durability import seal_commits
from ingestion.sinks.delta.files import is_delta, open_delta, read_delta
from ingestion.storage.location import Location

_RAW: Final = ("key", "value", "headers")
# A format that knows the id of a record's schema begins its detail with it.
_SCHEMA_ID: Final = "^schema id ([0-9]+):"
STATISTICS: Final = (*ROWS, "_offset", *MARKS)


def quarantine_rows(metadata: CommitMetadata, spec: StreamSpec, *, bare: str = "FALSE") -> str:
    """Select the rows that a batch puts into quarantine, from the table ``batch``.

    Args:
        metadata: Of the commit to come.
        spec: The declaration that found the records bad.
        bare: Which of them keep no bytes, in SQL.
    """
    key, value, headers, detail = (
        f"CASE WHEN {bare} THEN NULL ELSE _{name} END AS {name}" for name in (*_RAW, "detail")
    )
    declared, run_id = literal(fingerprint(spec)), literal(metadata.run_id)
    return f"""
        SELECT _topic, _partition, _offset, _timestamp,
            CAST({metadata.seq} AS BIGINT) AS _seq, CAST({metadata.attempt} AS BIGINT) AS _attempt,
            {key}, {value}, {headers}, _reason AS reason, {detail},
            CAST(NULL AS BIGINT) AS redriven_seq, CAST(NULL AS BIGINT) AS redriven_attempt,
            TRY_CAST(regexp_extract(_detail, '{_SCHEMA_ID}', 1) AS INTEGER) AS schema_id,
            '{engine_version()}' AS engine_version, {run_id} AS run_id, {declared} AS declaration,
            CASE WHEN {bare} THEN 'read before an erase' END AS removed
        FROM batch WHERE _disposition = 'quarantined'
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Tells the records that a redrive would send in.

    Attributes:
        rows: Rows that do not count.
        marks: Marks that do not count.
    """

    rows: Leftovers
    marks: Leftovers

    @classmethod
    def of(cls, path: Location, committed: Attempts, snapshot: DeltaTable | None = None) -> Waiting:
        """Look at what lies in a quarantine."""
        snapshot = snapshot or read_delta(path)
        return cls(
            rows=find_leftovers(path, committed, snapshot=snapshot),
            marks=find_leftovers(path, committed, MARKS, snapshot=snapshot),
        )

    def as_filter(self) -> pc.Expression:
        """Tell them, for Arrow; one that has lost its bytes can wait no more."""
        waits = pc.field("redriven_seq").is_null() | self.marks.as_filter()
        return waits & pc.field("removed").is_null() & ~self.rows.as_filter()

    def as_sql(self) -> str:
        """Tell them, in the SQL of every engine."""
        return f"{self.is_unmarked} AND removed IS NULL AND NOT {self.rows.as_sql()}"

    @property
    def is_unmarked(self) -> str:
        """Tell the records that no redrive has sent in, in the SQL of every engine."""
        return f"(redriven_seq IS NULL OR {self.marks.as_sql()})"


def clear_failed_marks(
    path: Location, snapshot: DeltaTable, committed: Attempts, *, are_dead: bool = False
) -> bool:
    """Remove the marks of redrives that can commit no more; tell whether others have left some.

    With ``are_dead``, none can.
    """
    left_over = find_leftovers(path, committed, MARKS, snapshot=snapshot)
    if failed := left_over if are_dead else left_over.of_failed(committed):
        open_delta(path).update(
            updates=dict.fromkeys(MARKS, "CAST(NULL AS BIGINT)"), predicate=failed.as_sql()
        )
    return left_over != failed


def remove_payloads(path: Location, where: str, why: str, *, redriven: bool = False) -> int:
    """Remove key, value, headers and detail, which may quote them; return of how many records.

    Place and reason stay, so that the proof knows what was there.

    Args:
        path: The quarantine.
        where: Which records, in delta-rs' SQL.
        why: Stays beside them, as ``removed``.
        redriven: Whether records that were sent in again are meant, too.
    """
    if not is_delta(path):
        return 0
    meant = "removed IS NULL" if redriven else "removed IS NULL AND redriven_seq IS NULL"
    done = open_delta(path).update(
        updates={**dict.fromkeys((*_RAW, "detail"), "NULL"), "removed": literal(why)},
        predicate=f"{meant} AND ({where})",
    )
    seal_commits(path)
    return int(done["num_updated_rows"])


def waiting_records(quarantined: DataFrame, waiting: Waiting, reason: str | None) -> DataFrame:
    """Return the records that no redrive has sent in yet, as validation takes them, with ``_seq``.

    With a ``reason``, only those that were refused for it.
    """
    rows = quarantined.where(waiting.as_sql())
    if reason is not None:
        rows = rows.where(F.col("reason") == reason)
    raw = (F.col(name).alias(f"_{name}") for name in _RAW)
    # No offset moves, so no record is the last that was read.
    digest = F.lit(None).cast("long").alias("_digest")
    return rows.select(*COORDINATES, "_timestamp", *raw, digest, "_seq")
