"""``oncelake adopt-table``: a table of another loader becomes a stream's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AsJson, Stream, names_in, new_run_id
from oncelake.ingestion.cli.commands.decisions import Why
from oncelake.ingestion.cli.commands.streams import load_stream
from oncelake.ingestion.declaration.sinks import named_version
from oncelake.ingestion.errors import DONE, REFUSED, counted

if TYPE_CHECKING:
    from oncelake.ingestion.operations.audit.adopt import Adoption


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
    offset_columns: Annotated[
        str | None, typer.Option(help="The rows' columns of partition and offset, or none.")
    ] = None,
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
    place = None if offset_columns is None else names_in(offset_columns.removeprefix("none"))
    given: Any = {"starting": starting, "place": place}
    if apply:
        done = adopt(spec, settings, reason=reason, run_id=new_run_id(), **given)
    else:
        done = plan_adoption(spec, settings, **given)
    if as_json:
        row = output.row_document(done.row) if done.row else {}
        fields = output.fields_of(done, "stream", "table", "found", "notices", "problems")
        fields["changes"] = [f"{each.field}: {each.what}" for each in done.changes]
        output.document({**fields, "starting": output.next_document(done.starting), **row})
    else:
        _print(done)
    raise typer.Exit(REFUSED if done.problems else DONE)


def _print(done: Adoption) -> None:
    rows, is_wrong = counted(done.found["rows"], "row"), bool(done.problems)
    says = "cannot be adopted so" if is_wrong else "can be adopted"
    if done.row:
        says = f"was adopted ({named_version(done.row.sink, done.row.delta_version)})"
    begin = ", ".join(f"{at} offset {offset}" for at, offset in done.starting.items())
    output.say(f"{done.stream}: {done.table} {says}", "bold red" if is_wrong else "")
    output.say(f"  {rows}, sha256 {done.found['digest']}")
    output.say(f"  records count from {begin}")
    signs = {"+": [f"{each.field}: {each.what}" for each in done.changes]}
    for sign, lines in {**signs, "notice:": done.notices, "!": done.problems}.items():
        for line in lines:
            output.say(f"  {sign} {line}")
    if not (done.row or is_wrong):
        output.say("Next: the same command with --apply and --reason '…', which does so")
