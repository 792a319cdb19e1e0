"""``oncelake run``: several streams, one after another, in one JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from ingestion.cli.command import AsJson, Streams, is_debugging, new_run_id
from ingestion.cli.output import document
from ingestion.cli.progress import Tell, print_batches, progress, session
from ingestion.cli.run_result import RunResult
from ingestion.cli.signals import Interrupt
from ingestion.cli.streams import declared_as, sound
from ingestion.errors import first_exit_code
from ingestion.operations.failure import Failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ingestion.declaration.loader import DeclaredStream
    from ingestion.settings import Settings


def run(ctx: typer.Context, streams: Streams, as_json: AsJson = False) -> None:
    """Read what Kafka holds now into the tables of these streams, and balance the books.

    The streams run one after another in one JVM, and one that fails does not keep the others from
    running: the exit code is then the first of 1 (red books), 3 (refused), 5 (a dependency),
    4 (locked), 2 (a broken declaration) that occurred. A name that is not declared at all is a
    mistyped command: nothing runs, and it exits with 2. Ctrl-C or SIGTERM ends the run within
    seconds (exit 130 or 143) and loses nothing. With --json, one stream gives its report, several
    give `{"run_id", "exit_code", "streams"}`.
    """
    from ingestion.settings import load_settings

    settings = load_settings()
    declared = [declared_as(name, settings) for name in dict.fromkeys(streams)]
    runs = _Runs(settings=settings, run_id=new_run_id(), debug=is_debugging(ctx))
    outcomes = []
    for outcome in runs.of(declared):
        outcomes.append(outcome)
        outcome.print_problem()
        if not as_json:
            outcome.print_books()
    code = first_exit_code(outcome.exit_code for outcome in outcomes)
    if as_json:
        documents = [outcome.document() for outcome in outcomes]
        several = {"run_id": runs.run_id, "exit_code": code, "streams": documents}
        document(several if len(documents) > 1 else documents[0])
    raise typer.Exit(code)


@dataclass(kw_only=True)
class _Runs:
    """The runs of one command."""

    settings: Settings
    run_id: str
    debug: bool
    interrupt: Interrupt = field(default_factory=Interrupt)
    _spark: SparkSession | None = None

    def of(self, streams: list[DeclaredStream]) -> Iterator[RunResult]:
        """Run streams one after another, whatever becomes of each."""
        with self.interrupt.listening():
            for declared in streams:
                with progress() as tell:
                    outcome = self._outcome(declared, tell)
                yield outcome

    def _outcome(self, declared: DeclaredStream, tell: Tell) -> RunResult:
        try:
            return self._run(declared, tell)
        except KeyboardInterrupt:
            return self._interrupted(declared)
        except Exception as error:  # noqa: BLE001 (one stream must not take the others down)
            if self.interrupt.stop.is_set():
                return self._interrupted(declared)
            failure = Failure.of(error, stream=declared.name, debug=self.debug)
            return RunResult(stream=declared.name, failure=failure)

    def _run(self, declared: DeclaredStream, tell: Tell) -> RunResult:
        spec = sound(declared)
        if self.interrupt.stop.is_set():
            return self._interrupted(declared)
        from ingestion.operations.run import Run

        tell(f"{declared.name}: looking for new records…")
        with self.interrupt.patiently():
            report = Run(
                spec=spec,
                settings=self.settings,
                spark=lambda: self._session(tell),
                run_id=self.run_id,
                on_batch=print_batches(declared.name, tell),
                stop=self.interrupt.stop,
            ).execute()
        cut_short = self.interrupt.stop.is_set() and report.lag > 0
        code = self.interrupt.exit_code if cut_short else 0
        return RunResult(stream=declared.name, report=report, interrupted_by=code)

    def _interrupted(self, declared: DeclaredStream) -> RunResult:
        return RunResult(stream=declared.name, interrupted_by=self.interrupt.exit_code)

    def _session(self, tell: Tell) -> SparkSession:
        """Start Spark, once."""
        if self._spark is None:
            self._spark = session(self.settings, tell)
        return self._spark
