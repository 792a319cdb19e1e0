"""``oncelake ledger``: the memory of a stream, one row a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ingestion.cli import output
from ingestion.cli.command import AsJson, Stream
from ingestion.cli.streams import refuse_unknown

if TYPE_CHECKING:
    from ingestion.lake.ledger import LedgerRow

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
    from ingestion.cli.json_output import row_document
    from ingestion.lake.ledger import Ledger
    from ingestion.lake.paths import StreamPaths
    from ingestion.settings import load_settings

    settings = load_settings()
    kept = Ledger(StreamPaths.of(stream, settings).ledger)
    refuse_unknown(stream, settings, exists=kept.exists)
    rows = kept.rows() if kept.exists else ()
    rows = rows[-last:] if last else rows
    if as_json:
        output.document({"stream": stream, "rows": list(map(row_document, rows))})
    elif not rows:
        output.say(f"{stream}: no batch yet")
    else:
        output.table(_COLUMNS, map(_cells, rows), right=["seq", "version"])


def _cells(row: LedgerRow) -> tuple[object, ...]:
    from ingestion.lake.books import COUNTS

    names = [*COUNTS, *sorted(set(row.counts) - set(COUNTS))]
    return (
        row.seq,
        row.kind,
        f"{row.committed_at:%Y-%m-%d %H:%M:%S}",
        row.delta_version,
        "\n".join(str(counted.range) for counted in row.ranges if len(counted.range)) or "-",
        "\n".join(f"{name} {row.counts[name]:,}" for name in names if row.counts.get(name)) or "-",
        "yes" if row.balanced else "NO",
        row.accepted,
    )
