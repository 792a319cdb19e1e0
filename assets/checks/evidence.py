"""The evidence for the checks: gathered once, after a run, from its report and the tables."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile
from typing import TYPE_CHECKING, Final

import dagster as dg

# Dagster has no public name for what became of a check.
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
)

from oncelake.assets.checks.proof import prove
from oncelake.assets.failures import StreamFailureError
from oncelake.assets.history import UnreportedBatches, find_unreported
from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.messages import printable
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import quoted
from oncelake.ingestion.lake.books import DISPOSITIONS, ROUTED
from oncelake.ingestion.pipeline.gate.expectations import (
    ExpectationOutcome,
    evaluate,
    not_evaluated,
    query_for,
)
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.volumes import translate_disk_errors
from oncelake.ingestion.verify.verdict import Verdict
from oncelake.resources.spark import SparkResource

if TYPE_CHECKING:
    from oncelake.ingestion.lake.ledger import LedgerRow
    from oncelake.ingestion.lake.paths import StreamPaths
    from oncelake.ingestion.operations.upkeep.retention import Retention
    from oncelake.ingestion.pipeline.report import RunReport

# Of a check, and not only planned.
EVALUATED: Final = COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
# What becomes of records that leave the rows of a table as they were.
_OF_NO_ROW: Final = {"filtered", "ignored", "overlap", "quarantined", "stale", *ROUTED}
_MOST_DETAILS: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedRecords:
    """Records that wait for one reason; the fields are the columns that the UI shows.

    Attributes:
        details: What was wrong, which names the column; the most frequent, with their numbers.
        first: Where the first of them is.
        value: The beginning of its value.
    """

    reason: str
    records: int
    details: str = ""
    first: str = ""
    value: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The evidence once a run has ended.

    Attributes:
        paths: Where the stream's tables lie.
        report: What the run did.
        table_id: Delta's id of the table.
        ledger: The ledger rows of the table that no rewind has undone, by seq.
        unreported: What earlier runs committed and no materialization reports.
        refused: What waits of the records that were read last: by reason, with a sample of each.
        outcomes: What became of each declared expectation on the rows of the batches judged, or of
            those that the check was red for last; ``None`` where there are neither.
        retention: When Kafka may delete what the run left unread; ``None`` when it read all.
        proof: What came out of the proof, or why there is none; ``None`` where none is declared.
        now: When all of this was looked up.
        waiting: Records in quarantine that no redrive has sent in; ``None`` when that is unknown.
        seconds: How long it took to look all of this up, and to evaluate what is declared.
        translation: Under which keys all of it is told.
    """

    spec: StreamSpec
    paths: StreamPaths
    report: RunReport
    table_id: str
    ledger: tuple[LedgerRow, ...]
    unreported: UnreportedBatches
    refused: tuple[RefusedRecords, ...]
    outcomes: tuple[ExpectationOutcome, ...] | None
    now: dt.datetime
    proof: Verdict | str | None = None
    retention: Retention | None = None
    waiting: int | None = None
    seconds: float = 0.0
    translation: Translation = AS_DECLARED

    @property
    def asset_key(self) -> dg.AssetKey:
        """The key of the stream's asset."""
        return self.translation.key(self.spec.name)

    @property
    def data_version(self) -> str:
        """The version of the rows; a run without records for them leaves it as it was."""
        return self.version_of({*DISPOSITIONS} - _OF_NO_ROW)

    def version_of(self, counts: Collection[str]) -> str:
        """Return a version that changes with each batch of such records, and with each command."""
        seqs = (r.seq for r in self.ledger if r.kind != "ingest" or any(map(r.counts.get, counts)))
        return f"{self.table_id} {max(seqs, default=0)}"

    @property
    def judged(self) -> tuple[LedgerRow, ...]:
        """The batches that no check has judged before: the run's own, and the unreported."""
        return judged_rows(self.report, self.unreported)

    @property
    def read_last(self) -> tuple[LedgerRow, ...]:
        """The batches that read the last records: a run that finds nothing changes nothing.

        What is read again, by a replay or a redrive, would dilute the share of bad records.
        """
        return read_last(self.judged, self.ledger)

    @property
    def oldest_unread_seconds(self) -> float | None:
        """How long ago the oldest unread record was written; ``None`` where that is unknown."""
        oldest = self.retention.oldest_unread if self.retention else None
        return (self.now - oldest).total_seconds() if oldest else None


def gather(
    declared: DeclaredStream,
    settings: Settings,
    spark: SparkResource,
    report: RunReport,
    instance: dg.DagsterInstance,
    *,
    translation: Translation = AS_DECLARED,
    is_run: bool = True,
) -> Evidence:
    """Gather the evidence that the checks of a run need; Spark only where expectations ask for it.

    Of checks that are executed without a run, expectations look at the rows of the last one.
    """
    from oncelake.ingestion.lake.ledger import Ledger, standing_rows
    from oncelake.ingestion.lake.paths import StreamPaths
    from oncelake.ingestion.operations.status.status import known_waiting

    assert declared.spec is not None
    began, key = time.monotonic(), translation.key(declared.name)
    paths = StreamPaths.of(declared.name, settings, declared.spec.sink)
    with translate_disk_errors(declared.name, *paths.written):
        table_id = paths.table.log().table_id()
        ledger = standing_rows(Ledger(paths.ledger).rows_of(table_id))
        mine = {row.seq for row in report.batches}
        unreported = find_unreported(
            instance, key, ledger, table_id=table_id, mine=mine, up_to=report.seq
        )
        judged = judged_rows(report, unreported)
        expected = judged
        if not judged and (not is_run or _is_unmet(instance, declared.spec, key)):
            expected = _last_batches(ledger)
        return Evidence(
            spec=declared.spec,
            paths=paths,
            report=report,
            table_id=table_id,
            ledger=ledger,
            unreported=unreported,
            refused=_refused(paths, read_last(judged, ledger)),
            outcomes=_outcomes(declared, paths, settings, spark, report, expected),
            now=dt.datetime.now(dt.UTC),
            proof=prove(declared, settings) if declared.spec.verify else None,
            retention=_retention(declared.spec, settings, report),
            waiting=known_waiting(paths.quarantine),
            translation=translation,
            seconds=time.monotonic() - began,
        )


def standing_report(declared: DeclaredStream, settings: Settings, run_id: str) -> RunReport:
    """Return what a run would report that reads nothing: where the stream stands.

    Raises:
        StreamFailureError: that cannot be known, or there is no table yet.
    """
    from oncelake.ingestion.operations.status.status import StatusReader
    from oncelake.ingestion.pipeline.report import RunReport

    status = StatusReader(settings).read_status(declared)
    at = status.position
    if at is None or status.lag is None or status.delta_version is None:
        why = "; ".join(problem.message for problem in status.problems) or "there is no table yet"
        raise StreamFailureError(f"{declared.name}: nothing can be checked, since {why}")
    return RunReport(
        stream=declared.name,
        run_id=run_id,
        notices=status.notices,
        seq=at.seq,
        epoch=at.epoch,
        next=at.next,
        lag=status.lag,
        delta_version=status.delta_version,
        row_count=status.row_count,
        table=status.table,
        stalls=status.stalls,
    )


def judged_rows(report: RunReport, unreported: UnreportedBatches) -> tuple[LedgerRow, ...]:
    """Return the batches that no check has judged before, by seq.

    Without Dagster's history, what the run healed stands in for what is unreported.
    """
    earlier = report.recovered if unreported.unknown else unreported.rows
    return (*earlier, *report.batches)


def read_last(
    judged: tuple[LedgerRow, ...], ledger: tuple[LedgerRow, ...]
) -> tuple[LedgerRow, ...]:
    """Return those of the batches judged that read new records, or else the last that did."""
    new = tuple(row for row in judged if row.kind == "ingest")
    return new or tuple(row for row in ledger if row.kind == "ingest")[-1:]


def _is_unmet(instance: dg.DagsterInstance, spec: StreamSpec, key: dg.AssetKey) -> bool:
    """Tell whether the expectations are red since the last run that read records.

    A run that finds nothing changes nothing; but what could not be evaluated may be so now.
    """
    history = instance.event_log_storage.get_asset_check_execution_history
    check = dg.AssetCheckKey(key, "expectations")
    last = history(check, limit=1, status=EVALUATED) if spec.expectations else ()
    return not all(each.evaluation is None or each.evaluation.passed for each in last)


def _last_batches(ledger: tuple[LedgerRow, ...]) -> tuple[LedgerRow, ...]:
    """Return the batches of the last run that read records, and what came after them."""
    run = next((row.run_id for row in reversed(ledger) if row.kind == "ingest"), None)
    return tuple(dropwhile(lambda row: row.run_id != run, ledger))


def _retention(spec: StreamSpec, settings: Settings, report: RunReport) -> Retention | None:
    """Query Kafka only where something is unread, or withheld."""
    from oncelake.ingestion.operations.upkeep.retention import retention_now

    if not report.lag and not report.stalls:
        return None
    return retention_now(spec, settings)


def _refused(paths: StreamPaths, rows: tuple[LedgerRow, ...]) -> tuple[RefusedRecords, ...]:
    """Read from the quarantine what batches refused."""
    from oncelake.ingestion.lake.quarantine import scan_quarantine
    from oncelake.ingestion.pipeline.report import total_of

    quarantined = total_of(rows, "quarantined")
    if not quarantined:
        return ()
    import pyarrow.compute as pc

    from oncelake.ingestion.operations.quarantine.inspect import inspect_rows

    try:
        of_batches = pc.field("_seq").isin([row.seq for row in rows])
        inspection = inspect_rows(partial(scan_quarantine, paths), only=of_batches, limit=1)
    except Exception as error:  # noqa: BLE001 (the batches are committed: it is told, not thrown)
        unknown = f"unknown ({type(error).__name__}: {error})"
        return (RefusedRecords(reason=unknown, records=quarantined),)
    samples = {sample.record: sample.row for sample in inspection.samples}
    return tuple(
        RefusedRecords(
            reason=group.reason,
            records=group.count,
            details="; ".join(
                f"{printable(detail)} ({number:,})"
                for detail, number in group.details.most_common(_MOST_DETAILS)
                if detail
            ),
            first=str(group.first),
            value=printable(samples[group.first]["value"]) if group.first in samples else "",
        )
        for group in inspection.groups
    )


def _outcomes(
    declared: DeclaredStream,
    paths: StreamPaths,
    settings: Settings,
    spark: SparkResource,
    report: RunReport,
    judged: tuple[LedgerRow, ...],
) -> tuple[ExpectationOutcome, ...] | None:
    spec = declared.spec
    if spec is None or not spec.expectations or not judged:
        return None
    from oncelake.ingestion.pipeline.spark.stores import read_rows

    try:
        # Batches follow one another; after a wiped event log they are too many to be listed.
        first, last = judged[0].seq, judged[-1].seq
        rows = read_rows(
            spark.spark_session,
            paths,
            settings,
            version=report.delta_version,
            since_seq=first,
        )
        written = rows.where(rows["_seq"] <= last)
    except Exception as error:  # noqa: BLE001 (the batches are committed: it is told, not thrown)
        failed = f"the table could not be read: {type(error).__name__}: {error}"
        return tuple(not_evaluated(each, failed) for each in spec.expectations)
    sink = spec.sink.name
    place = (
        ["delta", paths.table.uri] if sink == "delta" else spec.sink.table_of(spec.name).split(".")
    )
    table = ".".join(map(quoted, place))
    outcomes = evaluate(spec.expectations, written, declared_in=declared.path.name, table=table)
    return tuple(replace(each, query=query_for(sink, each.query)) for each in outcomes)
