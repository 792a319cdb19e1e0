"""``oncelake follow``: all streams in one JVM, each run whenever it is behind."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated

import typer

from ingestion.cli import output
from ingestion.cli.command import AnyStreams, Jobs, is_debugging, new_run_id, seconds_of
from ingestion.cli.progress import STDOUT, session
from ingestion.cli.run import RunResult
from ingestion.cli.signals import Interrupt, leave_now
from ingestion.cli.streams import chosen, load_settings
from ingestion.errors import first_exit_code
from ingestion.operations.failure import Failure

if TYPE_CHECKING:
    from ingestion.declaration.loader import DeclaredStream
    from ingestion.pipeline.report import RunReport

Every = Annotated[
    float, typer.Option("--every", parser=seconds_of, metavar="TIME", help="How often to ask Kafka")
]
For = Annotated[
    float | None,
    typer.Option("--for", parser=seconds_of, metavar="TIME", help="How long; default: for good."),
]
AsLines = Annotated[
    bool, typer.Option("--json", help="Print one line of JSON on stdout for each run.")
]


def follow(
    ctx: typer.Context,
    streams: AnyStreams = None,
    every: Every = "5s",  # type: ignore[assignment]  # The option's parser reads it.
    for_: For = None,
    as_json: AsLines = False,
    jobs: Jobs = 2,
) -> None:
    """Run streams whenever Kafka holds records they have not read, in one JVM, until stopped.

    Each run is one of `oncelake run`: bounded, under the stream's own lock, with a ledger row. How
    often a stream is run, its file says (`follow:`). Files that come, change or go are noticed. A
    refused stream waits for its decision, a locked one for its turn, and Kafka is asked again in
    growing pauses; each is told once. Ctrl-C or SIGTERM ends it within seconds (exit 130 or 143);
    what is wrong in the end decides the exit code as in `oncelake run`.
    """
    settings, interrupt = load_settings(), Interrupt()
    chosen(streams, settings)
    from ingestion.operations.follow import Follow
    from ingestion.pipeline.session import SharedSpark

    def show(result: RunResult) -> None:
        with STDOUT:
            result.print_problem()
            if as_json:
                now = dt.datetime.now(dt.UTC)
                output.json_line({"at": now, **result.document()})
            else:
                result.print_summary()

    def on_report(declared: DeclaredStream, report: RunReport) -> None:
        show(RunResult(stream=declared.name, report=report))

    def on_failure(declared: DeclaredStream | None, error: Exception) -> None:
        name = declared.name if declared else None
        failure = Failure.of(error, stream=name, debug=is_debugging(ctx))
        show(RunResult(stream=name or "", failure=failure))

    following = Follow(
        settings=settings,
        spark=SharedSpark(lambda _: session(settings, output.note, None)),
        run_id=new_run_id(),
        on_report=on_report,
        on_failure=on_failure,
        streams=streams or (),
        jobs=jobs,
        every_seconds=every,
        for_seconds=for_,
        stop=interrupt.stop,
    )
    code = 0
    try:
        with interrupt.listening():
            code = following.execute()
    except KeyboardInterrupt:
        pass
    code = first_exit_code([code, interrupt.exit_code])
    if following.is_cut_off:
        leave_now(code)
    raise typer.Exit(code)
