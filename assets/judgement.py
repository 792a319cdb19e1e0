"""The form in which a check says what it found."""

from __future__ import annotations

from typing import Any, Final

import dagster as dg

from assets.evidence import Evidence

ERROR: Final = dg.AssetCheckSeverity.ERROR
WARN: Final = dg.AssetCheckSeverity.WARN
_MOST_ROWS: Final = 50


def result(
    evidence: Evidence,
    name: str,
    *,
    passed: bool,
    says: str,
    metadata: dict[str, Any],
    severity: dg.AssetCheckSeverity = ERROR,
) -> dg.AssetCheckResult:
    """Return what a check says of the evidence's stream."""
    return dg.AssetCheckResult(
        asset_key=evidence.spec.name,
        check_name=name,
        passed=passed,
        severity=severity,
        description=says,
        metadata=metadata,
    )


def table(rows: list[dict[str, Any]]) -> dg.TableMetadataValue | str:
    """Return the first rows as a table; Dagster wants no table without any."""
    if not rows:
        return "none"
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows[:_MOST_ROWS]])
