"""The doctor's round: the machine, each stream, Dagster; none keeps it from the next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from ingestion.declaration.loader import DeclaredStream
from ingestion.errors import UNREACHABLE
from ingestion.lake.paths import StreamPaths
from ingestion.operations.doctor import findings as kinds
from ingestion.operations.doctor.findings import Finding
from ingestion.operations.doctor.machine import examine_machine
from ingestion.operations.doctor.stream import examine_leftovers, orphans
from ingestion.operations.failure import Failure
from ingestion.operations.status import StatusReader
from ingestion.settings import Settings, project_root

_MODULE = "assets.doctor"
_PATIENCE_SECONDS = 120
_ABOUT = "dagster"
_FINDINGS = TypeAdapter(dict[str, tuple[Finding, ...]])


def examine(
    settings: Settings,
    streams: Sequence[DeclaredStream],
    *,
    are_all: bool,
    tell: Callable[[str], None],
) -> list[Finding]:
    """Look at everything; return what is wrong before what is only noteworthy.

    Args:
        are_all: Whether no other is declared; what belongs to none of them is then an orphan.
        tell: Called with a line about what is looked at next.
    """
    tell("looking at this machine…")
    findings = list(examine_machine(settings, _dagster_home()))
    names, reader = [stream.name for stream in streams], StatusReader(settings)
    for stream in streams:
        tell(f"{stream.name}: looking at its table, its ledger, its lock, and Kafka…")
        findings += _examine_stream(stream, settings, reader)
    if are_all:
        findings += orphans(settings.state / "checkpoints", set(names))
    tell("asking Dagster…")
    findings += _examine_dagster([] if are_all else names)
    return sorted(dict.fromkeys(findings), key=lambda finding: not finding.exit_code)


def _examine_stream(
    stream: DeclaredStream, settings: Settings, reader: StatusReader
) -> list[Finding]:
    try:
        problems = [_finding_of(failure) for failure in reader.read_status(stream).problems]
        paths = StreamPaths.of(stream.name, settings)
        return [*problems, *examine_leftovers(stream.name, paths)]
    except Exception as error:  # noqa: BLE001 (what cannot be found out is a finding, too)
        return [_finding_of(Failure.of(error, stream=stream.name))]


def _finding_of(failure: Failure) -> Finding:
    """Take over what a run would meet."""
    problem, _, following = failure.message.partition(" Next: ")
    status = f"oncelake status {failure.stream or ''}".rstrip()
    facts = {"problem": problem, "remedy": failure.remedy or following or status}
    if failure.exit_code == UNREACHABLE:
        return kinds.SILENT_KAFKA.of("kafka", failure.type, **facts)
    return kinds.FAILING_RUN.of(failure.stream or "streams", failure.type, **facts)


def _dagster_home() -> Path | None:
    """Return the folder of Dagster's instance: as the environment says, else the project's."""
    given = os.environ.get("DAGSTER_HOME")
    if given:
        return Path(given)
    return project_root() if (project_root() / ".dagster").is_dir() else None


def _examine_dagster(streams: Sequence[str]) -> tuple[Finding, ...]:
    """Let Dagster's side examine itself, for these streams or all; the engine runs without it."""
    home = _dagster_home()
    if home is None:
        where = f"DAGSTER_HOME is not set, and {project_root()} holds no .dagster"
        return (kinds.NO_DAGSTER.of(_ABOUT, where),)
    try:
        answer = subprocess.run(
            [sys.executable, "-m", _MODULE, *streams],
            # Relative folders in dagster.yaml mean the working directory, as they do in `make ui`.
            cwd=project_root(),
            env={**os.environ, "DAGSTER_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        why = f"no answer within {_PATIENCE_SECONDS} s"
    else:
        if answer.returncode == 0:
            return _FINDINGS.validate_json(answer.stdout)["findings"]
        why = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
    command = f"{sys.executable} -m {_MODULE}"
    return (kinds.UNREADABLE_DAGSTER.of(_ABOUT, why, home=home, command=command),)
