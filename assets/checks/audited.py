"""A check for anybody's asset: the table that another tool fills, beside its topic."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from oncelake.assets.failures import as_markdown, translate_errors
from oncelake.ingestion.errors import DONE, WRONG, counted
from oncelake.ingestion.settings import load_settings

if TYPE_CHECKING:
    from oncelake.ingestion.operations.audit.audit import AuditReport

_COUNTS = ("records", "rows", "missing", "doubled", "different", "extra", "unproven", "unreadable")
_SAMPLES = 5


def audited(
    asset: dg.CoercibleToAssetKey | dg.AssetsDefinition | dg.SourceAsset,
    *,
    topic: str,
    table: str,
    keys: Sequence[str] = (),
    name: str = "audited",
    **options: Any,
) -> dg.AssetChecksDefinition:
    """Return a check of an asset that compares its table with a topic, as `oncelake audit` does.

    It is green when every record is in the table, and nothing else; red when rows are missing,
    doubled, different or too many; a warning when that cannot be judged. Topic and lake are found
    by the settings of the process (`ONCELAKE_KAFKA`, …).

    Args:
        asset: The asset whose table it is.
        topic: The topic that fills it.
        table: The path or URL of a Delta table, `iceberg:namespace.table`, or
            `postgres:schema.table`.
        keys: Columns that identify a row; without any, each record is a row.
        name: Of the check.
        options: Further fields of `AuditRequest`, such as `order` or `deleted_column`.
    """
    from oncelake.ingestion.operations.audit.declare import AuditRequest

    request = AuditRequest(topic=topic, table=table, keys=tuple(keys), **options)

    @dg.asset_check(asset=asset, name=name, description=f"Is all of {topic} in {table}?")
    def check() -> dg.AssetCheckResult:
        from oncelake.ingestion.operations.audit.audit import audit

        began = time.monotonic()
        with translate_errors(f"audit of {topic}", if_interrupted="nothing was changed"):
            report = audit(request, load_settings(), limit=_SAMPLES)
        return dg.AssetCheckResult(
            passed=report.exit_code == DONE,
            severity=_severity(report),
            description=_says(report),
            metadata={
                **{each: getattr(report, each) for each in _COUNTS},
                "seconds": round(time.monotonic() - began, 3),
                "says": dg.MetadataValue.md(
                    "\n".join(f"- {as_markdown(e)}" for e in _lines(report))
                ),
            },
        )

    return check


def _severity(report: AuditReport) -> dg.AssetCheckSeverity:
    is_wrong = report.exit_code == WRONG
    return dg.AssetCheckSeverity.ERROR if is_wrong else dg.AssetCheckSeverity.WARN


def _says(report: AuditReport) -> str:
    if report.exit_code == WRONG:
        return counted(report.faults, "fault")
    return "all is there" if report.exit_code == DONE else "cannot be judged"


def _lines(report: AuditReport) -> list[str]:
    """Say what is wrong, and what cannot be proven."""
    samples = (
        f"{kind}: {dict(each.key)}: {each.what}"
        for kind, some in report.samples.items()
        for each in some
    )
    unproven = (f"not proven: {each}" for each in (*report.obstacles, *report.limits))
    return [_says(report), *samples, *unproven]
