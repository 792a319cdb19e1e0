"""``oncelake run`` and ``follow``: several streams, side by side, in one JVM."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelake.ingestion.cli import output
from oncelake.ingestion.cli.command import (
    AnyStreams,
    AsJson,
    Jobs,
    Streams,
    is_debugging,
    new_run_id,
    read_duration,
)
from oncelake.ingestion.cli.commands.streams import chosen, load_settings
from oncelake.ingestion.cli.end_process import leave_now
from oncelake.ingestion.cli.output import STDOUT, progress, session
from oncelake.ingestion.cli.signals import Interrupt
from oncelake.ingestion.declaration.sinks import named_version
from oncelake.ingestion.errors import (
    DONE,
    WRONG,
    DependencyError,
    counted,
    first_exit_code,
)
from oncelake.ingestion.operations.failure import Failure

if TYPE_CHECKING:
    from oncelake.ingestion.declaration.files.loader import DeclaredStream
    from oncelake.ingestion.kafka.admin import Kafka
    from oncelake.ingestion.operations.follow.together import SharedReading
    from oncelake.ingestion.pipeline.report import RunReport
    from oncelake.ingestion.pipeline.spark.session import SharedSpark
    from oncelake.ingestion.settings import Settings
    from oncelake.ingestion.tables.commit_metadata import CountedRange
    from oncelake.ingestion.tables.table import Tell


_MOST_RANGES = 24

Every = Annotated[
    float,
    typer.Option("--every", parser=read_duration, metavar="TIME", help="How often to ask Kafka"),
]
For = Annotated[
    float | None,
    typer.Option(
        "--for", parser=read_duration, metavar="TIME", help="How long; default: for good."
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", min=1, max=65535, help="Serve metrics to Prometheus there."),
]
MetricsHost = Annotated[
    str, typer.Option("--metrics-host", help="Address to serve them at; default: this host only.")
]
AsLines = Annotated[
    bool, typer.Option("--json", help="Print one line of JSON on stdout for each run.")
]


def run(ctx: typer.Context, streams: Streams, as_json: AsJson = False, jobs: Jobs = 2) -> None:
    """Read what Kafka holds now into the tables of these streams, and balance the books.

    The streams share one JVM and run side by side, at most --jobs at once; those of one file with
    `tables` count as one, and read Kafka once. The file's name stands for all. Whether there is
    anything to read, Kafka is asked once for all. One that fails does not keep the others from
    running: the exit code is then the first of 1 (red books), 3 (refused), 5 (a dependency), 4
    (locked), 2 (a broken declaration) that occurred. A name that is not declared at all is a
    mistyped command: nothing runs, and it exits with 2. Ctrl-C or SIGTERM ends all of them within
    seconds (exit 130 or 143) and loses nothing. With --json, one stream gives its report, several
    give `{"run_id", "exit_code", "streams"}`.
    """
    settings = load_settings()
    declared = chosen(streams, settings)
    runs = _Runs(settings=settings, run_id=new_run_id(), debug=is_debugging(ctx), as_json=as_json)
    outcomes = runs.execute(declared, jobs)
    code = first_exit_code(outcome.exit_code for outcome in outcomes)
    if as_json:
        documents = [outcome.document() for outcome in outcomes]
        several = {"run_id": runs.run_id, "exit_code": code, "streams": documents}
        output.document(several if len(documents) > 1 else documents[0])
    if runs.is_cut_off:
        leave_now(code)
    raise typer.Exit(code)


def follow(
    ctx: typer.Context,
    streams: AnyStreams = None,
    every: Every = "5s",  # type: ignore[assignment]  # The option's parser reads it.
    for_: For = None,
    as_json: AsLines = False,
    jobs: Jobs = 2,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Run streams whenever Kafka holds records they have not read, in one JVM, until stopped.

    Each run is one of `oncelake run`: bounded, under the stream's own lock, with a ledger row.
    The field `follow:` of a stream's file says how often it is run. Added, changed and removed
    files are noticed. A refused stream waits for a decision and a locked one for its lock;
    Kafka is tried again after growing pauses. Each problem is reported once. Ctrl-C or SIGTERM
    ends it within seconds (exit 130 or 143); else the exit code is that of `oncelake run`.
    """
    settings, interrupt = load_settings(), Interrupt()
    chosen(streams, settings)
    from oncelake.ingestion.operations.follow.follow import Follow
    from oncelake.ingestion.operations.telemetry import serving
    from oncelake.ingestion.pipeline.spark.session import SharedSpark

    show = partial(_print_followed, as_json=as_json)

    def on_failure(declared: DeclaredStream | None, error: Exception) -> None:
        name = declared.name if declared else ""
        failure = Failure.of(error, stream=name or None, debug=is_debugging(ctx))
        show(RunResult(stream=name, failure=failure))

    following = Follow(
        settings=settings,
        spark=SharedSpark(lambda _: session(settings, output.note, None)),
        run_id=new_run_id(),
        on_report=lambda _, report: show(RunResult.of(report, settings)),
        on_failure=on_failure,
        streams=streams or (),
        jobs=jobs,
        every_seconds=every,
        for_seconds=for_,
        stop=interrupt.stop,
    )
    code = 0
    with suppress(KeyboardInterrupt), interrupt.listening(), serving(metrics_port, metrics_host):
        code = following.execute()
    code = first_exit_code([code, interrupt.exit_code])
    if following.is_cut_off:
        leave_now(code)
    raise typer.Exit(code)


def _print_followed(result: RunResult, *, as_json: bool) -> None:
    with STDOUT:
        result.print_problem()
        if as_json:
            output.json_line({"at": dt.datetime.now(dt.UTC), **result.document()})
        else:
            result.print_summary()


@dataclass(kw_only=True)
class _Runs:
    """The runs of one command; ``is_cut_off`` if one did not end in time after a signal."""

    settings: Settings
    run_id: str
    debug: bool
    as_json: bool
    interrupt: Interrupt = field(default_factory=Interrupt)
    is_cut_off: bool = False

    def execute(self, streams: list[DeclaredStream], jobs: int) -> list[RunResult]:
        """Run streams side by side, whatever becomes of each, and return them in their order."""
        from oncelake.ingestion.declaration.files.loader import siblings_of
        from oncelake.ingestion.operations.follow.together import submit
        from oncelake.ingestion.pipeline.spark.session import SharedSpark

        pool, groups = ThreadPoolExecutor(min(jobs, len(streams))), siblings_of(streams)
        with self.interrupt.listening(), progress(of_many=len(streams) > 1) as tell:
            spark = SharedSpark(
                lambda backlog: session(self.settings, tell, backlog * len(streams))
            )
            run = partial(self._outcome, spark=spark, tell=tell, kafka=self._shared_kafka(streams))
            runs = dict(it for group in groups for it in submit(pool, group, run).items())
            with suppress(KeyboardInterrupt):
                for ended in as_completed(runs.values()):
                    self._print(ended.result())
        pool.shutdown(wait=False, cancel_futures=True)
        self.is_cut_off = any(run.running() for run in runs.values())
        return [self._end_of(each, runs[each.name]) for each in streams]

    def _shared_kafka(self, streams: list[DeclaredStream]) -> Kafka | None:
        """Return a client for several streams, where there is one; else each says why not."""
        from oncelake.ingestion.kafka.shared import SharedKafka

        specs = [each.spec for each in streams if each.spec]
        topics = {topic for spec in specs for topic in spec.subscribed}
        patterns = {spec.topic_pattern for spec in specs if spec.topic_pattern}
        with suppress(DependencyError):
            return SharedKafka(self.settings, topics, patterns) if len(specs) > 1 else None
        return None

    def _end_of(self, declared: DeclaredStream, run: Future[RunResult]) -> RunResult:
        if run.done() and not run.cancelled():
            return run.result()
        cut_off = RunResult(stream=declared.name, interrupted_by=self.interrupt.exit_code)
        self._print(cut_off)
        return cut_off

    def _print(self, outcome: RunResult) -> None:
        with STDOUT:
            outcome.print_problem()
            if not self.as_json:
                outcome.print_books()

    def _outcome(
        self,
        declared: DeclaredStream,
        together: SharedReading | None,
        *,
        spark: SharedSpark,
        tell: Tell,
        kafka: Kafka | None,
    ) -> RunResult:
        name, stop = declared.name, self.interrupt.stop
        if stop.is_set():
            return RunResult(stream=name, interrupted_by=self.interrupt.exit_code)
        try:
            from oncelake.ingestion.operations.run import Run

            report = Run(
                spec=declared.require_spec(),
                settings=self.settings,
                spark=spark.of(name),
                run_id=self.run_id,
                tell=lambda text: tell(f"{name}: {text}"),
                stop=stop,
                together=together,
                kafka=kafka,
            ).execute()
            code = self.interrupt.exit_code if stop.is_set() and report.lag > 0 else DONE
            return RunResult.of(report, self.settings, interrupted_by=code)
        except Exception as error:  # noqa: BLE001 (one stream must not take the others down)
            if stop.is_set():
                return RunResult(stream=name, interrupted_by=self.interrupt.exit_code)
            failure = Failure.of(error, stream=name, debug=self.debug)
            return RunResult(stream=name, failure=failure)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The result of one stream: the report of its run, or why there is none.

    Attributes:
        interrupted_by: Exit code of the signal that ended it early; 0 when none did.
        waiting: Records that wait in the stream's quarantine, of this run or of earlier ones;
            ``None`` when that is unknown.
    """

    stream: str
    report: RunReport | None = None
    failure: Failure | None = None
    interrupted_by: int = DONE
    waiting: int | None = None

    @classmethod
    def of(cls, report: RunReport, settings: Settings, *, interrupted_by: int = DONE) -> RunResult:
        """Say what a report says, and what waits in quarantine after its run."""
        from oncelake.ingestion.lake.paths import StreamPaths
        from oncelake.ingestion.operations.status.status import known_waiting

        name = report.stream
        waiting = known_waiting(StreamPaths.of(name, settings).quarantine)
        return cls(stream=name, report=report, interrupted_by=interrupted_by, waiting=waiting)

    @property
    def exit_code(self) -> int:
        """The code this stream alone would give."""
        if self.failure is not None:
            return self.failure.exit_code
        if self.report is not None and not self.report.is_balanced:
            return WRONG
        return self.interrupted_by

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        if self.failure is not None:
            fields = self.failure.document()
        else:
            fields = _report_document(self.report) if self.report else {"stream": self.stream}
            fields["quarantine_waiting"] = self.waiting
        return {**fields, "interrupted": bool(self.interrupted_by), "exit_code": self.exit_code}

    def print_problem(self) -> None:
        """Print what a person must know, on stderr."""
        if self.failure is not None:
            output.print_failure(self.failure)
        elif self.interrupted_by:
            output.note(
                f"{self.stream}: interrupted; an open batch is as if never begun, "
                "and the next run goes on behind the last commit",
                "yellow",
            )
        if self.report is not None:
            output.note_red(self.report)

    def print_summary(self) -> None:
        """Print the run in a line, with what is to be noticed."""
        report = self.report
        if report is None:
            return
        verdict = "balanced" if report.is_balanced else "NOT balanced"
        batches = counted(len(report.batches), "batch") if report.batches else "nothing new"
        rows = "" if report.row_count is None else f"{counted(report.row_count, 'row')} · "
        output.say(
            f"{report.stream}: {verdict} · {batches} · seq {report.seq} · "
            f"{named_version(report.sink, report.delta_version)} · {rows}lag {report.lag:,}",
            "bold green" if report.is_balanced else "bold red",
        )
        for notice in report.notices:
            output.say(f"  notice: {notice}", "yellow")
        if report.recovered:
            seqs = ", ".join(str(row.seq) for row in report.recovered)
            output.say(f"  recovered into the ledger after a crash: seq {seqs}", "yellow")

    def print_books(self) -> None:
        """Print the books of the run, on stdout."""
        if self.report is None:
            return
        self.print_summary()
        if self.report.batches:
            output.totals(self.report.total)
            _print_ranges(self.report.ranges)
        if self.waiting:
            waiting = counted(self.waiting, "record waits", "records wait")
            output.say(
                f"{waiting} in quarantine. Next: oncelake quarantine {self.stream}",
                "yellow",
            )


def _report_document(report: RunReport) -> dict[str, Any]:
    """Return what a run did; ``counts`` and ``ranges`` are sums over its batches."""
    from oncelake.ingestion.lake.books import COUNTS

    places = ("seq", "epoch", "delta_version", "row_count", "table", "lag", "engine")
    return {
        **output.fields_of(report, "stream", "run_id"),
        "balanced": report.is_balanced,
        **output.fields_of(report, *places),
        "counts": {name: report.total(name) for name in COUNTS},
        "ranges": report.ranges,
        "next": output.next_document(report.next),
        "batches": [output.row_document(row, "problems") for row in report.batches],
        "recovered": list(map(output.row_document, report.recovered)),
        "notices": report.notices,
    }


def _print_ranges(ranges: Sequence[CountedRange]) -> None:
    numbers = ["start", "end", "records", "gaps"]
    rows = [
        (it.range.topic_partition, it.range.start, it.range.end, it.records, it.gaps)
        for it in ranges[:_MOST_RANGES]
    ]
    output.table(["partition", *numbers], rows, right=numbers)
    if len(ranges) > _MOST_RANGES:
        more = counted(len(ranges) - _MOST_RANGES, "partition")
        output.say(f"… and {more} more; --json has them all")
