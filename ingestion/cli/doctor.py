"""``oncelake doctor``: what is wrong, what shows it, and the command to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ingestion.cli import output
from ingestion.cli.command import AnyStream, AsJson
from ingestion.cli.progress import progress
from ingestion.cli.streams import chosen, load_settings
from ingestion.errors import first_exit_code

if TYPE_CHECKING:
    from ingestion.operations.doctor.findings import Finding


def doctor(stream: AnyStream = None, as_json: AsJson = False) -> None:
    """Look for what is wrong with this installation, and say which command puts it right.

    Looks at this machine, at Kafka, at each stream's table, ledger, lock and checkpoints, and at
    Dagster's runs, pool slots and daemon. Starts no Spark and changes nothing. Exits with 0 when
    nothing was found, 1 when something was, 5 when all of it is that Kafka does not answer; notes
    (a sensor that is off, a run that is under way) do not count.
    """
    from ingestion.operations.doctor.examine import examine

    settings = load_settings()
    declared = chosen([stream] if stream else None, settings)
    with progress() as tell:
        findings = examine(settings, declared, are_all=stream is None, tell=tell)
    code = first_exit_code(finding.exit_code for finding in findings)
    if as_json:
        output.document({"exit_code": code, "findings": findings})
    else:
        _print(findings)
    raise typer.Exit(code)


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        style = "bold red" if finding.exit_code else "yellow"
        output.say(f"{finding.about}: {finding.what}", style)
        if finding.evidence:
            output.say(f"  evidence: {finding.evidence}")
        output.say(f"  next: {finding.command}")
    wrong = sum(bool(finding.exit_code) for finding in findings)
    notes = len(findings) - wrong
    rest = f"; {output.counted(notes, 'note')}" if notes else ""
    if wrong:
        output.say(f"{output.counted(wrong, 'finding')}{rest}", "bold red")
    else:
        output.say(f"nothing is wrong{rest}", "bold green")
