"""``oncelake plan``: what a changed declaration would do to the table, like a diff."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ingestion.cli import output
from ingestion.cli.command import AsJson
from ingestion.errors import DONE, REFUSED

if TYPE_CHECKING:
    from ingestion.declaration.spec import StreamSpec
    from ingestion.recovery.schema_diff import SchemaChange, SchemaPlan

_SIGNS = {"nothing": "=", "evolve": "+", "epoch": "!", "refused": "!"}
_SAYS = {
    "nothing": "the table stays as it is",
    "evolve": "the table can be made to fit",
    "epoch": "every row would mean something else: the topic has to be read again",
    "refused": "the table cannot be made to fit",
}


def plan(
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="[STREAM]...", help="Default: all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the declarations, as they are now, would do to their tables. Changes nothing.

    Nothing; evolve (by the statements shown, before the next run reads, where the declaration says
    `schema_change: evolve`); a new epoch, or refused, with what to do instead. Exits with 3 when
    the next run would be refused.
    """
    from ingestion.declaration.loader import find_stream, load_streams
    from ingestion.lake.paths import StreamPaths
    from ingestion.recovery.schema_diff import plan_schema_change
    from ingestion.settings import load_settings

    settings = load_settings()
    if streams:
        specs = [find_stream(settings.streams, name) for name in streams]
    else:
        specs = [it.spec for it in load_streams(settings.streams) if it.spec]
    plans = [plan_schema_change(spec, StreamPaths.of(spec.name, settings)) for spec in specs]
    stopped = list(map(_is_stopped, specs, plans))
    if as_json:
        output.document({"plans": list(map(_document, plans))})
    else:
        for diff, is_stopped in zip(plans, stopped, strict=True):
            _report(diff, is_stopped=is_stopped)
    raise typer.Exit(REFUSED if any(stopped) else DONE)


def _is_stopped(spec: StreamSpec, plan: SchemaPlan) -> bool:
    """Tell whether the next run would be refused."""
    if plan.effect == "evolve":
        return spec.schema_change == "freeze"
    return plan.effect != "nothing"


def _document(plan: SchemaPlan) -> dict[str, object]:
    names = ("stream", "table", "effect", "changes")
    return {name: getattr(plan, name) for name in names}


def _report(plan: SchemaPlan, *, is_stopped: bool) -> None:
    if plan.table is None:
        output.say(f"{plan.stream}: the first run will make the table")
        return
    output.say(f"{plan.stream}: {_SAYS[plan.effect]}", "bold red" if is_stopped else "")
    for change in plan.changes:
        _print(change)
    if is_stopped and plan.effect == "evolve":
        output.say("  `schema_change: evolve` lets the next run do so")


def _print(change: SchemaChange) -> None:
    output.say(f"  {_SIGNS[change.effect]} {change.field}: {change.what}")
    if change.statement:
        output.say(f"      {change.statement}")
    if change.remedy:
        output.say(f"      instead: {change.remedy}")
