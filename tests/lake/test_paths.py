"""Where a stream's tables lie, and what its lock promises there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingestion.declaration.sinks import SinkSpec
from ingestion.lake.paths import StreamPaths
from ingestion.settings import Settings


@pytest.mark.parametrize(
    ("sink", "settings", "outlives"),
    [
        pytest.param("delta", {}, True, id="Delta in a folder"),
        pytest.param("delta", {"lock": "lease"}, False, id="Delta under a lease"),
        pytest.param("delta", {"lake": "s3://bucket/lake"}, False, id="Delta in a store"),
        pytest.param("iceberg", {}, False, id="Iceberg, whose catalog may still be at a commit"),
        pytest.param("postgres", {}, False, id="PostgreSQL, which may still be at a commit"),
        pytest.param("kafka", {}, False, id="Kafka, which may still be at a commit"),
    ],
)
def test_only_the_kernels_lock_tells_that_nobody_commits_any_more(
    tmp_path: Path, sink: Any, settings: dict[str, str], outlives: bool
) -> None:
    """Else an attempt that seems dead may commit what it has left beside the table."""
    given = {"lake": tmp_path, "state": tmp_path, "kafka": "k:1", "postgres": "postgresql://db/x"}
    declared = SinkSpec.model_validate({sink: {}})

    paths = StreamPaths.of("orders", Settings(**{**given, **settings}), declared)

    assert paths.lock_outlives_commits is outlives
