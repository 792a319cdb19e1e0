"""``oncelake plan`` and ``rebuild``: a changed declaration, shown like a diff, or carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ingestion.cli import output
from ingestion.cli.command import AnyStreams, AsJson, Stream, new_run_id
from ingestion.cli.output import print_batches, progress, session
from ingestion.cli.signals import Interrupt
from ingestion.cli.streams import load_settings, load_stream
from ingestion.errors import DONE, REFUSED, WRONG

if TYPE_CHECKING:
    from ingestion.declaration.spec import StreamSpec
    from ingestion.operations.rebuild import RebuildReport
    from ingestion.recovery.schema_diff import SchemaPlan

_SIGNS = {"nothing": "=", "evolve": "+", "epoch": "!", "refused": "!"}
_SAYS = {
    "nothing": "the table stays as it is",
    "evolve": "the table can be made to fit",
    "epoch": "every row would mean something else: the topic has to be read again",
    "refused": "the table cannot be made to fit",
}


def plan(streams: AnyStreams = None, as_json: AsJson = False) -> None:
    """Show what the declarations, as they are now, would do to their tables. Changes nothing.

    Nothing; evolve (by the statements shown, before the next run reads, where the declaration says
    `schema_change: evolve`); a new epoch, or refused, with what to do instead. Exits with 3 when
    the next run would be refused.
    """
    from ingestion.declaration.loader import find_stream, load_streams
    from ingestion.lake.paths import StreamPaths
    from ingestion.recovery.schema_diff import plan_schema_change

    settings = load_settings()
    if streams:
        specs = [find_stream(settings.streams, name) for name in streams]
    else:
        specs = [it.spec for it in load_streams(settings.streams) if it.spec]
    plans = [plan_schema_change(spec, StreamPaths.of(spec.name, settings)) for spec in specs]
    stopped = list(map(_is_stopped, specs, plans))
    if as_json:
        names = ("stream", "table", "effect", "changes")
        output.document({"plans": [output.fields_of(diff, *names) for diff in plans]})
    else:
        for diff, is_stopped in zip(plans, stopped, strict=True):
            _print_plan(diff, is_stopped=is_stopped)
    raise typer.Exit(REFUSED if any(stopped) else DONE)


def rebuild(
    stream: Stream,
    without_lost: Annotated[
        bool, typer.Option("--without-lost", help="Go on without what Kafka no longer holds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a table anew from its topic, beside the old one, and swap when it has caught up.

    For a changed schema, mode, key or transformation. The old table is read and written meanwhile,
    and goes into the lake's archive in the end. Interrupted or killed, the same command goes on.
    Refused (exit 3) when Kafka no longer holds what the table was filled from. Exits with 1 when
    the books of the new table do not balance; the old one then stays in its place.
    """
    from ingestion.operations.rebuild import Rebuild
    from ingestion.operations.run import Run

    spec, settings = load_stream(stream)
    interrupt = Interrupt()
    with progress() as tell, interrupt.listening():
        run = Run(
            spec=spec,
            settings=settings,
            spark=lambda backlog: session(settings, tell, backlog),
            run_id=new_run_id(),
            on_batch=print_batches(stream, tell),
            stop=interrupt.stop,
        )
        rebuilt = Rebuild(run=run, without_lost=without_lost).execute()
    if as_json:
        output.document(_rebuild_document(rebuilt))
    else:
        _print_rebuild(rebuilt)
    if interrupt.stop.is_set():
        raise typer.Exit(interrupt.exit_code)
    raise typer.Exit(DONE if rebuilt.report.is_balanced else WRONG)


def _is_stopped(spec: StreamSpec, plan: SchemaPlan) -> bool:
    """Tell whether the next run would be refused."""
    if plan.effect == "evolve":
        return spec.schema_change == "freeze"
    return plan.effect != "nothing"


def _print_plan(plan: SchemaPlan, *, is_stopped: bool) -> None:
    if plan.table is None:
        output.say(f"{plan.stream}: the first run will make the table")
        return
    output.say(f"{plan.stream}: {_SAYS[plan.effect]}", "bold red" if is_stopped else "")
    for change in plan.changes:
        output.say(f"  {_SIGNS[change.effect]} {change.field}: {change.what}")
        if change.statement:
            output.say(f"      {change.statement}")
        if change.remedy:
            output.say(f"      instead: {change.remedy}")
    if is_stopped and plan.effect == "evolve":
        output.say("  `schema_change: evolve` lets the next run do so")


def _rebuild_document(rebuilt: RebuildReport) -> dict[str, object]:
    report = rebuilt.report
    return {
        "stream": rebuilt.stream,
        "run_id": report.run_id,
        "swapped": bool(rebuilt.archived),
        "rows": report.row_count,
        **output.fields_of(report, "seq", "lag"),
        "archived": rebuilt.archived,
    }


def _print_rebuild(rebuilt: RebuildReport) -> None:
    if not rebuilt.archived:
        output.say(f"{rebuilt.stream}: the new table is not ready; the old one is in its place")
        return
    rows = output.counted(rebuilt.report.row_count, "row")
    output.say(f"{rebuilt.stream}: the new table is in place, {rows}, lag {rebuilt.report.lag:,}")
    for path in rebuilt.archived:
        output.say(f"  archived {path}")
