"""``oncelake history``, ``rewind`` and ``replay``: going back, and reading again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson, Stream, Yes, confirm, new_run_id
from oncelake.ingestion.cli.commands.streams import (
    declared_sink,
    load_settings,
    load_stream,
    refuse_unknown,
)
from oncelake.ingestion.cli.output import progress, session
from oncelake.ingestion.declaration.sinks import named_version
from oncelake.ingestion.errors import DONE, WRONG, counted

if TYPE_CHECKING:
    from oncelake.ingestion.operations.history.replay import ReplayReport
    from oncelake.ingestion.operations.history.rewind import Savepoint

_FIELDS = ("seq", "kind", "epoch", "delta_version", "committed_at")


def history(
    stream: Stream,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last N savepoints.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the savepoints of a stream: what each batch left, and whether `rewind` can go there.

    Needs neither Spark nor Kafka. A savepoint can be reached while the table's log has its commit
    and no VACUUM has removed its files: `rewind_window_days` is how long that is certain.
    """
    from oncelake.ingestion.lake.ledger import known_paths
    from oncelake.ingestion.operations.history.rewind import read_history

    settings = load_settings()
    paths = known_paths(stream, settings, declared_sink(stream, settings))
    refuse_unknown(stream, settings, exists=paths.data.exists() or paths.ledger.exists())
    points = read_history(paths)[:last]
    if as_json:
        output.document({"stream": stream, "savepoints": list(map(_document, points))})
        return
    names = ["to", "version", "kind", "committed (UTC)", "next offsets", "reachable"]
    output.table(names, map(_cells, points), right=["version"])


def rewind(
    stream: Stream,
    to: Annotated[
        str,
        typer.Option(
            help="seq:41, version:57, or a moment with its zone, such as 2026-11-22T10:00Z."
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; the ledger keeps it.")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set table, quarantine, tombstones and next offsets back to a savepoint, together.

    The next run reads on from the offsets of that savepoint. Ledger rows of what is undone
    stay, and the rewind gets one of its own. If it is killed, it has happened completely or not
    at all, and the next run cleans up. Refuses (exit 3) when the files of the savepoint are
    gone. `oncelake history STREAM` lists the savepoints.
    """
    from oncelake.ingestion.operations.history.rewind import rewind as rewind_stream

    spec, settings = load_stream(stream)
    confirm(f"Set {stream} back to {to}?", yes=yes, refusal=f"{stream}: rewind undoes batches")
    point, row = rewind_stream(spec, settings, to=to, reason=reason, run_id=new_run_id())
    if as_json:
        output.document({"stream": stream, "to": _document(point), **output.row_document(row)})
        return
    output.say(
        f"{stream}: is as batch {point.seq} left it at {point.committed_at:%Y-%m-%d %H:%M:%S} UTC "
        f"(seq {row.seq}, {named_version(row.sink, row.delta_version)})"
    )
    output.say(f"  next offsets: {_offsets(point)}")
    output.say(f"Next: oncelake run {stream} reads on from there")


def replay(
    stream: Stream,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            help='earliest, a moment with its zone, or offsets such as \'{"orders": {"0": 100}}\'.',
        ),
    ],
    end: Annotated[
        str | None,
        typer.Option("--to", help="A moment, or offsets; default: all that the table has read."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read offsets that the table has read again, and add what is missing from it.

    Changes no row that is there, moves no offset, and leaves the quarantine as it is: use
    `redrive` for records that wait there. If it is killed, run it again. Exits with 1 when the
    books do not balance. Modes that fold records refuse (exit 3).
    """
    from oncelake.ingestion.operations.history.replay import Replay
    from oncelake.ingestion.operations.progress import Progress

    spec, settings = load_stream(stream)
    with progress() as tell:
        report = Replay(
            spec=spec,
            settings=settings,
            spark=lambda backlog: session(settings, tell, backlog),
            run_id=new_run_id(),
            begin=begin,
            end=end,
            on_batch=Progress(lambda text: tell(f"{stream}: {text}")).commit,
        ).execute()
    if as_json:
        output.document(_replay_document(report))
    else:
        _print_replay(report)
    raise typer.Exit(DONE if report.is_balanced else WRONG)


def _replay_document(report: ReplayReport) -> dict[str, object]:
    from oncelake.ingestion.lake.books import COUNTS

    return {
        **output.fields_of(report, "stream", "run_id", "ranges"),
        "balanced": report.is_balanced,
        "counts": {name: report.total(name) for name in COUNTS},
        "batches": [output.row_document(row, "problems") for row in report.batches],
        "recovered": list(map(output.row_document, report.recovered)),
    }


def _print_replay(report: ReplayReport) -> None:
    if not report.ranges:
        output.say(f"{report.stream}: the table has read nothing there")
        return
    verdict = "balanced" if report.is_balanced else "NOT balanced"
    again = counted(report.total("read"), "record")
    output.say(
        f"{report.stream}: {verdict} · {again} read again",
        "bold green" if report.is_balanced else "bold red",
    )
    output.totals(report.total)
    output.note_red(report)


def _document(point: Savepoint) -> dict[str, object]:
    return {
        "to": f"seq:{point.seq}",
        **output.fields_of(point, *_FIELDS),
        "next": output.next_document(point.next) if point.next is not None else None,
        "reachable": point.obstacle is None,
        "obstacle": point.obstacle,
    }


def _cells(point: Savepoint) -> tuple[object, ...]:
    return (
        f"seq:{point.seq}",
        point.delta_version,
        point.kind,
        f"{point.committed_at:%Y-%m-%d %H:%M:%S}",
        _offsets(point),
        f"no: {point.obstacle}" if point.obstacle else "yes",
    )


def _offsets(point: Savepoint) -> str:
    if point.next is None:
        return "unknown"
    return ", ".join(f"{at} {offset}" for at, offset in point.next.items()) or "none"
