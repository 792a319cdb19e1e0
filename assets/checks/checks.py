"""The checks of every stream, emitted with each materialization.

Each is a pure function of the ``Evidence``. Those that block fail the run where they are an ERROR,
and nothing downstream builds on it: red books, for a record may be lost, and what a person has
declared to be too bad. The others only report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from oncelake.assets.checks.evidence import Evidence
from oncelake.assets.checks.proof import metadata_of, sentences
from oncelake.assets.failures import as_markdown
from oncelake.assets.translation import AS_DECLARED, Translation
from oncelake.ingestion.declaration.files.loader import DeclaredStream
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import counted
from oncelake.ingestion.kafka.offsets import Offsets, Range, TopicPartition
from oncelake.ingestion.pipeline.gate.expectations import ANSWERED_BY
from oncelake.ingestion.verify.verdict import Verdict

if TYPE_CHECKING:
    from oncelake.ingestion.lake.ledger import LedgerRow
    from oncelake.ingestion.lake.withheld import WithheldBatch
    from oncelake.ingestion.operations.upkeep.retention import Retention

ERROR: Final = dg.AssetCheckSeverity.ERROR
WARN: Final = dg.AssetCheckSeverity.WARN
_MOST_ROWS: Final = 50
# What the figures are compared with. Dagster sorts by name, and plots numbers: it is a text, behind
# what was measured.
_DECLARED: Final = "what_is_declared"
_NEXT: Final = {
    "books_balance": "oncelake verify {stream} shows the rows that differ; then rewind, rebuild or "
    "accept, by the command that oncelake run {stream} names when it refuses",
    "offsets_contiguous": "oncelake verify {stream} compares the ledger with the commits",
    "quarantine_rate": "oncelake quarantine {stream} says what to do about each reason; then "
    "oncelake redrive {stream}",
    "freshness": "oncelake status {stream} says what keeps it; oncelake run {stream} reads now",
    "retention": "oncelake status {stream}",
    "gate": "oncelake batch {stream} shows the batch; correct the producer or the file, or "
    "oncelake accept {stream} --batch ID --reason … publishes it as it is",
    "expectations": "correct the producer, or `expectations` in the file",
    "verified": "oncelake verify {stream} shows what differs",
}
_BLOCKING: Final = frozenset({"books_balance", "quarantine_rate", "gate", "expectations"})


def check_specs(
    declared: DeclaredStream, translation: Translation = AS_DECLARED
) -> list[dg.AssetCheckSpec]:
    """Declare the checks of a stream's asset."""
    key = translation.key(declared.name)
    return [
        dg.AssetCheckSpec(name, asset=key, description=check.__doc__, blocking=name in _BLOCKING)
        for name, check in _checks_of(declared.spec).items()
    ]


def check_results(evidence: Evidence) -> list[dg.AssetCheckResult]:
    """Judge the evidence by every check."""
    return [check(evidence) for check in _checks_of(evidence.spec).values()]


def as_evaluation(result: dg.AssetCheckResult, **of_run: Any) -> dg.AssetCheckEvaluation:
    """Return a result as the event by which Dagster keeps it, with what is of its run alone."""
    assert result.asset_key is not None
    assert result.check_name is not None
    return dg.AssetCheckEvaluation(
        asset_key=result.asset_key,
        check_name=result.check_name,
        passed=result.passed,
        metadata=result.metadata,
        severity=result.severity,
        description=result.description,
        **of_run,
    )


def books_balance(evidence: Evidence) -> dg.AssetCheckResult:
    """Every offset and every record of the run is accounted for, and no earlier batch is red."""
    detailed = {row.seq: row for row in (*evidence.report.recovered, *evidence.report.batches)}
    rows = {row.seq: row for row in evidence.ledger} | detailed
    red = [row for seq, row in sorted(rows.items()) if row.is_red]
    return _result(
        evidence,
        "books_balance",
        passed=not red,
        says="; ".join(f"batch {row.seq}: {row.says()}" for row in red)
        or counted(len(evidence.judged), "batch balances", "batches balance"),
        metadata={
            "batches": len(evidence.judged),
            "red_batches": len(red),
            "red": _table([_red(row) for row in red]),
            **_link(evidence, "ledger"),
        },
    )


def offsets_contiguous(evidence: Evidence) -> dg.AssetCheckResult:
    """The ledger's ranges follow one another without hole or overlap, up to the next offset."""
    report = evidence.report
    broken = [
        {"partition": str(at), "problem": problem}
        for at, problem in breaks(evidence.ledger, epoch=report.epoch, reached=report.next)
    ]
    return _result(
        evidence,
        "offsets_contiguous",
        passed=not broken,
        says="; ".join(f"{it['partition']}: {it['problem']}" for it in broken[:3])
        or "no hole and no overlap in any partition",
        metadata={"breaks": len(broken), "where": _table(broken)},
    )


def quarantine_rate(evidence: Evidence) -> dg.AssetCheckResult:
    """Of the records read last, the share that waits in quarantine is within what is declared."""
    from oncelake.ingestion.pipeline.report import total_of

    limit, waiting = evidence.spec.quarantine_rate, evidence.waiting
    rows = evidence.read_last
    quarantined = total_of(rows, "quarantined")
    if waiting is not None:
        quarantined = min(quarantined, waiting)
    # The records of a sibling are none of its own.
    read = total_of(rows, "read") - total_of(rows, "routed_elsewhere")
    rate = quarantined / max(read, 1)
    why = ", ".join(f"{each.reason} {each.records:,}" for each in evidence.refused)
    return _result(
        evidence,
        "quarantine_rate",
        passed=rate <= min(limit.warn_above, limit.fail_above) and not evidence.unreported.unknown,
        severity=ERROR if rate > limit.fail_above else WARN,
        says=f"{counted(quarantined, 'record')} of the last batches in quarantine ({rate:.2%})"
        + (f": {why}" if why else "")
        + (f"; {waiting:,} waiting in all" if waiting else "")
        + _earlier(evidence),
        metadata={
            "rate": rate,
            "quarantined": quarantined,
            "waiting": "unknown" if waiting is None else waiting,
            **_link(evidence, "quarantine"),
            "reasons": _table([asdict(each) for each in evidence.refused]),
            _DECLARED: f"warns above {limit.warn_above:g}, fails above {limit.fail_above:g}",
        },
    )


def freshness(evidence: Evidence) -> dg.AssetCheckResult:
    """No record waits for longer than is declared, and no transaction hides records for long."""
    limit, lag = evidence.spec.freshness_minutes, evidence.report.lag
    stalls = "; ".join(map(str, evidence.report.stalls))
    oldest = evidence.oldest_unread_seconds
    unknown = evidence.retention.unknown if lag and evidence.retention and oldest is None else ""
    waited = (oldest or 0.0) / 60
    waits = f"the oldest record for {waited:.1f} minutes"
    unread = counted(lag, "offset is unread", "offsets are unread")
    says = f"{unread}, {unknown or waits}" if lag else "nothing is unread"
    if limit is None:
        says = f"not declared (freshness_minutes); {says}"
    least = evidence.retention.least if evidence.retention else None
    return _result(
        evidence,
        "freshness",
        passed=not stalls and (limit is None or (waited <= limit and not unknown)),
        severity=WARN,
        says="; ".join(filter(None, (stalls, says, str(least or "")))),
        metadata={
            "lag": lag,
            "headroom_seconds": least.seconds if least else "nothing unread to lose",
            "minutes_waited": waited,
            "stalled": stalls or "none",
            _DECLARED: f"{limit} minutes" if limit else "nothing (freshness_minutes)",
        },
    )


def retention(evidence: Evidence) -> dg.AssetCheckResult:
    """Kafka keeps the unread records for longer than `retention_warning` asks."""
    from oncelake.ingestion.operations.upkeep.retention import Retention

    measured = evidence.retention or Retention(spec=evidence.spec)
    return retention_result(measured, evidence.translation)


def retention_result(
    measured: Retention, translation: Translation = AS_DECLARED
) -> dg.AssetCheckResult:
    """Judge a headroom: it warns below the threshold, and fails at a quarter of it, or at loss."""
    least = measured.least
    return dg.AssetCheckResult(
        asset_key=translation.key(measured.spec.name),
        check_name="retention",
        passed=measured.level == "ok",
        severity=ERROR if measured.level in {"critical", "lost"} else WARN,
        description=_advised(
            "retention", measured.spec.name, str(measured), passed=measured.level == "ok"
        ),
        metadata={
            "level": measured.level,
            "headroom_seconds": least.seconds if least else "nothing unread to lose",
            "partition": str(least.at) if least else "none",
            "offset": least.offset if least else "none",
            "limit": least.limit if least else "none",
            "lost": least.lost if least else 0,
            _DECLARED: measured.spec.retention_warning or "a quarter of the topic's retention",
        },
    )


def expectations(evidence: Evidence) -> dg.AssetCheckResult:
    """The rows that were written meet the declared expectations."""
    outcomes = evidence.outcomes or ()
    missed = [each for each in outcomes if not each.success]
    is_error = any(each.severity == "critical" or each.error for each in missed)
    passed = not missed and not (evidence.spec.expectations and evidence.unreported.unknown)
    says = ("; ".join(map(str, missed)) or _all_met(evidence)) + _earlier(evidence)
    if queries := " or ".join(each.query for each in missed if each.query):
        asked = ANSWERED_BY[evidence.spec.sink.name]
        says += f". Next: query those rows in {asked}, by {queries}; {_NEXT['expectations']}"
    return _result(
        evidence,
        "expectations",
        passed=passed,
        severity=ERROR if is_error or passed else WARN,
        says=says,
        metadata={
            "evaluated": len(outcomes),
            "missed": len(missed),
            "expectations": _table([asdict(outcome) for outcome in outcomes]),
        },
    )


def gate(evidence: Evidence) -> dg.AssetCheckResult:
    """No batch is held back, and the rows that were published meet the rules of `expect`."""
    from oncelake.ingestion.pipeline.gate.judge import MISSED
    from oncelake.ingestion.pipeline.report import total_of
    from oncelake.ingestion.recovery.withheld import waiting_batch, withheld_error

    spec = evidence.spec
    if batch := waiting_batch(spec, evidence.paths):
        says = str(withheld_error(spec, batch))
        return withheld_result(spec, batch, says, evidence.translation)
    missed = {
        name: n for name in spec.expect if (n := total_of(evidence.judged, f"{MISSED}{name}"))
    }
    accepted = [row for row in evidence.judged if row.kind == "ingest" and row.accepted]
    says = "; ".join(
        [
            *(f"{counted(n, 'row')} of {name}" for name, n in missed.items()),
            *(f"batch {row.seq} was published as it is: {row.accepted}" for row in accepted),
        ]
    )
    return _result(
        evidence,
        "gate",
        passed=not missed,
        severity=WARN,
        says=says or f"{counted(len(evidence.judged), 'batch')} published",
        metadata={"published": len(evidence.judged), "missed": sum(missed.values())},
    )


def withheld_result(
    spec: StreamSpec, batch: WithheldBatch, says: str, translation: Translation = AS_DECLARED
) -> dg.AssetCheckResult:
    """Judge a batch that is held back."""
    return dg.AssetCheckResult(
        asset_key=translation.key(spec.name),
        check_name="gate",
        passed=False,
        severity=ERROR,
        description=as_markdown(says),
        metadata=withheld_metadata(batch),
    )


def withheld_metadata(batch: WithheldBatch) -> dict[str, Any]:
    """Return what Dagster shows of a batch that is held back."""
    return {
        "since": batch.since,
        "ranges": batch.read,
        "read": batch.counts.get("read", 0),
        "misses": _table([{"name": m.name, "what": m.what, "rows": m.rows} for m in batch.misses]),
        "rows": _table([dict(row) for miss in batch.misses for row in miss.examples]),
    }


def verified(evidence: Evidence) -> dg.AssetCheckResult:
    """The topic, read a second time by other means, says what table, quarantine and ledger hold."""
    found = evidence.proof
    if not isinstance(found, Verdict):
        says = f"not verified: {found}"
        return _result(evidence, "verified", passed=False, says=says, metadata={})
    return _result(
        evidence,
        "verified",
        passed=found.holds,
        says="\n".join(sentences(found)),
        metadata=metadata_of(found, evidence.spec.sink.name),
    )


_CHECKS: Final[dict[str, Callable[[Evidence], dg.AssetCheckResult]]] = {
    check.__name__: check
    for check in (books_balance, offsets_contiguous, quarantine_rate, freshness, retention)
}


def _checks_of(spec: StreamSpec | None) -> dict[str, Callable[[Evidence], dg.AssetCheckResult]]:
    """Return the checks of a stream: expectations and proof only where its file asks for them."""
    if spec is None:
        return _CHECKS
    asked = {
        gate: bool(spec.expect) or spec.publish.is_checked,
        expectations: bool(spec.expectations),
        verified: spec.verify,
    }
    return _CHECKS | {check.__name__: check for check, is_asked in asked.items() if is_asked}


def breaks(
    rows: Iterable[LedgerRow], *, epoch: int, reached: Offsets
) -> Iterator[tuple[TopicPartition, str]]:
    """Say where the ranges of an epoch leave a hole or overlap, by partition.

    Args:
        rows: The ledger of one table, by seq.
        epoch: Life of the stream's identity; offsets of another mean other records.
        reached: The table's next offsets, where the last range of each partition must end.
    """
    for at, reads in sorted(_by_partition(rows, epoch).items()):
        for (before, earlier), (seq, later) in pairwise(reads):
            if not later.follows(earlier):
                what = "a hole" if later.start > earlier.end else "an overlap"
                low, high = sorted((earlier.end, later.start))
                yield at, f"{what} [{low}, {high}) between batch {before} and batch {seq}"
        seq, last = reads[-1]
        if last.end != reached.get(at):
            yield (
                at,
                f"batch {seq} ends at {last.end}, the table's next offset is {reached.get(at)}",
            )


def _by_partition(
    rows: Iterable[LedgerRow], epoch: int
) -> dict[TopicPartition, list[tuple[int, Range]]]:
    """Return seq and range of everything that moved offsets."""
    from oncelake.ingestion.tables.commit_metadata import MOVING

    reads: dict[TopicPartition, list[tuple[int, Range]]] = {}
    for row in rows:
        if row.epoch == epoch and row.kind in MOVING:
            for range_ in (counted.range for counted in row.ranges if len(counted.range)):
                reads.setdefault(range_.topic_partition, []).append((row.seq, range_))
    return reads


def _red(row: LedgerRow) -> dict[str, Any]:
    ranges = ", ".join(str(counted.range) for counted in row.ranges if len(counted.range))
    return {"seq": row.seq, "run": row.run_id, "ranges": ranges, "problem": row.says()}


def _earlier(evidence: Evidence) -> str:
    """Say that batches of earlier runs may have been judged by nobody: unknown is not green."""
    unknown = evidence.unreported.unknown
    return f"; of earlier batches nothing is known, since {unknown}" if unknown else ""


def _all_met(evidence: Evidence) -> str:
    declared = len(evidence.spec.expectations)
    if not declared:
        return "not declared"
    return f"{declared} met" if evidence.outcomes is not None else "the run wrote no rows to check"


def _result(
    evidence: Evidence,
    name: str,
    *,
    passed: bool,
    says: str,
    metadata: dict[str, Any],
    severity: dg.AssetCheckSeverity = ERROR,
) -> dg.AssetCheckResult:
    """Return the result of a check for the evidence's stream."""
    return dg.AssetCheckResult(
        asset_key=evidence.asset_key,
        check_name=name,
        passed=passed,
        severity=severity,
        description=_advised(name, evidence.spec.name, says, passed=passed),
        metadata=metadata,
    )


def _link(evidence: Evidence, table: str) -> dict[str, Any]:
    links = evidence.translation.links(evidence.spec.name)
    return {table: links[table]} if table in links else {}


def _advised(name: str, stream: str, says: str, *, passed: bool) -> str:
    """Write what a check says, and, of a failed one, what to do."""
    if not passed and "Next: " not in says:
        says = f"{says}. Next: {_NEXT[name].format(stream=stream)}"
    return as_markdown(says)


def _table(rows: list[dict[str, Any]]) -> dg.TableMetadataValue | str:
    """Return the first rows as a table; Dagster wants no table without any."""
    if not rows:
        return "none"
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows[:_MOST_ROWS]])
