"""``oncelake doctor``: what is wrong, what shows it, and the command to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from ingestion.cli import output
from ingestion.cli.options import AnyStream, AsJson
from ingestion.cli.progress import Tell, progress
from ingestion.cli.streams import chosen
from ingestion.errors import UNREACHABLE, WRONG, first_exit_code

if TYPE_CHECKING:
    from ingestion.declaration.loader import DeclaredStream
    from ingestion.operations.doctor.finding import Finding
    from ingestion.operations.failure import Failure
    from ingestion.operations.status import StatusReader
    from ingestion.settings import Settings


def doctor(stream: AnyStream = None, as_json: AsJson = False) -> None:
    """Look for what is wrong with this installation, and say which command puts it right.

    Looks at this machine, at Kafka, at each stream's table, ledger, lock and checkpoints, and at
    Dagster's runs, pool slots and daemon. Starts no Spark and changes nothing. Exits with 0 when
    nothing was found, 1 when something was, 5 when all of it is that Kafka does not answer; notes
    (a sensor that is off, a run that is under way) do not count.
    """
    from ingestion.settings import load_settings

    settings = load_settings()
    declared = chosen([stream] if stream else None, settings)
    with progress() as tell:
        found = list(dict.fromkeys(_examine(settings, declared, named=bool(stream), tell=tell)))
    found.sort(key=lambda each: not each.exit_code)
    code = first_exit_code(each.exit_code for each in found)
    if as_json:
        documents = [each.document() for each in found]
        output.document({"exit_code": code, "findings": documents})
    else:
        _print(found)
    raise typer.Exit(code)


def _examine(
    settings: Settings, declared: list[DeclaredStream], *, named: bool, tell: Tell
) -> Iterator[Finding]:
    """Yield what is wrong, part by part: machine, streams, Dagster."""
    from ingestion.operations.doctor.dagster import ask_dagster, dagster_home
    from ingestion.operations.doctor.machine import diagnose_machine, read_machine
    from ingestion.operations.doctor.stream import orphans
    from ingestion.operations.status import StatusReader

    tell("looking at this machine…")
    yield from diagnose_machine(read_machine(settings, dagster_home()))
    surveyor = StatusReader(settings)
    for each in declared:
        tell(f"{each.name}: looking at its table, its ledger, its lock, and Kafka…")
        yield from _of_stream(each, settings, surveyor)
    if not named:
        yield from orphans(settings.state / "checkpoints", {each.name for each in declared})
    tell("asking Dagster…")
    yield from ask_dagster([each.name for each in declared] if named else [])


def _of_stream(
    declared: DeclaredStream, settings: Settings, surveyor: StatusReader
) -> list[Finding]:
    """Examine a stream; one that cannot be examined does not keep the others from it."""
    from ingestion.lake.paths import StreamPaths
    from ingestion.operations.doctor.stream import diagnose_stream, find_leftovers
    from ingestion.operations.failure import Failure

    try:
        problems = [_of_problem(each) for each in surveyor.read_status(declared).problems]
        left = find_leftovers(declared.name, StreamPaths.of(declared.name, settings))
        return [*problems, *diagnose_stream(left)]
    except Exception as error:  # noqa: BLE001 (what cannot be found out is a finding, too)
        return [_of_problem(Failure.of(error, stream=declared.name))]


def _of_problem(problem: Failure) -> Finding:
    """Take over what a run would meet."""
    from ingestion.operations.doctor.finding import Finding

    what, _, following = problem.message.partition(" Next: ")
    is_silence = problem.exit_code == UNREACHABLE
    return Finding(
        about="kafka" if is_silence else problem.stream or "streams",
        what=what,
        evidence=problem.type,
        command=problem.remedy or following or f"oncelake status {problem.stream or ''}".rstrip(),
        exit_code=UNREACHABLE if is_silence else WRONG,
    )


def _print(found: list[Finding]) -> None:
    for each in found:
        output.say(f"{each.about}: {each.what}", "bold red" if each.exit_code else "yellow")
        if each.evidence:
            output.say(f"  evidence: {each.evidence}")
        output.say(f"  next: {each.command}")
    wrong = sum(1 for each in found if each.exit_code)
    notes = len(found) - wrong
    told = f"; {output.counted(notes, 'note')}" if notes else ""
    if wrong:
        output.say(f"{output.counted(wrong, 'finding')}{told}", "bold red")
    else:
        output.say(f"nothing is wrong{told}", "bold green")
