"""``oncelake quarantine`` and ``redrive``: what could not be applied, and sending it in again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson, Stream, new_run_id
from oncelake.ingestion.cli.commands.streams import (
    declared_sink,
    load_settings,
    load_stream,
    refuse_unknown,
)
from oncelake.ingestion.cli.output import progress, session
from oncelake.ingestion.errors import DONE, WRONG, InvalidSpecError, counted

if TYPE_CHECKING:
    from oncelake.ingestion.operations.quarantine.inspect import Group, Inspection, Sample
    from oncelake.ingestion.operations.quarantine.redrive import RedriveReport

_COLUMNS = ("reason", "records", "share", "first", "last", "first seen (UTC)", "last seen (UTC)")
_COORDINATES = ("topic", "partition", "offset", "timestamp", "seq")
_IN_DOCUMENT = 10_000
_MOST_DETAILS = 5
_DETAILS_IN_DOCUMENT = 100


def quarantine(
    stream: Stream,
    reason: Annotated[str | None, typer.Option(help="Only records of this reason.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="How many samples of each reason.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Show what waits in a stream's quarantine, by reason, with samples and what to do.

    Needs neither Spark nor Kafka, and works for a stream whose file is broken. Times are Kafka's.
    Raw bytes are shown escaped and cut; the table holds them whole. Once the declaration is
    corrected, `oncelake redrive STREAM` sends the records in again.
    """
    from oncelake.ingestion.lake.ledger import known_paths
    from oncelake.ingestion.operations.quarantine.inspect import inspect

    settings = load_settings()
    paths = known_paths(stream, settings, declared_sink(stream, settings))
    refuse_unknown(stream, settings, exists=paths.quarantine.exists())
    inspection = inspect(stream, paths, reason=reason, limit=limit)
    if reason and not (inspection.groups or inspection.redriven):
        _refuse_unknown_reason(stream, reason, inspect(stream, paths, limit=0))
    if as_json:
        output.document(_document(stream, inspection))
    else:
        _print(stream, inspection)


def redrive(
    stream: Stream,
    reason: Annotated[
        str | None, typer.Option(help="Only records of this reason; default: all that wait.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send quarantined records through today's declaration again, under their own offsets.

    Those that are good now are applied in one commit, and never overwrite what came after them;
    the others stay. So do records that are another table's of the file by now, which that has to
    replay, unless --reason names theirs. Exactly once, also when it is killed: run it again. Look
    at `oncelake quarantine STREAM` first. Exits with 1 when the books do not balance.
    """
    from oncelake.ingestion.operations.quarantine.redrive import Redrive

    spec, settings = load_stream(stream)
    with progress() as tell:
        report = Redrive(
            spec=spec,
            settings=settings,
            spark=lambda backlog: session(settings, tell, backlog),
            run_id=new_run_id(),
            reason=reason,
        ).execute()
    if as_json:
        output.document(_redrive_document(report))
    else:
        _print_redrive(report)
    raise typer.Exit(DONE if report.is_balanced else WRONG)


def _refuse_unknown_reason(stream: str, reason: str, inspection: Inspection) -> None:
    """Refuse a reason that nothing waits for, where there are others."""
    if there := sorted(group.reason for group in inspection.groups):
        known = f"there are: {', '.join(there)}"
        raise InvalidSpecError(f"{stream}: nothing waits for the reason {reason!r}; {known}")


def _print(stream: str, inspection: Inspection) -> None:
    from oncelake.ingestion.declaration.messages import printable
    from oncelake.ingestion.operations.quarantine.remedies import remedy_of

    rows = [
        (
            printable(group.reason),
            group.count,
            f"{group.count / inspection.waiting:.1%}",
            *(group.first, group.last),
            *(f"{record.timestamp:%Y-%m-%d %H:%M:%S}" for record in (group.first, group.last)),
        )
        for group in inspection.groups
    ]
    if rows:
        output.table(_COLUMNS, rows, right=["records", "share"])
    else:
        output.say(f"{stream}: nothing waits in quarantine")
    for sample in inspection.samples:
        _print_sample(sample)
    if redriven := inspection.redriven:
        batches = ", ".join(f"batch {seq}: {n:,}" for seq, n in redriven.items())
        output.say(f"\nredriven, kept for the record: {sum(redriven.values()):,} ({batches})")
    if rows:
        output.say("\nwhat to do, by reason:")
        for group in inspection.groups:
            output.say(f"  {printable(group.reason)}: {remedy_of(group.reason)}")
            _print_details(group)
        output.say(f"\nNext: correct the declaration or the producer; oncelake redrive {stream}")


def _print_details(group: Group) -> None:
    """Print what differs between the records of one reason, the most frequent first."""
    from oncelake.ingestion.declaration.messages import printable

    if len(group.details) < 2:
        return
    most = group.details.most_common(_MOST_DETAILS)
    for detail, number in most:
        output.say(f"    {number:,} of these: {printable(detail) if detail else 'without detail'}")
    if others := group.count - sum(number for _, number in most):
        output.say(f"    {counted(others, 'record')} with other details (--json has more)")


def _print_sample(sample: Sample) -> None:
    from oncelake.ingestion.declaration.messages import printable

    record, row = sample.record, sample.row
    output.say(f"\n{record} (batch {record.seq}): {printable(row['reason'])}")
    lines = {
        "detail": printable(row["detail"]) if row["detail"] else "",
        "key": printable(row["key"]),
        "value": printable(row["value"]),
        "headers": sample.headers,
    }
    for name, text in lines.items():
        if text:
            output.say(f"  {name:8}{text}")


def _document(stream: str, inspection: Inspection) -> dict[str, Any]:
    from oncelake.ingestion.operations.quarantine.remedies import remedy_of

    return {
        "stream": stream,
        "waiting": inspection.waiting,
        "reasons": [
            {
                "reason": group.reason,
                "remedy": remedy_of(group.reason),
                "records": group.count,
                "share": group.count / inspection.waiting,
                "details": [
                    {"detail": detail or None, "records": number}
                    for detail, number in group.details.most_common(_DETAILS_IN_DOCUMENT)
                ],
                "first": output.fields_of(group.first, *_COORDINATES),
                "last": output.fields_of(group.last, *_COORDINATES),
            }
            for group in inspection.groups
        ],
        "samples": list(map(_sample_document, inspection.samples)),
        "redriven": [{"seq": seq, "records": n} for seq, n in inspection.redriven.items()],
    }


def _sample_document(sample: Sample) -> dict[str, Any]:
    from oncelake.ingestion.declaration.messages import printable

    row = sample.row
    names = ("reason", "detail", "schema_id", "engine_version", "run_id")
    fields = output.fields_of(sample.record, *_COORDINATES) | {
        name: row.get(name) for name in names
    }
    for name in ("key", "value"):
        raw = row[name]
        fields[name] = None if raw is None else printable(raw, longest=_IN_DOCUMENT)
        fields[f"{name}_bytes"] = None if raw is None else len(raw)
    return {**fields, "headers": sample.headers}


def _redrive_document(report: RedriveReport) -> dict[str, Any]:
    return {
        **output.fields_of(report, "stream", "run_id", "waiting", "redriven", "still_bad"),
        "balanced": report.is_balanced,
        "batches": [output.row_document(row, "problems") for row in report.batches],
        "recovered": list(map(output.row_document, report.recovered)),
    }


def _print_redrive(report: RedriveReport) -> None:
    if not report.waiting:
        output.say(f"{report.stream}: nothing waits in quarantine")
        return
    waiting = counted(report.waiting, "record")
    output.say(f"{report.stream}: redrove {report.redriven:,} of {waiting} that waited")
    for row in report.batches:
        counts = ", ".join(f"{name} {n:,}" for name, n in row.counts.items() if n)
        output.say(f"  batch {row.seq}: {counts}")
    output.note_red(report)
    for why, count in report.still_bad.items():
        output.say(f"  still bad: {count:,} {why}")
