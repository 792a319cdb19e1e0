"""Lineage of runs, by OpenLineage: topics in, a table out, START and then how the run ended.

The client's own variables and files say where events go. An event that could not be sent is logged
once, and for a minute no other is tried, so that a server that is away costs runs little.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from functools import cache
from typing import Final
from urllib.parse import unquote, urlsplit

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import (
    InputDataset,
    Job,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
)
from openlineage.client.facet_v2 import (
    RunFacet,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
)
from openlineage.client.naming.dataset import Kafka
from openlineage.client.uuid import generate_new_uuid

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.lake.ledger import LedgerRow
from oncelake.ingestion.lake.lock import holder_of
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.telemetry.observer import Outcome
from oncelake.ingestion.pipeline.report import RunReport
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables.format import engine_version

_PRODUCER: Final = f"urn:oncelake:{engine_version()}"
_STATES: Final = {"done": RunState.COMPLETE, "interrupted": RunState.ABORT}
_PAUSE_SECONDS: Final = 60.0
_not_before = 0.0


@cache
def _client() -> OpenLineageClient:
    """Return the client, which tries once more unless its configuration says how often.

    By default it tries five times more, and a run would wait half a minute for a server behind a
    firewall that drops packets.
    """
    client = OpenLineageClient()
    http = getattr(client.transport, "config", None)
    if (
        http is not None
        and hasattr(http, "retry")
        and "retry" not in (client.config.transport or {})
    ):
        http.retry = {**http.retry, "total": 1}
    return client


class RunLineage:
    """Tells of one run, which gets an id of its own: a process may follow streams for weeks."""

    def __init__(self, spec: StreamSpec, settings: Settings) -> None:
        self._spec = spec
        self._settings = settings
        self._id = str(generate_new_uuid())
        self._has_started = False

    def start(self) -> None:
        """Send START, but not while another run holds the stream: this one may never begin."""
        if holder_of(StreamPaths.of(self._spec.name, self._settings)) is None:
            self._send(RunState.START)

    def batch(self, row: LedgerRow, lag: int) -> None:
        """Send nothing: batches are the ledger's."""

    def end(self, outcome: Outcome, report: RunReport | None, error: BaseException | None) -> None:
        """Send COMPLETE, ABORT, or FAIL with the error; red books are a failure."""
        if not self._has_started:
            if outcome == "locked":
                return
            self._send(RunState.START)
        if outcome == "red" and report is not None:
            red = "; ".join(row.says() for row in report.batches if row.is_red)
            self._send(RunState.FAIL, report, f"the books do not balance: {red}")
        elif outcome in _STATES:
            self._send(_STATES[outcome], report)
        else:
            self._send(RunState.FAIL, None, str(error) or type(error).__name__)

    def _send(
        self, state: RunState, report: RunReport | None = None, problem: str | None = None
    ) -> None:
        global _not_before
        self._has_started = True
        if time.monotonic() < _not_before:
            return
        event = RunEvent(
            eventTime=dt.datetime.now(dt.UTC).isoformat(),
            producer=_PRODUCER,
            eventType=state,
            run=Run(self._id, self._run_facets(problem)),
            job=Job(
                os.environ.get("OPENLINEAGE_NAMESPACE") or "oncelake",
                self._spec.name,
                {"jobType": job_type_job.JobTypeJobFacet("BATCH", "ONCELAKE", "JOB")},
            ),
            inputs=self._inputs(report),
            outputs=[self._output(report)],
        )
        try:
            _client().emit(event)
        except Exception:
            _not_before = time.monotonic() + _PAUSE_SECONDS
            raise

    def _run_facets(self, problem: str | None) -> dict[str, RunFacet]:
        engine = processing_engine_run.ProcessingEngineRunFacet(engine_version(), "oncelake")
        facets: dict[str, RunFacet] = {"processing_engine": engine}
        if problem is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(problem, "python")
        return facets

    def _inputs(self, report: RunReport | None) -> list[InputDataset]:
        """Name the topics: of a pattern, those that the run found."""
        found = {at.topic for at in report.next} if report else set()
        topics = self._spec.subscribed or sorted(found)
        host, port = _first_server(self._settings.bootstrap_servers())
        names = (Kafka(host, port, topic) for topic in topics)
        return [InputDataset(name.get_namespace(), name.get_name()) for name in names]

    def _output(self, report: RunReport | None) -> OutputDataset:
        paths = StreamPaths.of(self._spec.name, self._settings, self._spec.sink)
        namespace, name = _dataset_of(paths.table.uri)
        columns = [
            schema_dataset.SchemaDatasetFacetFields(
                column.name, str(column.type), column.comment or None
            )
            for column in self._spec.table_columns
        ]
        written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=report.total("inserted") + report.total("updated") if report else None
        )
        return OutputDataset(
            namespace,
            name,
            facets={"schema": schema_dataset.SchemaDatasetFacet(fields=columns)},
            outputFacets={"outputStatistics": written} if report else {},
        )


def _dataset_of(uri: str) -> tuple[str, str]:
    """Return namespace and name of a table, as OpenLineage parts them."""
    at = urlsplit(uri)
    if not at.netloc:
        return at.scheme or "file", unquote(at.path)
    return f"{at.scheme}://{at.netloc}", unquote(at.path).lstrip("/")


def _first_server(servers: str) -> tuple[str, str]:
    """Return host and port of the first server, as OpenLineage names a cluster."""
    host, _, port = servers.split(",")[0].strip().rpartition(":")
    return (host, port) if host else (port, "9092")
