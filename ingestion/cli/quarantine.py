"""``oncelake quarantine``: what could not be applied, why, and what it looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ingestion.cli import output
from ingestion.cli.options import AsJson, Stream

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
    _refuse_unknown(stream, exists=paths.quarantine.exists())
    found = inspect(stream, paths, reason=reason, limit=limit)
    if as_json:
        output.document(_document(stream, found))
    else:
        _say(stream, found)


def _refuse_unknown(stream: str, *, exists: bool) -> None:
    from ingestion.cli.streams import declared_as
    from ingestion.declaration.names import name_problem
    from ingestion.settings import load_settings

    if name_problem(stream) or not exists:
        declared_as(stream, load_settings())


def _say(stream: str, found: Inspection) -> None:
    from ingestion.declaration.messages import printable

    if not found.waiting:
        output.say(f"{stream}: nothing waits in quarantine")
    else:
        output.table(_COLUMNS, _cells(found), right=["records", "share"])
    for sample in found.samples:
        detail = printable(sample.row["detail"]) if sample.row["detail"] else ""
        output.say(
            f"\n{sample.found} (batch {sample.found.seq}): {printable(sample.row['reason'])}"
        )
        shown = {"detail": detail, "key": printable(sample.row["key"])}
        shown |= {
            "value": printable(sample.row["value"]),
            "headers": _headers(sample),
        }
        for name, text in shown.items():
            if text:
                output.say(f"  {name:8}{text}")
    if found.redriven:
        batches = ", ".join(f"batch {seq}: {n:,}" for seq, n in found.redriven.items())
        output.say(f"\nredriven, kept for the record: {sum(found.redriven.values()):,} ({batches})")
    if found.waiting:
        output.say(f"\nNext: mend {stream}.yaml or the producer; oncelake redrive {stream}")


def _cells(found: Inspection) -> list[tuple[object, ...]]:
    from ingestion.declaration.messages import printable

    return [
        (
            printable(group.reason),
            group.count,
            f"{group.count / found.waiting:.1%}",
            group.first,
            group.last,
            f"{group.first.timestamp:%Y-%m-%d %H:%M:%S}",
            f"{group.last.timestamp:%Y-%m-%d %H:%M:%S}",
        )
        for group in found.groups
    ]


def _headers(sample: Sample) -> str:
    from ingestion.declaration.messages import printable

    headers = sample.row["headers"] or ()
    return ", ".join(f"{printable(each['key'])}={printable(each['value'])}" for each in headers)


def _document(stream: str, found: Inspection) -> dict[str, Any]:
    return {
        "stream": stream,
        "waiting": found.waiting,
        "reasons": [
            {
                "reason": group.reason,
                "records": group.count,
                "share": group.count / found.waiting,
                "first": _place(group.first),
                "last": _place(group.last),
            }
            for group in found.groups
        ],
        "samples": [_sample(each) for each in found.samples],
        "redriven": [{"seq": seq, "records": n} for seq, n in found.redriven.items()],
    }


def _place(at: QuarantinedRecord) -> dict[str, Any]:
    return {
        "topic": at.topic,
        "partition": at.partition,
        "offset": at.offset,
        "timestamp": at.timestamp.isoformat(),
        "seq": at.seq,
    }


def _sample(sample: Sample) -> dict[str, Any]:
    from ingestion.declaration.messages import printable

    row, told = sample.row, {}
    for name in ("reason", "detail", "schema_id", "engine_version", "run_id"):
        told[name] = row.get(name)
    for name in ("key", "value"):
        told[name] = None if row[name] is None else printable(row[name], longest=_IN_DOCUMENT)
        told[f"{name}_bytes"] = None if row[name] is None else len(row[name])
    return {**_place(sample.found), **told, "headers": _headers(sample)}
