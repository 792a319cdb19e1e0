"""Which declaration and which engine judged a record, as short texts that change when they do.

A record that is bad for one of them may be good for the next. The quarantine keeps both, so that
the proof can tell a record that waits to be redriven from one that should never have been there.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from ingestion.declaration.spec import StreamSpec

# Fields that decide nothing about a single record. One that is added later counts until named.
_ABOUT_RUNS: Final = frozenset(
    {
        *("name", "description", "owners", "topic", "topics", "topic_pattern", "starting"),
        "table_per_topic",
        *("max_offsets_per_trigger", "gaps", "schema_change", "delivery"),
        *("rewind_window_days", "quarantine_rate"),
        *("freshness_minutes", "expectations", "verify", "schedule", "sensor_seconds"),
    }
)


def fingerprint(spec: StreamSpec) -> str:
    """Return a short text for all in a declaration that decides what becomes of a record."""
    fields = spec.model_dump(mode="json", exclude=set(_ABOUT_RUNS), exclude_defaults=True)
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def engine_version() -> str:
    """Return the version of this engine."""
    try:
        return version("oncelake")
    except PackageNotFoundError:
        return "unknown"
