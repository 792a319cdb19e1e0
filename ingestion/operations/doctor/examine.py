"""The doctor's round: the machine, each stream, Dagster; none keeps it from the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ingestion.declaration.loader import DeclaredStream
from ingestion.errors import UNREACHABLE
from ingestion.lake.paths import StreamPaths
from ingestion.operations.doctor.dagster import ask_dagster, dagster_home
from ingestion.operations.doctor.findings import FAILING_RUN, SILENT_KAFKA, Finding
from ingestion.operations.doctor.machine import diagnose_machine, read_machine
from ingestion.operations.doctor.stream import diagnose_stream, find_leftovers, orphans
from ingestion.operations.failure import Failure
from ingestion.operations.status import StatusReader
from ingestion.settings import Settings


def examine(
    settings: Settings,
    streams: Sequence[DeclaredStream],
    *,
    are_all: bool,
    tell: Callable[[str], None],
) -> list[Finding]:
    """Look at everything; return what is wrong before what is only noteworthy.

    Args:
        settings: Where Kafka, lake and state are.
        streams: The streams to look at.
        are_all: Whether no other is declared; what belongs to none of them is then an orphan.
        tell: Is told what is looked at.
    """
    found = dict.fromkeys(_findings(settings, streams, are_all=are_all, tell=tell))
    return sorted(found, key=lambda finding: not finding.exit_code)


def _findings(
    settings: Settings,
    streams: Sequence[DeclaredStream],
    *,
    are_all: bool,
    tell: Callable[[str], None],
) -> Iterator[Finding]:
    tell("looking at this machine…")
    yield from diagnose_machine(read_machine(settings, dagster_home()))
    names, reader = [stream.name for stream in streams], StatusReader(settings)
    for stream in streams:
        tell(f"{stream.name}: looking at its table, its ledger, its lock, and Kafka…")
        yield from _examine_stream(stream, settings, reader)
    if are_all:
        yield from orphans(settings.state / "checkpoints", set(names))
    tell("asking Dagster…")
    yield from ask_dagster([] if are_all else names)


def _examine_stream(
    stream: DeclaredStream, settings: Settings, reader: StatusReader
) -> list[Finding]:
    try:
        problems = [_finding_of(failure) for failure in reader.read_status(stream).problems]
        leftovers = find_leftovers(stream.name, StreamPaths.of(stream.name, settings))
        return [*problems, *diagnose_stream(leftovers)]
    except Exception as error:  # noqa: BLE001 (what cannot be found out is a finding, too)
        return [_finding_of(Failure.of(error, stream=stream.name))]


def _finding_of(failure: Failure) -> Finding:
    """Take over what a run would meet."""
    problem, _, following = failure.message.partition(" Next: ")
    status = f"oncelake status {failure.stream or ''}".rstrip()
    facts = {"problem": problem, "remedy": failure.remedy or following or status}
    if failure.exit_code == UNREACHABLE:
        return SILENT_KAFKA.of("kafka", failure.type, **facts)
    return FAILING_RUN.of(failure.stream or "streams", failure.type, **facts)
