"""``oncelake audit``: a topic beside the table that another tool makes of it."""

from __future__ import annotations

import datetime as dt
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson, names_in, read_duration
from oncelake.ingestion.cli.commands.streams import load_settings
from oncelake.ingestion.cli.commands.verify import progress
from oncelake.ingestion.errors import WRONG, counted

if TYPE_CHECKING:
    from oncelake.ingestion.operations.audit.audit import AuditReport

_SHOWN = 10
_IN_DOCUMENT = 1_000
_COUNTS = ("records", "rows", "missing", "doubled", "different", "extra", "unproven", "unreadable")


class _RowMode(StrEnum):
    append = "append"
    upsert = "upsert"


def _read_moment(text: str) -> dt.datetime:
    """Read a moment with its zone, or a duration before now."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return dt.datetime.now(dt.UTC) - dt.timedelta(seconds=read_duration(text))
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no zone; write for example 2026-11-22T10:00Z")
    return moment


def _time(words: str) -> Any:
    return typer.Option(parser=_read_moment, metavar="TIME", help=words)


def audit(
    table: Annotated[
        str,
        typer.Option(
            help="iceberg:namespace.table, postgres:schema.table, or path or URL of a Delta table."
        ),
    ],
    topic: Annotated[str | None, typer.Option(help="Name of a Kafka topic.")] = None,
    keys: Annotated[
        str | None, typer.Option(help="Columns that identify a row, with commas between them.")
    ] = None,
    order: Annotated[
        str | None, typer.Option(help="Columns that say which record is newer; default: offsets.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="The value's columns, as Spark DDL; default: proposed.")
    ] = None,
    mode: Annotated[
        _RowMode | None, typer.Option(help="A row a record, or a key; default: upsert with --keys.")
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="json, avro, …; default with --schema: json.")
    ] = None,
    key_format: Annotated[
        str | None, typer.Option(help="How the Kafka key of a null value is encoded.")
    ] = None,
    since: Annotated[
        dt.datetime | None, _time("Only records from then on, such as 2026-11-22T10:00Z or 7d.")
    ] = None,
    until: Annotated[
        dt.datetime | None, _time("Records before then must be there; default: as rows show.")
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            parser=read_duration,
            metavar="TIME",
            help="How much later than others a partition may be loaded.",
        ),
    ] = "10m",  # type: ignore[assignment]
    deletes: Annotated[
        str | None, typer.Option(help="SQL condition of records that delete, beside null values.")
    ] = None,
    deleted_column: Annotated[
        str | None, typer.Option(help="Column of the table that marks deleted rows.")
    ] = None,
    offset_columns: Annotated[
        str | None, typer.Option(help="Columns with a record's partition and offset, for append.")
    ] = None,
    ignore_unreadable: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Judge although up to N records cannot be read."),
    ] = 0,
    file: Annotated[
        Path | None, typer.Option(help="A stream's file, in place of topic, schema, keys, …")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Write what was proposed, as a stream's file.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Show N of each kind: {_SHOWN}, or {_IN_DOCUMENT} in JSON."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find what a pipeline of any tool has lost, doubled or changed on the way from topic to table.

    For example: oncelake audit --topic orders --table s3://lake/orders --keys id. Reads topic and
    table, and writes to neither; no stream has to be declared. Exits with 0 when all is there, with
    1 when not, and with 3 when that cannot be judged.
    """
    from oncelake.ingestion.operations.audit.audit import audit as compare
    from oncelake.ingestion.operations.audit.declare import AuditRequest

    request = AuditRequest(
        table=table,
        topic=topic,
        keys=names_in(keys),
        order=names_in(order),
        schema=schema,
        mode=mode and mode.value,
        format=format_,
        key_format=key_format,
        since=since,
        until=until,
        grace=dt.timedelta(seconds=grace),
        deletes=deletes,
        deleted_column=deleted_column,
        place=names_in(offset_columns),
        ignore_unreadable=ignore_unreadable,
        file=file,
        keep=keep,
    )
    limit = limit or (_IN_DOCUMENT if as_json else _SHOWN)
    with progress() as tell:
        report = compare(request, load_settings(), limit=limit, tell=tell)
    if as_json:
        output.document(report)
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


def _print(report: AuditReport) -> None:
    verdict, style = "all is there", ""
    if report.exit_code == WRONG:
        verdict, style = f"FAILED: {counted(report.faults, 'fault')}", "bold red"
    elif report.exit_code:
        verdict, style = "cannot be judged", "yellow"
    output.say(f"{report.topic} in {report.table}: {verdict}", style)
    output.say("  " + " · ".join(f"{name} {getattr(report, name):,}" for name in _COUNTS))
    for kind, samples in report.samples.items():
        for each in samples:
            output.say(f"  {kind}: {_line(report.topic, each)}")
        if samples and (more := getattr(report, kind) - len(samples)) > 0:
            output.say(f"  … and {more:,} more {kind} (--limit, --json)")
    output.say(f"  compared: {', '.join(report.columns)}")
    if report.starting:
        output.say(f"  adopt-table would begin with --starting '{json.dumps(report.starting)}'")
    for sentence in (*report.obstacles, *report.limits):
        output.say(f"  not proven: {sentence}")


def _line(topic: str, sample: Any) -> str:
    key = ", ".join(f"{name}={value}" for name, value in sample.key.items())
    about = [f"key ({key})"] if key else []
    if sample.offset is not None:
        about.append(f"{topic}-{sample.partition} offset {sample.offset}")
    both = (
        f"{name} " + ", ".join(f"{side} {'null' if v is None else v}" for side, v in sides.items())
        for name, sides in sample.values.items()
    )
    return f"{' · '.join(about)}: {sample.what}: {'; '.join(both)}"
