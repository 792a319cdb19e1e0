"""The streams of one file whose assets one process materializes: their runs read Kafka once.

The step of the first of them begins the runs of all, and each step takes the report of its own, or
what it failed by. So assets, checks, retries and refusals are those of a stream alone. Batches
whose step never comes are reported by the stream's next run, as after a crash.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import dagster as dg

from oncelake.assets.translation import Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.settings import Settings
from oncelake.resources.spark import SparkResource

if TYPE_CHECKING:
    from oncelake.ingestion.operations.follow.together import SharedReading
    from oncelake.ingestion.pipeline.report import RunReport

Say = Callable[[str], None]


def join_siblings(
    context: dg.AssetExecutionContext, siblings: Sequence[DeclaredStream], translation: Translation
) -> None:
    """Let streams run together whose assets this process materializes.

    That is one of them where each step has a process of its own, and where a run is repeated from
    a failure on.
    """
    step, spark = context.get_step_execution_context(), translation.resources(context)[-1]
    selected = step.job_def.asset_layer.selected_asset_keys
    steps = step.execution_plan.step_keys_to_execute
    here = [
        each
        for each in siblings
        if translation.key(each.name) in selected
        and translation.name(f"ingest_{each.name}") in steps
    ]
    if len(here) > 1:
        together = _SiblingRuns(here)
        for each in here:
            spark.together.setdefault((context.run.run_id, each.name), together)


def run_stream(
    spec: StreamSpec, settings: Settings, spark: SparkResource, run_id: str, say: Say
) -> RunReport:
    """Run the engine, which starts Spark only when there is something to read."""
    from oncelake.ingestion.operations.run import Run

    together: _SiblingRuns | None = spark.together.get((run_id, spec.name))
    if together and (run := together.first_run(spec.name, settings, spark, run_id, say)):
        return run.result()
    return Run(
        spec=spec,
        settings=settings,
        spark=lambda backlog: spark.session_for(backlog, say),
        run_id=run_id,
        tell=say,
    ).execute()


class _SiblingRuns:
    """The first runs of streams that run together; whichever is tried again runs alone."""

    def __init__(self, streams: Sequence[DeclaredStream]) -> None:
        self._streams = streams
        self._runs: dict[str, Future[RunReport]] | None = None

    def first_run(
        self, stream: str, settings: Settings, spark: SparkResource, run_id: str, say: Say
    ) -> Future[RunReport] | None:
        """Return a stream's run, which has ended, and ``None`` from then on."""
        if self._runs is None:
            self._runs = self._execute(settings, spark, run_id, say)
        return self._runs.pop(stream, None)

    def _execute(
        self, settings: Settings, spark: SparkResource, run_id: str, say: Say
    ) -> dict[str, Future[RunReport]]:
        from oncelake.ingestion.operations.follow.together import submit
        from oncelake.ingestion.pipeline.spark.session import SharedSpark

        sessions = SharedSpark(lambda backlog: spark.session_for(backlog * len(self._streams), say))
        stop = threading.Event()

        def run(declared: DeclaredStream, together: SharedReading | None) -> RunReport:
            from oncelake.ingestion.operations.run import Run

            return Run(
                spec=declared.require_spec(),
                settings=settings,
                spark=sessions.of(declared.name),
                run_id=run_id,
                tell=lambda text: say(f"{declared.name}: {text}"),
                stop=stop,
                together=together,
            ).execute()

        with ThreadPoolExecutor(1) as pool:
            runs = submit(pool, self._streams, run)
            try:
                wait(runs.values())
            finally:
                # Whoever terminates this run waits until theirs have ended.
                stop.set()
        return runs
