"""Dagster's own command line, as CI types it, on a real broker and real tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.world import World, row

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent


def test_materializing_writes_the_table_once(world: World, tmp_path: Path) -> None:
    """A materialization exits 0 and fills the table; the next one leaves it as it was."""
    world.write_declaration()
    world.send(row(1, "a"), row(2, "b"), b"garbage")

    first = dagster(world, tmp_path, "asset", "materialize", "--select", world.topic)
    version = world.log.versions()[0]
    second = dagster(world, tmp_path, "asset", "materialize", "--select", world.topic)

    assert first.returncode == 0, first.stdout + first.stderr
    assert second.returncode == 0, second.stdout + second.stderr
    assert world.rows() == [row(1, "a"), row(2, "b")]
    assert world.log.versions()[0] == version


def test_a_new_file_is_a_new_asset(world: World, tmp_path: Path) -> None:
    """One YAML file is all it takes for a stream to be listed."""
    world.write_declaration()

    listed = dagster(world, tmp_path, "asset", "list")

    assert world.topic in listed.stdout.split()


def test_a_red_batch_fails_the_command(world: World, tmp_path: Path) -> None:
    """A blocking check that fails makes the command exit 1, and the next run is refused."""
    world.write_declaration()
    world.send(row(1, "a"), row(2, "dropped"))

    select = ("asset", "materialize", "--select", world.topic)
    red = dagster(world, tmp_path, *select, module="tests.assets.lossy")
    refused = dagster(world, tmp_path, *select)

    assert red.returncode == 1
    assert "records read 2 ≠ 1 accounted for" in red.stdout + red.stderr
    assert [batch.balanced for batch in world.ledger] == [False]
    assert refused.returncode == 1
    assert f"oncelake accept {world.topic}" in refused.stdout + refused.stderr


def dagster(
    world: World, home: Path, *words: str, module: str = "assets.definitions"
) -> subprocess.CompletedProcess[str]:
    """Run Dagster's command line with the world's settings and a home of its own."""
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return subprocess.run(
        [sys.executable, "-m", "dagster", *words, "-m", module],
        cwd=ROOT,
        env={**world.environment(), "DAGSTER_HOME": str(home), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
