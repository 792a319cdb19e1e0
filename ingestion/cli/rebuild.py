"""``oncelake rebuild``: the table anew, from the topic, by the declaration of today."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ingestion.cli import output
from ingestion.cli.command import AsJson, Stream, new_run_id
from ingestion.cli.progress import print_batches, progress, session
from ingestion.cli.signals import Interrupt
from ingestion.cli.streams import load_stream
from ingestion.errors import DONE, WRONG

if TYPE_CHECKING:
    from ingestion.operations.rebuild import RebuildReport


def rebuild(
    stream: Stream,
    without_lost: Annotated[
        bool, typer.Option("--without-lost", help="Go on without what Kafka no longer holds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a table anew from its topic, beside the old one, and swap when it has caught up.

    For a changed schema, mode, key or transformation. The old table is read and written meanwhile,
    and goes into the lake's archive in the end. Interrupted or killed, the same command goes on.
    Refused (exit 3) when Kafka no longer holds what the table was filled from. Exits with 1 when
    the books of the new table do not balance; the old one then stays in its place.
    """
    from ingestion.operations.rebuild import Rebuild

    spec, settings = load_stream(stream)
    interrupt = Interrupt()
    with progress() as tell, interrupt.listening(), interrupt.patiently():
        rebuilt = Rebuild(
            spec=spec,
            settings=settings,
            spark=lambda: session(settings, tell),
            run_id=new_run_id(),
            without_lost=without_lost,
            on_batch=print_batches(stream, tell),
            stop=interrupt.stop,
        ).execute()
    if as_json:
        output.document(_document(rebuilt))
    else:
        _say(rebuilt)
    if interrupt.stop.is_set():
        raise typer.Exit(interrupt.exit_code)
    raise typer.Exit(DONE if rebuilt.report.is_balanced else WRONG)


def _document(rebuilt: RebuildReport) -> dict[str, object]:
    return {
        "stream": rebuilt.stream,
        "run_id": rebuilt.report.run_id,
        "swapped": bool(rebuilt.archived),
        "rows": rebuilt.report.row_count,
        "seq": rebuilt.report.seq,
        "lag": rebuilt.report.lag,
        "archived": rebuilt.archived,
    }


def _say(rebuilt: RebuildReport) -> None:
    if not rebuilt.archived:
        output.say(f"{rebuilt.stream}: the new table is not ready; the old one is in its place")
        return
    rows = output.counted(rebuilt.report.row_count, "row")
    output.say(f"{rebuilt.stream}: the new table is in place, {rows}, lag {rebuilt.report.lag:,}")
    for path in rebuilt.archived:
        output.say(f"  archived {path}")
