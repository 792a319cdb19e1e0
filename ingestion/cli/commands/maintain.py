"""``oncelake maintain``: keeps tables quick to read, and small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AnyStreams, AsJson, is_debugging, new_run_id
from oncelake.ingestion.cli.commands.streams import chosen, load_settings
from oncelake.ingestion.cli.output import progress
from oncelake.ingestion.errors import counted, first_exit_code

if TYPE_CHECKING:
    from oncelake.ingestion.operations.upkeep.maintain import UpkeepReport

_NUMBERS = ("files", "now", "MB on disk", "MB now", "vacuumed", "rows removed")


def maintain(context: typer.Context, streams: AnyStreams = None, as_json: AsJson = False) -> None:
    """Compact small files, and remove what no rewind within its window needs.

    Of all streams, or the named: compaction (and clustering, where declared), VACUUM beyond
    `rewind_window_days`, a checkpoint of each table's log, deletes that have a newer one, and what
    `maintenance:` in the stream's file says. Changes no row, and needs neither Spark nor Kafka.
    If it is killed, run it again.
    """
    from oncelake.ingestion.operations.failure import Failure
    from oncelake.ingestion.operations.upkeep.maintain import maintain as maintain_stream

    settings, run_id = load_settings(), new_run_id()
    documents, codes = [], []
    with progress() as tell:
        for declared in chosen(streams, settings):
            try:
                spec = declared.require_spec()
                report = maintain_stream(spec, settings, run_id=run_id, tell=tell)
            except Exception as error:  # noqa: BLE001 (one stream must not take the others down)
                failure = Failure.of(error, stream=declared.name, debug=is_debugging(context))
                output.print_failure(failure)
                documents.append(failure.document())
                codes.append(failure.exit_code)
                continue
            documents.append(_document(report))
            if not as_json:
                _print(report)
    code = first_exit_code(codes)
    if as_json:
        output.document({"exit_code": code, "streams": documents})
    raise typer.Exit(code)


def _document(report: UpkeepReport) -> dict[str, object]:
    return {
        **output.fields_of(report, "stream", "tables", "payloads_removed", "swept"),
        **output.fields_of(report, "bytes_saved", "bytes_added"),
    }


def _print(report: UpkeepReport) -> None:
    if not report.tables:
        output.say(f"{report.stream}: there is no table yet")
        return
    rows = [
        (
            each.name,
            each.before.files,
            each.after.files,
            _megabytes(each.before.bytes_on_disk),
            _megabytes(each.after.bytes_on_disk),
            each.vacuumed,
            each.removed_rows,
        )
        for each in report.tables
    ]
    output.table(["table", *_NUMBERS], rows, right=_NUMBERS)
    output.say(f"{report.stream}: maintained · {_difference(report)}", "bold green")
    if report.payloads_removed:
        records = counted(report.payloads_removed, "quarantined record")
        output.say(f"  key and value of {records} removed")


def _difference(report: UpkeepReport) -> str:
    if report.bytes_added:
        return (
            f"{_megabytes(report.bytes_added)} MB more on disk, since older versions still need "
            "the files that were put together, and for the checkpoint of the log"
        )
    return f"{_megabytes(report.bytes_saved)} MB saved on disk"


def _megabytes(size: int) -> str:
    return f"{size / 1024 / 1024:,.2f}"
