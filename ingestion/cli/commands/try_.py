"""``oncelake try``: today's declaration on real records, without writing anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson, Stream
from oncelake.ingestion.cli.commands.init import (
    as_cell,
    as_json_value,
    print_quarantined,
    with_json,
)
from oncelake.ingestion.cli.commands.streams import load_stream
from oncelake.ingestion.cli.output import progress, session
from oncelake.ingestion.errors import DONE, WRONG, counted

if TYPE_CHECKING:
    from oncelake.ingestion.operations.try_stream import Trial

_SAYS = {"row": "would be applied", "delete": "would delete their row"}


def try_(
    stream: Stream,
    records: Annotated[
        int, typer.Option("--records", min=1, max=100_000, help="How many to look at, at most.")
    ] = 1_000,
    as_json: AsJson = False,
) -> None:
    """Show what a run would make of a topic's last records. Writes nothing.

    The records pass decoding, transformation and validation, by the declaration as it is now:
    how many would be applied, filtered or quarantined, and why; the last rows; which fields have
    no column; and what would change in the table first. Starts Spark only where the declaration
    has what Spark evaluates. Exits with 1 when a record would be quarantined, or a row
    would keep its batch from being published.
    """
    from oncelake.ingestion.operations.try_stream import try_stream

    spec, settings = load_stream(stream)
    with progress() as tell:
        trial = try_stream(
            spec, settings, lambda backlog: session(settings, tell, backlog), records=records
        )
    if as_json:
        output.document(_document(trial))
    else:
        _print(trial)
    is_refused = any(trial.spec.expect[name].on_miss == "refuse" for name in trial.missed)
    raise typer.Exit(WRONG if trial.bad or is_refused else DONE)


def _print(trial: Trial) -> None:
    spec, total = trial.spec, sum(trial.dispositions.values())
    many = counted(trial.records, "record")
    # An array that is exploded gives several.
    many += f", {counted(total, 'row')}," if total != trial.records else ""
    output.say(f"{spec.name}: {many} of {', '.join(map(str, trial.ranges))}")
    for disposition, count in sorted(trial.dispositions.items()):
        output.say(f"  {_SAYS.get(disposition, disposition)}: {count:,}")
    for name, count in sorted(trial.extras.items()):
        output.say(f"  {name}: {count:,}", "yellow")
    for name, count in trial.missed.items():
        rule = spec.expect[name]
        output.say(f"  {name}: {counted(count, 'row')} would miss {rule.rule}", "yellow")
    print_quarantined(trial.bad)
    output.table([*spec.types], ([as_cell(row[n]) for n in spec.types] for row in _rows(trial)))
    if trial.plan is not None and trial.plan.changes:
        output.say("The table would be changed first: oncelake plan " + spec.name, "yellow")
        for change in trial.plan.changes:
            output.say(f"  {change.field}: {change.what}")


def _rows(trial: Trial) -> Iterator[dict[str, Any]]:
    for row in trial.rows:
        yield {**row, **{n: with_json(row[n], type_) for n, type_ in trial.spec.types.items()}}


def _document(trial: Trial) -> dict[str, Any]:
    return {
        "stream": trial.spec.name,
        "schema": trial.spec.ddl,
        "ranges": [
            output.fields_of(each, "topic", "partition", "start", "end") for each in trial.ranges
        ],
        "records": trial.records,
        "dispositions": trial.dispositions,
        "extras": trial.extras,
        "missed": trial.missed,
        "bad": trial.bad,
        "rows": [as_json_value(row) for row in _rows(trial)],
        "changes": trial.plan.changes if trial.plan else None,
    }
