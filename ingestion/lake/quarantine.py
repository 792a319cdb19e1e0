"""Records that could not be applied: raw, with the reason, under the seq of their batch."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.dataset import dataset

from oncelake.ingestion.declaration.modes import COORDINATES
from oncelake.ingestion.declaration.spec import StreamSpec, fingerprint
from oncelake.ingestion.declaration.sql import literal
from oncelake.ingestion.delta.durability import seal_commits
from oncelake.ingestion.delta.files import is_delta, open_delta, open_rows, read_delta
from oncelake.ingestion.delta.integrity import translate_read_errors
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.lake.side_tables import is_projected, read_named
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_metadata import REWOUND_TO, CommitMetadata
from oncelake.ingestion.tables.format import engine_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RAW: Final = ("key", "value", "headers")
# A format that knows the id of a record's schema begins its detail with it.
_SCHEMA_ID: Final = "^schema id ([0-9]+):"
_PLACE: Final = (*COORDINATES, "_seq")
_ROWS_AT_ONCE: Final = 8_192
# Tells the records that a redrive would send in; one that has lost its bytes can wait no more.
WAITS: Final = "redriven_seq IS NULL AND removed IS NULL"
WAITS_IN_ARROW: Final = pc.field("redriven_seq").is_null() & pc.field("removed").is_null()


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
            CAST({metadata.seq} AS BIGINT) AS _seq,
            {key}, {value}, {headers}, _reason AS reason, {detail},
            CAST(NULL AS BIGINT) AS redriven_seq,
            TRY_CAST(regexp_extract(_detail, '{_SCHEMA_ID}', 1) AS INTEGER) AS schema_id,
            '{engine_version()}' AS engine_version, {run_id} AS run_id, {declared} AS declaration,
            CASE WHEN {bare} THEN 'read before an erase' END AS removed
        FROM batch WHERE _disposition = 'quarantined'
    """


def scan_quarantine(
    paths: StreamPaths,
    columns: Sequence[str],
    note: CommitMetadata | None = None,
    table_id: str = "",
    *,
    only: pc.Expression | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the records in quarantine, with those of the columns that are there.

    Args:
        paths: The places of the stream.
        columns: Some of them, coordinates and seq first.
        note: That of the newest commit, where it may not be projected yet: it counts all the same.
        table_id: The table that it is of.
        only: Which rows are wanted.
    """
    path = paths.quarantine
    snapshot = read_delta(path) if is_delta(path) else None
    sources: list[Any] = [open_rows(path, snapshot=snapshot)] if snapshot else []
    if note and snapshot and is_projected(snapshot, paths.stream, table_id, note.seq):
        note = None
    if note and (content := read_named(path, note.side.get("quarantine"))):
        sources.append(dataset(pq.read_table(io.BytesIO(content))))
    rows = (row for each in sources for row in _scan(each, columns, only))
    yield from _marked(rows, path, note) if note else rows


def _scan(
    rows: Any, columns: Sequence[str], only: pc.Expression | None
) -> Iterator[dict[str, Any]]:
    names = [name for name in columns if name in rows.schema.names]
    for batch in rows.to_batches(columns=names, filter=only, batch_size=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


def _marked(
    rows: Iterable[dict[str, Any]], path: Location, note: CommitMetadata
) -> Iterator[dict[str, Any]]:
    """Mark what a redrive has sent in, and leave out what a rewind has undone."""
    content = read_named(path, note.side.get("redriven"))
    redriven = pq.read_table(io.BytesIO(content)).to_pylist() if content else []
    sent = {tuple(row.values()) for row in redriven}
    undone = range(note.counts[REWOUND_TO] + 1, note.seq) if note.kind == "rewind" else range(0)
    for row in rows:
        if sent and tuple(row[name] for name in _PLACE) in sent:
            row["redriven_seq"] = note.seq
        if row.get("redriven_seq") in undone:
            row["redriven_seq"] = None
        if row["_seq"] not in undone:
            yield row


def count_waiting(path: Location) -> int:
    """Count the records in quarantine that no redrive has sent in."""
    if not is_delta(path):
        return 0
    with translate_read_errors(path):
        return int(open_rows(path).count_rows(filter=WAITS_IN_ARROW))


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


def waiting_records(quarantined: DataFrame, reason: str | None) -> DataFrame:
    """Return the records that no redrive has sent in yet, as validation takes them, with ``_seq``.

    With a ``reason``, only those that were refused for it.
    """
    from pyspark.sql import functions as F

    rows = quarantined.where(WAITS)
    if reason is not None:
        rows = rows.where(F.col("reason") == reason)
    raw = (F.col(name).alias(f"_{name}") for name in _RAW)
    # No offset moves, so no record is the last that was read.
    digest = F.lit(None).cast("long").alias("_digest")
    return rows.select(*COORDINATES, "_timestamp", *raw, digest, "_seq")
