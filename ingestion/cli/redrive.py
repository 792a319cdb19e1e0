"""``oncelake redrive``: what waits in quarantine, through today's declaration once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ingestion.cli import output
from ingestion.cli.command import AsJson, Stream, new_run_id
from ingestion.cli.progress import progress, session
from ingestion.cli.streams import load_stream
from ingestion.errors import DONE, WRONG

if TYPE_CHECKING:
    from ingestion.lake.ledger import LedgerRow
    from ingestion.operations.redrive import RedriveReport


def redrive(
    stream: Stream,
    reason: Annotated[
        str | None, typer.Option(help="Only records of this reason; default: all that wait.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send quarantined records through today's declaration again, under their own offsets.

    Those that are good now are applied in one commit, and never overwrite what came after them;
    the others stay. Exactly once, also when it is killed: run it again. Look at
    `oncelake quarantine STREAM` first. Exits with 1 when the books do not balance.
    """
    from ingestion.operations.redrive import Redrive

    spec, settings = load_stream(stream)
    with progress() as tell:
        report = Redrive(
            spec=spec,
            settings=settings,
            spark=lambda: session(settings, tell),
            run_id=new_run_id(),
            reason=reason,
        ).execute()
    if as_json:
        output.document(_document(report))
    else:
        _say(report)
    raise typer.Exit(DONE if report.is_balanced else WRONG)


def _document(report: RedriveReport) -> dict[str, object]:
    from ingestion.cli.json_output import batch_document, row_document

    return {
        "stream": report.stream,
        "run_id": report.run_id,
        "waiting": report.waiting,
        "redriven": report.redriven,
        "still_bad": report.still_bad,
        "balanced": report.is_balanced,
        "batches": [batch_document(row) for row in report.batches],
        "recovered": [row_document(row) for row in report.recovered],
    }


def _say(report: RedriveReport) -> None:
    if not report.waiting:
        output.say(f"{report.stream}: nothing waits in quarantine")
        return
    waiting = output.counted(report.waiting, "record")
    output.say(f"{report.stream}: redrove {report.redriven:,} of {waiting} that waited")
    for row in report.batches:
        output.say(f"  batch {row.seq}: {_books(row)}", "bold red" if row.is_red else "")
    for why, count in report.still_bad.items():
        output.say(f"  still bad: {count:,} {why}")


def _books(row: LedgerRow) -> str:
    counts = ", ".join(f"{name} {n:,}" for name, n in row.counts.items() if n)
    return f"{counts}; {row.says()}" if row.is_red else counts
