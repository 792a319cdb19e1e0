"""``oncelake quarantine``: what could not be applied, why, and what it looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ingestion.cli import output
from ingestion.cli.command import AsJson, Stream
from ingestion.cli.streams import refuse_unknown

if TYPE_CHECKING:
    from ingestion.operations.inspect_quarantine import Inspection, QuarantinedRecord, Sample

_COLUMNS = ("reason", "records", "share", "first", "last", "first seen (UTC)", "last seen (UTC)")
_IN_DOCUMENT = 10_000


def quarantine(
    stream: Stream,
    reason: Annotated[str | None, typer.Option(help="Only records of this reason.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="How many samples of each reason.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Show what waits in a stream's quarantine, by reason, with samples.

    Needs neither Spark nor Kafka, and works for a stream whose file is broken. Times are Kafka's.
    Raw bytes are shown escaped and cut; the table holds them whole. Once the declaration is
    mended, `oncelake redrive STREAM` sends the records in again.
    """
    from ingestion.lake.paths import StreamPaths
    from ingestion.operations.inspect_quarantine import inspect
    from ingestion.settings import load_settings

    settings = load_settings()
    paths = StreamPaths.of(stream, settings)
    refuse_unknown(stream, settings, exists=paths.quarantine.exists())
    inspection = inspect(stream, paths, reason=reason, limit=limit)
    if as_json:
        output.document(_document(stream, inspection))
    else:
        _print(stream, inspection)


def _print(stream: str, inspection: Inspection) -> None:
    if inspection.waiting:
        output.table(_COLUMNS, _cells(inspection), right=["records", "share"])
    else:
        output.say(f"{stream}: nothing waits in quarantine")
    for sample in inspection.samples:
        _print_sample(sample)
    if redriven := inspection.redriven:
        batches = ", ".join(f"batch {seq}: {n:,}" for seq, n in redriven.items())
        output.say(f"\nredriven, kept for the record: {sum(redriven.values()):,} ({batches})")
    if inspection.waiting:
        output.say(f"\nNext: mend {stream}.yaml or the producer; oncelake redrive {stream}")


def _print_sample(sample: Sample) -> None:
    from ingestion.declaration.messages import printable

    record, row = sample.record, sample.row
    output.say(f"\n{record} (batch {record.seq}): {printable(row['reason'])}")
    lines = {
        "detail": printable(row["detail"]) if row["detail"] else "",
        "key": printable(row["key"]),
        "value": printable(row["value"]),
        "headers": _headers(sample),
    }
    for name, text in lines.items():
        if text:
            output.say(f"  {name:8}{text}")


def _cells(inspection: Inspection) -> list[tuple[object, ...]]:
    from ingestion.declaration.messages import printable

    return [
        (
            printable(group.reason),
            group.count,
            f"{group.count / inspection.waiting:.1%}",
            group.first,
            group.last,
            f"{group.first.timestamp:%Y-%m-%d %H:%M:%S}",
            f"{group.last.timestamp:%Y-%m-%d %H:%M:%S}",
        )
        for group in inspection.groups
    ]


def _headers(sample: Sample) -> str:
    from ingestion.declaration.messages import printable

    headers = sample.row["headers"] or ()
    return ", ".join(f"{printable(it['key'])}={printable(it['value'])}" for it in headers)


def _document(stream: str, inspection: Inspection) -> dict[str, Any]:
    return {
        "stream": stream,
        "waiting": inspection.waiting,
        "reasons": [
            {
                "reason": group.reason,
                "records": group.count,
                "share": group.count / inspection.waiting,
                "first": _coordinates(group.first),
                "last": _coordinates(group.last),
            }
            for group in inspection.groups
        ],
        "samples": list(map(_sample_document, inspection.samples)),
        "redriven": [{"seq": seq, "records": n} for seq, n in inspection.redriven.items()],
    }


def _coordinates(record: QuarantinedRecord) -> dict[str, Any]:
    names = ("topic", "partition", "offset", "timestamp", "seq")
    return {name: getattr(record, name) for name in names}


def _sample_document(sample: Sample) -> dict[str, Any]:
    from ingestion.declaration.messages import printable

    row = sample.row
    names = ("reason", "detail", "schema_id", "engine_version", "run_id")
    fields = {**_coordinates(sample.record), **{name: row.get(name) for name in names}}
    for name in ("key", "value"):
        raw = row[name]
        fields[name] = None if raw is None else printable(raw, longest=_IN_DOCUMENT)
        fields[f"{name}_bytes"] = None if raw is None else len(raw)
    return {**fields, "headers": _headers(sample)}
