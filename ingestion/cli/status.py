"""``oncelake status``: where the streams stand, and what a run would meet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from ingestion.cli import output
from ingestion.cli.command import AnyStream, AsJson
from ingestion.cli.streams import chosen
from ingestion.errors import first_exit_code

if TYPE_CHECKING:
    from ingestion.operations.status import StreamStatus

_NUMBERS = ("seq", "epoch", "version", "rows", "lag", "quarantined")


def status(stream: AnyStream = None, as_json: AsJson = False) -> None:
    """Tell where the streams stand: seq, rows, lag, what waits in quarantine, who runs, refusals.

    Starts no Spark and changes nothing. Exits as a run would, without running: 3 when one would
    be refused (a red batch is refused until it is accepted), 5 when Kafka does not answer, in
    which case all but the lag is told, 2 when a file is broken. A stream that is running now is
    in order. With --json, a named stream gives its object, none gives
    `{"exit_code", "streams"}`.
    """
    from ingestion.operations.status import StatusReader
    from ingestion.settings import load_settings

    settings = load_settings()
    declared = chosen([stream] if stream else None, settings)
    reader = StatusReader(settings)
    statuses = [reader.read_status(each) for each in declared]
    code = first_exit_code(status.exit_code for status in statuses)
    if as_json:
        documents = list(map(_document, statuses))
        output.document(documents[0] if stream else {"exit_code": code, "streams": documents})
    else:
        _print(statuses)
    raise typer.Exit(code)


def _document(status: StreamStatus) -> dict[str, Any]:
    from ingestion.cli.json_output import next_document

    at = status.position
    return {
        "stream": status.stream,
        "table": status.table,
        "exists": status.exists,
        "seq": at and at.seq,
        "epoch": at and at.epoch,
        "delta_version": status.delta_version,
        "row_count": status.row_count,
        "lag": status.lag,
        "quarantined": status.waiting,
        "stalled": [str(stall) for stall in status.stalls],
        "next": next_document(at.next) if at else [],
        "learned_from": at and at.source,
        "red": status.red,
        "locked_by": status.holder,
        "problems": [problem.document()["error"] for problem in status.problems],
        "exit_code": status.exit_code,
    }


def _print(statuses: list[StreamStatus]) -> None:
    if not statuses:
        output.say("no stream is declared")
        return
    output.table(["stream", *_NUMBERS, "state"], map(_cells, statuses), right=_NUMBERS)
    for status in statuses:
        if status.holder:
            output.say(f"{status.stream}: held by {status.holder}", "yellow")
    for stall in (stall for status in statuses for stall in status.stalls):
        output.say(str(stall), "yellow")
    problems = (problem for status in statuses for problem in status.problems)
    for message in dict.fromkeys(problem.message for problem in problems):
        output.say(message, "bold red")


def _cells(status: StreamStatus) -> tuple[object, ...]:
    at = status.position
    return (
        status.stream,
        at and at.seq,
        at and at.epoch,
        status.delta_version,
        status.row_count,
        status.lag,
        status.waiting,
        _state(status),
    )


def _state(status: StreamStatus) -> str:
    words = [problem.type.removesuffix("Error") for problem in status.problems]
    if status.holder:
        words.append("running")
    if not words and not status.exists:
        words.append("no table yet")
    return ", ".join(words) or "ready"
