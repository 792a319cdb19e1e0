"""The breaker: a batch of which too much is bad, or one record says all, is not written at all.

A few bad records belong in quarantine; when most of a batch is bad, it is the declaration that is
wrong, or the topic, and quarantining a topic would only move it. So the run stops before anything
is written, and no offset moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from oncelake.ingestion.declaration.messages import printable
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import (
    NOTHING_WRITTEN,
    SourceTruncatedError,
    TooManyBadRecordsError,
    counted,
)
from oncelake.ingestion.modes.engines.engine import Engine
from oncelake.ingestion.pipeline.counts import BatchCounts

# Where nothing is declared: most of a batch, unless the batch is too small to say anything.
STOP_ABOVE: Final = 0.5
_FEWEST: Final = 100


def refuse_too_many_bad(engine: Engine, counts: BatchCounts, spec: StreamSpec) -> None:
    """Make sure that the bad records of a batch may go to quarantine, by their share and reasons.

    One query more, and only when it is not.

    Args:
        engine: Holds the batch.
        counts: What was counted of it.
        spec: The declaration, which may set the share.

    Raises:
        TooManyBadRecordsError: there are more; names the reasons.
        SourceTruncatedError: the source was emptied, and the declaration stops there.
    """
    bad = counts.dispositions.get("quarantined", 0)
    if bad and spec.format.options.truncate_policy == "stop":
        for row in _reasons(engine):
            if row["_reason"] == "truncate":
                raise source_truncated(spec.name, _describe(row))
    # Records of a sibling's say nothing about this stream.
    others = ("overlap", "routed_elsewhere")
    new = counts.read - sum(counts.dispositions.get(each, 0) for each in others)
    declared = spec.quarantine_rate.stop_above
    if not bad or (declared is None and new < _FEWEST):
        return
    above = STOP_ABOVE if declared is None else declared
    if bad <= above * new:
        return
    unrouted = "declare the kinds that are none of a table's, or `otherwise: ignore`; "
    raise TooManyBadRecordsError(
        spec.name,
        f"{bad:,} of the {counted(new, 'record')} of a batch cannot be applied, which is more than "
        f"{above:.0%}: {'; '.join(map(_describe, _reasons(engine)))}. {NOTHING_WRITTEN}",
        remedy=f"{unrouted if spec.route else ''}correct `schema` or `format` in "
        f"{spec.file}, or the producer, and run again; "
        "or, if these records are meant to go to quarantine, declare "
        "`quarantine_rate: {stop_above: 1}` there",
    )


def source_truncated(stream: str, found: str) -> SourceTruncatedError:
    """Return the error that says so; ``found`` is the record, and why it is not applied."""
    return SourceTruncatedError(
        stream,
        f"the source has emptied its table: {found}. {NOTHING_WRITTEN}",
        remedy="declare `where` with the position after that, and in `format` "
        f"`on_truncate: quarantine`, and oncelake rebuild {stream} (docs/debezium.md, "
        "When the source is truncated)",
    )


def _reasons(engine: Engine) -> list[dict[str, Any]]:
    """Describe each reason: how often, the first place, and what that record looks like."""
    return engine.rows(
        "SELECT * FROM (SELECT _reason, _detail, _topic, _partition, _offset, _value, "
        'count(*) OVER (PARTITION BY _reason) AS "records", row_number() OVER '
        "(PARTITION BY _reason ORDER BY _topic, _partition, _offset) AS _rank "
        "FROM batch WHERE _disposition = 'quarantined') r WHERE _rank = 1 "
        'ORDER BY "records" DESC, _reason'
    )


def _describe(row: Mapping[str, Any]) -> str:
    at = f"{row['_topic']}-{row['_partition']} offset {row['_offset']}"
    value = None if row["_value"] is None else bytes(row["_value"])
    detail = f" ({printable(row['_detail'])})" if row["_detail"] else ""
    return f"{row['records']:,} {row['_reason']}, first at {at}{detail}: {printable(value)}"
