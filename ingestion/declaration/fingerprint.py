"""Which declaration, and which engine, judged a record: short texts that change when it does.

A record that one of them found bad may be good for the next. Whoever looks at the quarantine later,
the proof above all, must be able to tell a record that waits to be redriven from one that should
never have been there.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from ingestion.declaration.spec import StreamSpec

# What says nothing about a single record. A field that is added later counts until it is named.
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
    judging = spec.model_dump(mode="json", exclude=set(_ABOUT_RUNS), exclude_defaults=True)
    text = json.dumps(judging, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def engine_version() -> str:
    """Return the version of this engine."""
    try:
        return version("oncelake")
    except PackageNotFoundError:
        return "unknown"
