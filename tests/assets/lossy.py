"""The definitions of the project with a sink that drops a record: what a bug would look like."""

from __future__ import annotations

from assets.definitions import defs as defs
from ingestion.sinks.upsert import UpsertSink

_honest = UpsertSink._source
UpsertSink._source = lambda sink: _honest(sink).where("id <> 2")  # type: ignore[method-assign]
