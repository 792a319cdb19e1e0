"""``oncelake adopt-table``: a table of another loader becomes a stream's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson, Stream, new_run_id
from oncelake.ingestion.cli.commands.decisions import Why
from oncelake.ingestion.cli.commands.streams import load_stream
from oncelake.ingestion.declaration.sinks import named_version
from oncelake.ingestion.errors import DONE, REFUSED, counted

if TYPE_CHECKING:
    from oncelake.ingestion.operations.audit.adopt import Adoption

_FIELDS = ("stream", "table", "found", "notices", "problems")


def adopt_table(
    stream: Stream,
    starting: Annotated[
        str,
        typer.Option(
            metavar="OFFSETS|MOMENT",
            help='The first offset that counts, as {"0": 200, "1": 180}; or 2026-11-22T10:00Z.',
        ),
    ],
    reason: Why = "",
    apply: Annotated[
        bool, typer.Option("--apply", help="Do what the plan says; without it, only show it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take over a table that another loader has filled, with its rows, from stated offsets on.

    Shows the plan: the columns that the table gets, its rows and their digest, keys that are there
    twice, and how the offsets fit the topic and those that the rows show. Changes nothing, unless
    with --apply and a --reason: then one commit adds the columns and notes what was found. Records
    from these offsets on win over the rows that are there. Killed, run it again. Exits with 3 where
    the table cannot be adopted so.
    """
    from oncelake.ingestion.operations.audit.adopt import adopt_table as adopt
    from oncelake.ingestion.operations.audit.adopt import plan_adoption

    spec, settings = load_stream(stream)
    if apply:
        done = adopt(spec, settings, starting=starting, reason=reason, run_id=new_run_id())
    else:
        done = plan_adoption(spec, settings, starting=starting)
    if as_json:
        row = output.row_document(done.row) if done.row else {}
        changes = [f"{each.field}: {each.what}" for each in done.changes]
        begin = output.next_document(done.starting)
        fields = output.fields_of(done, *_FIELDS)
        output.document({**fields, "starting": begin, "changes": changes, **row})
    else:
        _print(done)
    raise typer.Exit(REFUSED if done.problems else DONE)


def _print(done: Adoption) -> None:
    rows, found = counted(done.found["rows"], "row"), done.found
    begin = ", ".join(f"{at} offset {offset}" for at, offset in done.starting.items())
    if done.row:
        version = named_version(done.row.sink, done.row.delta_version)
        output.say(f"{done.stream}: adopted {rows} ({version}): {done.row.accepted}")
    elif done.problems:
        output.say(f"{done.stream}: {done.table} cannot be adopted so", "bold red")
    else:
        output.say(f"{done.stream}: {done.table} can be adopted")
    output.say(f"  {rows}, sha256 {found['digest']}")
    output.say(f"  records count from {begin}")
    for change in done.changes:
        output.say(f"  + {change.field}: {change.what}")
    for notice in done.notices:
        output.say(f"  not compared: {notice}", "yellow")
    for problem in done.problems:
        output.say(f"  ! {problem}", "bold red")
    if not (done.row or done.problems):
        output.say("Next: the same command with --apply and --reason '…', which does so")
