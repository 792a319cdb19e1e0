"""``oncelake plan`` and ``rebuild``: a changed declaration, shown like a diff, or carried out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import AnyStreams, AsJson, Stream, Yes, confirm, new_run_id
from oncelake.ingestion.cli.commands.decisions import Why, note_waiting
from oncelake.ingestion.cli.commands.streams import chosen, load_settings, load_stream
from oncelake.ingestion.cli.output import progress, session
from oncelake.ingestion.cli.signals import Interrupt
from oncelake.ingestion.errors import (
    DONE,
    UNREACHABLE,
    WRONG,
    IngestionError,
    counted,
    first_exit_code,
)

if TYPE_CHECKING:
    from oncelake.ingestion.declaration.files.loader import DeclaredStream
    from oncelake.ingestion.declaration.spec import StreamSpec
    from oncelake.ingestion.operations.failure import Failure
    from oncelake.ingestion.operations.history.rebuild import RebuildReport
    from oncelake.ingestion.operations.status.status import StatusReader, StreamStatus
    from oncelake.ingestion.recovery.schema_diff import SchemaPlan
    from oncelake.ingestion.settings import Settings

_SHOWN_AS_DIFF = ("IdentityChangedError", "SchemaChangedError")
_SIGNS = {"nothing": "=", "evolve": "+", "onward": "~", "alter": "*", "epoch": "!", "refused": "!"}
_SAYS = {
    "nothing": "the table stays as it is",
    "evolve": "the table can be made to fit",
    "onward": "records say something else from the next run on; the rows that are there stay",
    "alter": "`oncelake alter` makes the table fit, without the topic",
    "epoch": "every row would mean something else: the topic has to be read again",
    "refused": "the table cannot be made to fit",
}


def plan(streams: AnyStreams = None, as_json: AsJson = False) -> None:
    """Show what the declarations, as they are now, would do to their tables. Changes nothing.

    Nothing; onward (records say something else from the next run on); evolve (by the statements
    shown, before the next run reads, where the declaration says `schema_change: evolve`); alter
    (`oncelake alter` renames, drops or moves columns); a new epoch, or refused, with what to do
    instead. Exits with 3 when the next run would be refused, for this or any other reason that
    `oncelake status` shows, and with 2 when a file is broken. Says so when Kafka does not answer;
    that alone does not change the exit code.
    """
    from oncelake.ingestion.operations.status.status import StatusReader

    settings = load_settings()
    reader = StatusReader(settings)
    plans = [_plan_of(declared, settings, reader) for declared in chosen(streams, settings)]
    code = first_exit_code(plan.exit_code for plan in plans)
    if as_json:
        output.document({"exit_code": code, "plans": [plan.document() for plan in plans]})
    else:
        for plan in plans:
            plan.print()
    for message in dict.fromkeys(message for plan in plans for message in plan.unknown):
        output.note(f"what Kafka would refuse is not known: {message}", "yellow")
    raise typer.Exit(code)


def rebuild(
    stream: Stream,
    without_lost: Annotated[
        bool, typer.Option("--without-lost", help="Go on without what Kafka no longer holds.")
    ] = False,
    reason: Why = "",
    as_json: AsJson = False,
) -> None:
    """Build a new table from the topic, beside the old one, and swap when it has caught up.

    For a changed schema, mode, key, transformation or sink. The old table can be read and written
    during that time, and goes into the lake's archive in the end; one outside the lake stays
    there, by another name where the new one takes its own. Interrupted or killed, the same
    command goes on; once the tables change places, `oncelake run` does. Refused (exit 3) when
    Kafka no longer holds what the table was filled from. Exits with 1 when the books of the new
    table do not balance; the old one then stays in its place.
    """
    from oncelake.ingestion.operations.history.rebuild import Rebuild
    from oncelake.ingestion.operations.run import Run

    spec, settings = load_stream(stream)
    interrupt = Interrupt()
    with progress() as tell, interrupt.listening():
        run = Run(
            spec=spec,
            settings=settings,
            spark=lambda backlog: session(settings, tell, backlog),
            run_id=new_run_id(),
            tell=lambda text: tell(f"{stream}: {text}"),
            stop=interrupt.stop,
        )
        rebuilt = Rebuild(run=run, without_lost=without_lost, reason=reason.strip()).execute()
    output.note_red(rebuilt.report)
    note_waiting(stream, rebuilt.old.archived)
    if as_json:
        output.document(_rebuild_document(rebuilt))
    else:
        _print_rebuild(rebuilt)
    if rebuilt.old.named:
        raise typer.Exit(DONE)
    raise typer.Exit(WRONG if not rebuilt.report.is_balanced else interrupt.exit_code)


def alter(stream: Stream, yes: Yes = False, as_json: AsJson = False) -> None:
    """Give a table the columns of its file, without the topic: rows stay, and their values.

    Renames by `renamed_from`, drops what the file no longer declares (asks first), adds, widens,
    and sets order and comments where the sink can, in one commit; needs neither Spark nor Kafka.
    Writes the entry of a Delta table's catalog, too. `oncelake plan STREAM` shows what it would
    do. If it is killed, run it again. Refuses (exit 3) what only a rebuild can do. `rewind` goes
    back over it.
    """
    from oncelake.ingestion.operations.alter import alter as alter_stream
    from oncelake.ingestion.operations.alter import dropped_columns

    spec, settings = load_stream(stream)
    if drops := dropped_columns(spec, settings):
        what = f"{', '.join(drops)} of {stream}, with all values"
        confirm(f"Drop {what}?", yes=yes, refusal=f"{stream}: alter would drop {what}")
    with progress() as tell:
        done = alter_stream(spec, settings, drops=drops, run_id=new_run_id(), tell=tell)
    if as_json:
        changes = output.fields_of(done, "changes", "notices")
        row = output.row_document(done.row) if done.row else {}
        output.document({"stream": stream, **changes, **row})
        return
    for notice in done.notices:
        output.say(f"notice: {notice}", "yellow")
    if done.row is None:
        output.say(f"{stream}: the table has its columns as declared")
        return
    output.say(f"{stream}: altered (seq {done.row.seq})")
    for change in done.changes:
        output.say(f"  {_SIGNS[change.effect]} {change.field}: {change.what}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """The plan of a stream's next run.

    Attributes:
        diff: What becomes of the table; ``None`` of a broken file.
        refusals: What the run would be refused for, and what is wrong with the file.
        unknown: Why it is not known whether there is more.
        notices: What a person should decide about the file.
    """

    stream: str
    diff: SchemaPlan | None
    refusals: tuple[Failure, ...]
    unknown: tuple[str, ...]
    notices: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """The code that this stream alone would give."""
        return first_exit_code(failure.exit_code for failure in self.refusals)

    def document(self) -> dict[str, object]:
        """Return the JSON form."""
        names = ("table", "effect", "changes", "lookup")
        return {
            "stream": self.stream,
            **(output.fields_of(self.diff, *names) if self.diff else {}),
            "refusals": [failure.document()["error"] for failure in self.refusals],
            "notices": self.notices,
        }

    def print(self) -> None:
        """Print it like a diff."""
        shown = _SHOWN_AS_DIFF if self.diff and self.diff.changes else ()
        if self.diff is not None:
            is_stopped = any(failure.type in shown for failure in self.refusals)
            _print_plan(self.diff, is_stopped=is_stopped)
            if self.diff.lookup:
                output.say(f"  {self.diff.lookup}")
        for failure in self.refusals:
            if failure.type not in shown:
                output.say(failure.message, "bold red")
        for notice in self.notices:
            output.say(f"  notice: {notice}", "yellow")


def _plan_of(declared: DeclaredStream, settings: Settings, reader: StatusReader) -> _Plan:
    from oncelake.ingestion.lake.paths import StreamPaths
    from oncelake.ingestion.recovery.schema_diff import plan_schema_change
    from oncelake.ingestion.recovery.topics import as_of_its_table
    from oncelake.ingestion.storage.volumes import translate_disk_errors

    spec, diff, unread = declared.spec, None, ""
    status = reader.read_status(declared)
    try:
        if spec:
            with translate_disk_errors(spec.name):
                paths = StreamPaths.of(spec.name, settings, spec.sink)
                spec = as_of_its_table(spec, paths)
                diff = plan_schema_change(spec, paths)
    except IngestionError as error:
        status.add(error)
        unread = str(error)
    problems = {failure.message: failure for failure in status.problems}.values()
    # Without the table nothing is planned; without Kafka all but what it would refuse.
    silent = [each for each in problems if each.exit_code == UNREACHABLE and each.message != unread]
    return _Plan(
        stream=declared.name,
        diff=diff,
        refusals=tuple(each for each in problems if each not in silent),
        unknown=tuple(each.message for each in silent),
        notices=tuple(_notices(declared, spec, status, settings) if spec else status.notices),
    )


def _notices(
    declared: DeclaredStream, spec: StreamSpec, status: StreamStatus, settings: Settings
) -> Iterator[str]:
    """Yield what a person should know of a stream beside what would change."""
    from oncelake.ingestion.declaration.rules.notices import notices_of

    yield from notices_of(spec)
    known = status.position.identity.topic_ids if status.position else {}
    # A typing error may be the name of another topic, and no run is refused for that.
    for topic in spec.subscribed if known else ():
        if topic not in known:
            yield f"topic {topic} is new: the next run reads it from its start into this table"
    if spec.schema_from:
        from oncelake.ingestion.operations.discover import newer_columns

        with suppress(IngestionError):
            yield from tuple(newer_columns(declared.path, spec, settings))
    yield from status.notices
    if not status.exists and not status.problems:
        from oncelake.ingestion.operations.init.unfilled_columns import unfilled_columns

        # An empty topic says nothing.
        with suppress(IngestionError):
            yield from tuple(unfilled_columns(spec, settings))


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
            output.say(f"      {'' if change.effect == 'onward' else 'instead: '}{change.remedy}")
    if is_stopped and plan.effect == "evolve":
        by_alter = f"; `oncelake alter {plan.stream} --yes` does it now" if plan.is_ours else ""
        output.say(f"  `schema_change: evolve` lets the next run do so{by_alter}")


def _rebuild_document(rebuilt: RebuildReport) -> dict[str, object]:
    report = rebuilt.report
    return {
        "stream": rebuilt.stream,
        "run_id": report.run_id,
        "balanced": report.is_balanced,
        "swapped": bool(rebuilt.old.named),
        "rows": report.row_count,
        **output.fields_of(report, "seq", "lag"),
        "batches": [output.row_document(row, "problems") for row in report.batches],
        "archived": rebuilt.old.named,
    }


def _print_rebuild(rebuilt: RebuildReport) -> None:
    if not rebuilt.old.named:
        output.say(f"{rebuilt.stream}: the new table is not ready; the old one is in its place")
        return
    rows = counted(rebuilt.report.row_count or 0, "row")
    output.say(f"{rebuilt.stream}: the new table is in place, {rows}, lag {rebuilt.report.lag:,}")
    for path in rebuilt.old.archived:
        output.say(f"  archived {path}")
    if rebuilt.old.renamed:
        output.say(f"  the old table is {rebuilt.old.renamed}")
