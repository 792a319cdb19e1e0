"""Runs of streams on a cluster, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oncelake.ingestion.settings import Settings
from tests.support.spark_cluster import SparkCluster
from tests.support.world import World, settings_in
from tests.trials.failpoints import PlannedCrash


def run(
    worlds: Sequence[World], *crashes: PlannedCrash, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run streams of one lake in another process, some of whose parts may be killed."""
    for world in worlds:
        world.write_declaration()
    planned = crashes[0].environment(*crashes[1:]) if crashes else {}
    environment = {**worlds[0].environment(), **planned, **settings}
    # A session of this process has set it, and it would win over Spark's own setting.
    environment.pop("PYSPARK_PYTHON", None)
    return subprocess.run(
        [sys.executable, "-m", "ingestion", "run", *(world.name for world in worlds)],
        env=environment,
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def on_cluster(folder: Path, kafka_address: str, cluster: SparkCluster, **more: Any) -> Settings:
    """Return the settings of a lake that is written by a cluster."""
    given = {"spark_master": cluster.master, "spark_defaults": cluster.defaults, **more}
    return settings_in(folder, kafka_address, **{"kafka_timeout_seconds": 30, **given})
