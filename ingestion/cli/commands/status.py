"""``oncelake status``, ``ledger`` and ``doctor``: where streams stand, and what is wrong."""

from __future__ import annotations

import datetime as dt
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import WATCH_EVERY, AnyStream, AsJson, Stream, read_duration
from oncelake.ingestion.cli.commands.streams import chosen, load_settings, refuse_unknown
from oncelake.ingestion.cli.output import progress
from oncelake.ingestion.cli.signals import Interrupt
from oncelake.ingestion.errors import counted, first_exit_code

if TYPE_CHECKING:
    from oncelake.ingestion.lake.ledger import LedgerRow
    from oncelake.ingestion.operations.doctor.findings import Finding
    from oncelake.ingestion.operations.status.status import StreamStatus


_HEADINGS = ("seq", "epoch", "version", "rows", "lag", "quarantined", "headroom")
_COLUMNS = (
    "seq", "kind", "committed at (UTC)", "version", "ranges", "counts", "balanced", "accepted"
)  # fmt: skip


Watch = Annotated[
    float | None,
    typer.Option(
        "--watch",
        parser=lambda text: read_duration(f"{text}s" if text.isdigit() else text),
        metavar="[SECONDS]",
        help=f"Show it again and again, every {WATCH_EVERY} by default, until Ctrl-C.",
    ),
]


def status(stream: AnyStream = None, as_json: AsJson = False, watch: Watch = None) -> None:
    """Show where the streams stand: seq, rows, lag, what waits in quarantine, who runs, refusals.

    Starts no Spark and changes nothing. The headroom is how long until Kafka may delete the next
    unread record. Exits as a run would, without running: 3 when one would be refused (a red batch
    is refused until it is accepted), 5 when Kafka does not answer, in which case all but the lag
    is shown, 2 when a file is broken; and 1 when a run would go through, but the headroom is less
    than the stream's `retention_warning`, by default a quarter of what the topic retains. What a
    run finds out only as it reads (SQL that Spark refuses, too many bad records) is not known. A
    stream that is running now is in order. Exits with 2 when no stream is declared at all. With
    --json, a named stream gives its object, none gives `{"exit_code", "streams"}`; with --watch,
    each time on a line of its own. Ctrl-C or SIGTERM ends --watch (exit 130 or 143). Where there is
    a Dagster instance, says whose runs it does not start; --watch does not ask it.
    """
    if watch is not None:
        _watch(stream, as_json, watch)
    statuses = _read(stream)
    if not as_json:
        _print_statuses(statuses)
    _add_idle(statuses)
    if as_json:
        output.document(_documents(statuses, stream))
    else:
        for status in statuses:
            for text in (*status.notices, *filter(None, [status.idle])):
                output.say(f"{status.stream}: {text}", "yellow")
    raise typer.Exit(first_exit_code(status.exit_code for status in statuses))


def _read(stream: str | None) -> list[StreamStatus]:
    from oncelake.ingestion.operations.status.status import StatusReader

    settings = load_settings()
    declared = chosen([stream] if stream else None, settings)
    return list(map(StatusReader(settings).read_status, declared))


def _add_idle(statuses: list[StreamStatus]) -> None:
    """Add the streams for which Dagster starts no runs."""
    from oncelake.ingestion.operations.doctor.examine import find_idle

    idle = {
        finding.about: f"{finding.what}. Next: {finding.command}" for finding in find_idle(statuses)
    }
    for status in statuses:
        status.idle = idle.get(status.stream) or idle.get("dagster")


def _watch(stream: str | None, as_json: bool, seconds: float) -> NoReturn:
    """Show the status until somebody asks to stop; on a terminal, in place."""
    interrupt, console = Interrupt(), output.out()
    with interrupt.listening(), suppress(KeyboardInterrupt):
        while not interrupt.stop.is_set():
            statuses = _read(stream)
            if as_json:
                output.json_line({"at": dt.datetime.now(dt.UTC), **_documents(statuses, stream)})
            else:
                console.clear()
                output.say(f"{time.strftime('%H:%M:%S')}, every {seconds:g} s; Ctrl-C ends this")
                _print_statuses(statuses)
            interrupt.stop.wait(seconds)
    raise typer.Exit(interrupt.exit_code)


def ledger(
    stream: Stream,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last N batches.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the ledger of a stream: what each batch read, what became of it, and the verdict.

    Needs neither Spark nor Kafka, and works for a stream whose file is broken or gone, as long as
    its ledger is there.
    """
    from oncelake.ingestion.lake.ledger import Ledger
    from oncelake.ingestion.lake.paths import StreamPaths

    settings = load_settings()
    table = Ledger(StreamPaths.of(stream, settings).ledger)
    refuse_unknown(stream, settings, exists=table.exists)
    rows = table.rows() if table.exists else ()
    rows = rows[-last:] if last else rows
    if as_json:
        output.document({"stream": stream, "rows": list(map(output.row_document, rows))})
    elif not rows:
        output.say(f"{stream}: no batch yet")
    else:
        output.table(_COLUMNS, map(_ledger_cells, rows), right=["seq", "version"])


def doctor(stream: AnyStream = None, as_json: AsJson = False) -> None:
    """Find what is wrong with this installation, and say which command fixes it.

    Looks at this machine, at Kafka, at each stream's table, ledger, lock and checkpoints, and at
    Dagster's runs, pool slots and daemon. Starts no Spark and changes nothing. Exits with 0 when
    nothing was found, 1 when something was, 5 when all of it is that Kafka does not answer; notes
    (a sensor that is off, a run that is under way) do not count.
    """
    from oncelake.ingestion.declaration.files.loader import load_streams
    from oncelake.ingestion.operations.doctor.examine import examine

    settings = load_settings()
    declared = chosen([stream], settings) if stream else load_streams(settings.streams)
    with progress() as tell:
        findings = examine(settings, declared, are_all=stream is None, tell=tell)
    code = first_exit_code(finding.exit_code for finding in findings)
    if as_json:
        output.document({"exit_code": code, "findings": findings})
    else:
        _print_findings(findings)
    raise typer.Exit(code)


def _documents(statuses: list[StreamStatus], stream: str | None) -> dict[str, Any]:
    documents = list(map(_status_document, statuses))
    if stream:
        return documents[0]
    code = first_exit_code(status.exit_code for status in statuses)
    return {"exit_code": code, "streams": documents}


def _status_document(status: StreamStatus) -> dict[str, Any]:
    at = status.position
    return {
        **output.fields_of(status, "stream", "table", "exists"),
        **_numbers(status),
        "committed_at": status.committed_at,
        "retention_headroom_seconds": _headroom(status),
        "retention": status.retention and status.retention.document(),
        "stalled": [str(stall) for stall in status.stalls],
        "next": output.next_document(at.next) if at else [],
        "learned_from": at and at.source,
        "red": status.red,
        "unknown": status.unknown,
        "locked_by": status.holder,
        "notices": status.notices,
        "idle": status.idle,
        "problems": [problem.document()["error"] for problem in status.problems],
        "exit_code": status.exit_code,
    }


def _numbers(status: StreamStatus) -> dict[str, int | None]:
    at = status.position
    return {
        "seq": at and at.seq,
        "epoch": at and at.epoch,
        **output.fields_of(status, "delta_version", "row_count", "lag"),
        "quarantined": status.waiting,
    }


def _headroom(status: StreamStatus) -> float | None:
    least = status.retention and status.retention.least
    return least.seconds if least else None


def _headroom_text(status: StreamStatus) -> str | None:
    from oncelake.ingestion.kafka.retention import duration

    if status.retention is not None and status.retention.unknown:
        return "unknown"
    seconds = _headroom(status)
    return None if seconds is None else duration(seconds)


def _print_statuses(statuses: list[StreamStatus]) -> None:
    from oncelake.ingestion.recovery.heal import unknown_batches

    rows = [
        (status.stream, *_numbers(status).values(), _headroom_text(status), _state(status))
        for status in statuses
    ]
    output.table(["stream", *_HEADINGS, "state"], rows, right=_HEADINGS)
    for status in statuses:
        if status.holder:
            output.say(f"{status.stream}: held by {status.holder}", "yellow")
    for status in statuses:
        retention = status.retention
        # The cause of a refusal is often why the headroom is unknown: it is printed below.
        is_said = ("ok", "unknown") if status.problems else ("ok",)
        if retention is not None and retention.level not in is_said:
            output.say(str(retention), "bold red" if retention.is_low else "yellow")
    for stall in (stall for status in statuses for stall in status.stalls):
        output.say(str(stall), "yellow")
    for status in (status for status in statuses if status.unknown):
        output.say(f"{status.stream}: {unknown_batches(status.stream, status.unknown)}", "yellow")
    problems = (problem for status in statuses for problem in status.problems)
    for message in dict.fromkeys(problem.message for problem in problems):
        output.say(message, "bold red")


def _state(status: StreamStatus) -> str:
    words = [problem.words for problem in status.problems]
    if status.holder:
        words.append("running")
    if not words and not status.exists:
        words.append("no table yet")
    return ", ".join(words) or "ready"


def _ledger_cells(row: LedgerRow) -> tuple[object, ...]:
    from oncelake.ingestion.lake.books import COUNTS

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


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        style = "bold red" if finding.exit_code else "yellow"
        output.say(f"{finding.about}: {finding.what}", style)
        if finding.evidence:
            output.say(f"  evidence: {finding.evidence}")
        output.say(f"  next: {finding.command}")
    wrong = sum(bool(finding.exit_code) for finding in findings)
    notes = len(findings) - wrong
    rest = f"; {counted(notes, 'note')}" if notes else ""
    if wrong:
        output.say(f"{counted(wrong, 'finding')}{rest}", "bold red")
    else:
        output.say(f"nothing is wrong{rest}", "bold green")
