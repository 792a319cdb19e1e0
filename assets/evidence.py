"""What the checks judge: gathered once, when a run has ended, from its report and the tables."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from assets.expectations import evaluate
from assets.outcomes import Outcome
from assets.proof import prove
from ingestion.commits import TableLog
from ingestion.declarations import Declared
from ingestion.lake import StreamPaths
from ingestion.ledger import Ledger, LedgerRow
from ingestion.proof.verdict import Verdict
from ingestion.report import RunReport
from ingestion.settings import Settings
from ingestion.spec import StreamSpec
from resources.spark import SparkResource


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is known when a run has ended.

    Attributes:
        spec: The declared stream.
        report: What the run did.
        ledger: Every ledger row of the table, by seq.
        reasons: Why records of this run were quarantined: how many for each reason.
        outcomes: What became of each declared expectation on the rows that this run wrote;
            ``None`` when it wrote none.
        proof: What came out of the proof, or why there is none; ``None`` where none is declared.
        now: When all of this was looked up.
    """

    spec: StreamSpec
    report: RunReport
    ledger: tuple[LedgerRow, ...]
    reasons: Mapping[str, int]
    outcomes: tuple[Outcome, ...] | None
    now: dt.datetime
    proof: Verdict | str | None = None


def gather(
    declared: Declared, settings: Settings, spark: SparkResource, report: RunReport
) -> Evidence:
    """Look up what the checks of a run need; Spark only where expectations ask for it."""
    assert declared.spec is not None
    paths = StreamPaths.of(declared.name, settings)
    return Evidence(
        spec=declared.spec,
        report=report,
        ledger=Ledger(paths.ledger).rows_of(TableLog(paths.data).table_id()),
        reasons=_reasons(paths, report),
        outcomes=_outcomes(declared.spec, declared.path.name, spark, report),
        now=dt.datetime.now(dt.UTC),
        proof=prove(declared.spec, settings) if declared.spec.verify else None,
    )


def seqs_of(report: RunReport) -> list[int]:
    """Return the seqs of the batches that a run committed, or healed for a run that died."""
    return [row.seq for row in (*report.recovered, *report.batches)]


def _reasons(paths: StreamPaths, report: RunReport) -> Mapping[str, int]:
    if not report.total("quarantined"):
        return {}
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

    table = DeltaTable(paths.quarantine).to_pyarrow_dataset()
    of_run = ds.field("_seq").isin([row.seq for row in report.batches])
    return Counter(table.to_table(columns=["reason"], filter=of_run)["reason"].to_pylist())


def _outcomes(
    spec: StreamSpec, file: str, spark: SparkResource, report: RunReport
) -> tuple[Outcome, ...] | None:
    if not spec.expectations or not seqs_of(report):
        return None
    table = spark.spark_session.read.format("delta").option("versionAsOf", report.delta_version)
    rows = table.load(report.table)
    written = rows.where(rows["_seq"].isin(seqs_of(report)))
    return evaluate(spec.expectations, written, declared_in=file)
