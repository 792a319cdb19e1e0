"""``oncelake status``: where the streams stand, and what a run would meet."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from ingestion.cli import output
from ingestion.cli.options import AnyStream, AsJson
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
    from ingestion.settings import load_settings

    settings = load_settings()
    declared = chosen([stream] if stream else None, settings)
    from ingestion.operations.status import StatusReader

    reader = StatusReader(settings)
    found = [reader.read_status(each) for each in declared]
    code = first_exit_code(each.exit_code for each in found)
    if as_json:
        documents = [_document(each) for each in found]
        output.document(documents[0] if stream else {"exit_code": code, "streams": documents})
    else:
        _print(found)
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
        "locked_by": status.holder and asdict(status.holder),
        "problems": [problem.document()["error"] for problem in status.problems],
        "exit_code": status.exit_code,
    }


def _print(found: list[StreamStatus]) -> None:
    if not found:
        output.say("no stream is declared")
        return
    output.table(["stream", *_NUMBERS, "state"], map(_cells, found), right=_NUMBERS)
    for each in found:
        if each.holder:
            output.say(f"{each.stream}: held by {each.holder}", "yellow")
    for stall in (stall for each in found for stall in each.stalls):
        output.say(str(stall), "yellow")
    for message in dict.fromkeys(problem.message for each in found for problem in each.problems):
        output.say(message, "bold red")


def _cells(each: StreamStatus) -> tuple[object, ...]:
    at = each.position
    return (
        each.stream,
        at.seq if at else None,
        at.epoch if at else None,
        each.delta_version,
        each.row_count,
        each.lag,
        each.waiting,
        _state(each),
    )


def _state(each: StreamStatus) -> str:
    words = [problem.type.removesuffix("Error") for problem in each.problems]
    if each.holder:
        words.append("running")
    if not words and not each.exists:
        words.append("no table yet")
    return ", ".join(words) or "ready"
