"""``oncelake ledger``: the memory of a stream, one row a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ingestion.cli import output
from ingestion.cli.options import AsJson, Stream

if TYPE_CHECKING:
    from ingestion.lake.ledger import LedgerRow
    from ingestion.settings import Settings

_COLUMNS = (
    "seq", "kind", "committed at (UTC)", "version", "ranges", "counts", "balanced", "accepted"
)  # fmt: skip


def ledger(
    stream: Stream,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last N batches.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the ledger of a stream: what each batch read, what became of it, and the verdict.

    Needs neither Spark nor Kafka, and works for a stream whose file is broken or gone, as long as
    its ledger is there.
    """
    from ingestion.settings import load_settings

    rows = _rows(stream, load_settings())
    rows = rows[-last:] if last else rows
    if as_json:
        from ingestion.cli.json_output import row_document

        output.document({"stream": stream, "rows": [row_document(row) for row in rows]})
    elif not rows:
        output.say(f"{stream}: no batch yet")
    else:
        output.table(_COLUMNS, map(_cells, rows), right=["seq", "version"])


def _rows(stream: str, settings: Settings) -> tuple[LedgerRow, ...]:
    from ingestion.cli.streams import declared_as
    from ingestion.declaration.names import name_problem
    from ingestion.lake.ledger import Ledger
    from ingestion.lake.paths import StreamPaths

    book = Ledger(StreamPaths.of(stream, settings).ledger)
    if name_problem(stream) or not book.exists:
        declared_as(stream, settings)
        return ()
    return book.rows()


def _cells(row: LedgerRow) -> tuple[object, ...]:
    from ingestion.lake.books import COUNTS

    known = [*COUNTS, *sorted(set(row.counts) - set(COUNTS))]
    return (
        row.seq,
        row.kind,
        f"{row.committed_at:%Y-%m-%d %H:%M:%S}",
        row.delta_version,
        "\n".join(str(each.range) for each in row.ranges if len(each.range)) or "-",
        "\n".join(f"{name} {row.counts[name]:,}" for name in known if row.counts.get(name)) or "-",
        "yes" if row.balanced else "NO",
        row.accepted,
    )
